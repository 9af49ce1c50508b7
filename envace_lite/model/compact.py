"""The compact model's language: conversation <-> token ids and role ids.

What is simplified against the paper: the model has a vocabulary of about 1,300 whole words, and its chat template
renders the standard messages briefly: one token a word, a number or a record with its value (`o1:pending`). The
messages themselves keep the form that every Hugging Face chat model understands, and
`tokenizer.apply_chat_template` works as usual:

    <system> orders o1:pending o3:sent courier:free <end>
    <def> cancel_order order needs:pending gives:cancelled
    <user> cancel_order o1 report o1 <end>
    <assistant> cancel_order o1 <end>
    <tool> cancel_order o1:pending needs:pending ok o1:cancelled <end>
    <assistant> say cancelled <end>

The template only ever appends, so the ids of a conversation are a prefix of the ids of a longer one. The act role
starts after `<assistant>`, the rehearse role after `<tool> NAME`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from envace_lite.model.language import ACT, GIVEN, REHEARSE, Language, Message, Schemas, VocabularyError
from envace_lite.world import DOMAINS, NO_TOOL, UNKNOWN, ToyDomain, phrases
from envace_lite.world.tools import parse_calls

SAY = "say"
"""The act role's word before a final answer; anything else it writes is a call."""

_SPECIAL = ("<pad>", "<unk>", "<system>", "<def>", "<user>", "<assistant>", "<tool>", "<end>")
_GRAMMAR = ["say", *phrases.WORDS, "ok", "error"]
_RULES = f"{UNKNOWN} {NO_TOOL} type malformed unrecorded status stock wallet time funds full limit date range".split()
_NUMBERS = [str(number) for number in range(32)]
_SPARE = [f"word_{index}" for index in range(24)]

_TEMPLATE = """
{%- for message in messages if message.role == 'system' -%}
<system> {{ message.content }} <end>{{ ' ' }}
{%- endfor -%}
{%- for tool in tools or [] -%}
<def> {{ tool.function.name }} {{ tool.function.description }}{{ ' ' }}
{%- endfor -%}
{%- for message in messages if message.role != 'system' -%}
{%- if message.role == 'user' -%}
<user> {{ message.content }} <end>
{%- elif message.role == 'tool' -%}
<tool> {{ message.name }} {{ message.content }} <end>
{%- elif message.tool_calls -%}
<assistant>
{%- for call in message.tool_calls -%}
{{ ' and' if not loop.first }} {{ call.function.name }}
{%- for value in call.function.arguments.values() %} {{ value }}{% endfor -%}
{%- endfor %} <end>
{%- else -%}
<assistant> say {{ message.content }} <end>
{%- endif -%}
{{ ' ' if not loop.last or add_generation_prompt }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{%- if rehearse -%}<tool> {{ rehearse }}{%- else -%}<assistant>{%- endif -%}
{%- endif -%}
"""


def vocabulary(domains: Iterable[ToyDomain] = ()) -> list[str]:
    """Every word of the compact language, in a fixed order: special tokens, grammar, numbers, the domains' words.

    A few spare words are left for domains that are added later.
    """
    words = [*_SPECIAL, *_GRAMMAR, *_RULES, *_NUMBERS]
    for domain in domains or DOMAINS.values():
        words += domain.words()
    return list(dict.fromkeys([*words, *_SPARE]))


def build_tokenizer(words: Sequence[str] | None = None) -> PreTrainedTokenizerFast:
    """The compact model's tokenizer, with its chat template."""
    words = words or vocabulary()
    model = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    model.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=model,
        pad_token="<pad>",  # not the token that ends a message: a shared one would mask the endings
        eos_token="<end>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = _TEMPLATE.strip()
    return tokenizer


def act_message(text: str, tools: Schemas) -> dict[str, Any]:
    """What the act role wrote, as a standard message: an answer (`content`) or calls (`tool_calls`).

    Raises:
        ToolError: rule `malformed`, when it is neither.
    """
    if text == SAY or text.startswith(SAY + " "):
        return {"role": "assistant", "content": text[len(SAY) :].strip()}
    return {"role": "assistant", "tool_calls": [call.to_message() for call in parse_calls(text, tools)]}


class Compact(Language):
    """One token a word; the methods of `Language` are explained there.

    Args:
        tokenizer: from `build_tokenizer` or `from_pretrained`.
    """

    longest_message = 32
    longest_episode = 160
    lenient = False

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self.tokenizer = tokenizer
        self.words: list[str] = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        self.index = {word: i for i, word in enumerate(self.words)}
        missing = [word for word in (*_SPECIAL, SAY) if word not in self.index]
        if missing:
            raise VocabularyError(
                f"this tokenizer is not one of envace_lite's compact models: it lacks {missing}"
            )
        self.pad, self.end = self.index["<pad>"], self.index["<end>"]
        self.assistant, self.tool, self.user = (self.index[f"<{r}>"] for r in ("assistant", "tool", "user"))
        self.say = self.index[SAY]

    def encode(self, text: str, *, strict: bool = True) -> list[int]:
        """Ids of a sentence of the compact language; without `strict`, unknown words become `<unk>`.

        Raises:
            VocabularyError: naming the words that are not in the vocabulary.
        """
        words = text.split()
        unknown = sorted({word for word in words if word not in self.index})
        if strict and unknown:
            raise VocabularyError(f"not in the compact model's vocabulary: {', '.join(unknown)}")
        return [self.index.get(word, self.index["<unk>"]) for word in words]

    def decode(self, ids: Iterable[int]) -> str:
        """The sentence of some ids; special tokens are kept."""
        return " ".join(self.words[i] for i in ids)

    def render(
        self,
        messages: Sequence[Message],
        tools: Schemas,
        *,
        prompt: str | None = None,
    ) -> list[int]:
        """Ids of a conversation.

        Args:
            messages: in the standard form.
            tools: JSON schemas.
            prompt: None for the bare conversation, `"act"` to end with the header of the act role, or a tool's name
                to end with the header of the rehearse role for that tool.

        Raises:
            VocabularyError: naming the words that are not in the vocabulary.
        """
        # The template ends with the header of whoever writes next; a tool's name makes it that of the rehearse role.
        text = self.tokenizer.apply_chat_template(
            list(messages),
            tools=list(tools),
            tokenize=False,
            add_generation_prompt=prompt is not None,
            rehearse=None if prompt == "act" else prompt,
        )
        return self.encode(str(text))

    def extend(
        self,
        messages: Sequence[Message],
        tools: Schemas,
        role: str,
        *,
        new: int = 0,
        sampled: Sequence[int] = (),
    ) -> list[int]:
        """The messages that have no ids yet, and the header of `role`; see `Language`."""
        # Every message ends in one token, which was sampled: nothing of the messages before is missing.
        ids = []
        for message in messages[len(messages) - new :]:
            if message["role"] == "tool":
                # A real response may name a record that the compact language has no word for.
                ids += self.encode(f"<tool> {message['name']}")
                ids += self.encode(f"{message['content']} <end>", strict=False)
            else:
                ids += self.encode(f"<user> {message['content']} <end>")
        return [*ids, self.assistant] if role == "act" else ids + self.encode(f"<tool> {role}")

    def ended(self, ids: Sequence[int], role: str) -> bool:
        """Whether the last id is that of `<end>`."""
        return ids[-1] == self.end

    def read(self, ids: Sequence[int], role: str) -> str:
        """The words before `<end>`."""
        return self.decode(ids[:-1] if ids and ids[-1] == self.end else ids)

    def read_act(self, ids: Sequence[int], tools: Schemas) -> dict[str, Any]:
        """An answer (`content`), or calls (`tool_calls`)."""
        return act_message(self.read(ids, "act"), tools)

    def sayable(self, text: str) -> str:
        """The text with `<unk>` in place of each word that is not in the vocabulary."""
        return self.decode(self.encode(text, strict=False))

    def speaks_like(self, other: Language) -> bool:
        """Whether the other language has the same words."""
        return isinstance(other, Compact) and self.words == other.words

    def renamed(self, names: Mapping[str, str]) -> Compact:
        """A chat in which the ids have other words, for a domain of your own that speaks with what a policy has read.

        Args:
            names: word or part of a record -> what it is called from now on; `{"o1": "bike"}` also renames `o1:paid`.

        Raises:
            VocabularyError: a name is not in the vocabulary, or would then be there twice.
        """
        # A record is one word, `o1:paid`, so a new name has to be put into each word that holds it.
        parts = {part for word in self.words for part in word.split(":")}
        missing = sorted(set(names) - parts)
        words = [":".join(names.get(part, part) for part in word.split(":")) for word in self.words]
        twice = sorted({word for word in words if words.count(word) > 1})
        if missing or twice:
            about = f"there is no {', '.join(missing)}" if missing else f"twice: {', '.join(twice[:5])}"
            raise VocabularyError(f"these names do not fit the compact model's vocabulary; {about}")
        return Compact(build_tokenizer(words))

    def role_ids(self, ids: Sequence[int]) -> list[int]:
        """Role ids of a rendered conversation: everything after a header up to and including `<end>`.

        Headers (`<assistant>`, `<tool> NAME`), the system message, tool documentation and the user are `GIVEN`.
        """
        # `header` counts the tokens of a header that are still to come: `<assistant>` is one, `<tool> NAME` are two.
        roles, role, header = [], GIVEN, 0
        for token in ids:
            if token in (self.assistant, self.tool):
                role, header = (ACT, 1) if token == self.assistant else (REHEARSE, 2)
            roles.append(GIVEN if header else role)
            header = max(header - 1, 0)
            if token == self.end:
                role = GIVEN
        return roles
