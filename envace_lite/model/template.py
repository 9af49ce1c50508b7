"""Any chat template with tools as a language: the template itself shows where each role begins and ends.

A chat template renders whole conversations; a rollout needs what stands *between* two messages. So small conversations
are rendered with a mark in the place of each content, and cut at the marks:

    MARK<|im_end|>
    <|im_start|>user
    <tool_response>
    MARK

This is what Qwen's template puts between a call and its response: the end of the one, and the header of the other. The
rehearse role writes after the header of a tool's response, as the act role does after that of the assistant.

What is simplified against a chat model's own harness:

1. What was read stays as it was read. Templates may take thinking out of earlier turns, or move the tools behind
   them; here the ids of a conversation are always a prefix of the ids of a longer one.
2. A template's text between two messages may depend on their roles and on the name of a tool, and on nothing else.
3. Where calls have ids, the library fills them in: all first calls have the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import product, takewhile
from typing import Any

from jinja2.exceptions import TemplateError

from envace_lite.model.call_formats import FORMATS, LOOKS_LIKE_A_CALL, Calls, Reader, bare, without_thinking
from envace_lite.model.language import ACT, GIVEN, REHEARSE, Language, Message, Schemas
from envace_lite.model.policy import PolicyError
from envace_lite.world.result import MALFORMED
from envace_lite.world.tools import ToolCall, ToolError

WAYS = ("auto", "plain")
"""How tools are shown: in the template's own way, or in the plain format."""
USE_PLAIN = 'choose Template(tokenizer, tools="plain")'
PLAIN = """You can call these tools:
{tools}
To call one, answer with one line of JSON, {{"name": ..., "arguments": {{...}}}}, and with nothing else."""
"""What the system message says in the plain format."""
RESPONSE = "Response of {name}:\n"
"""What a response begins with in the plain format; it stands in a turn of the user."""

_MARK, _NEXT = "first9mark", "second9mark"
_NAMES = "name9of9one", "name9of9other"
_ID = "call{:05d}"  # nine letters and digits: Mistral's templates want so many
_AWKWARD = ' a"b\n '  # shows whether a template leaves a content as it is, trims it, or quotes it
_CANNOT_RENDER = (TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError)
_EMPTY: tuple[dict[str, Any], ...] = ({"content": ""}, {"content": None}, {})
_OTHER_ENDS = ("<|eom_id|>",)
"""Tokens that end a message of some models, and that their templates do not show."""

_SHOWN: tuple[Callable[[str], str], ...] = (
    lambda text: text,
    str.strip,
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
)
_QUOTED = _SHOWN[2]


def _tool(name: str) -> dict[str, Any]:
    key = {"type": "string", "description": "A key."}
    parameters = {"type": "object", "properties": {"key": key}, "required": ["key"]}
    return {"type": "function", "function": {"name": name, "description": "Look.", "parameters": parameters}}


def _user(text: str = "hello") -> dict[str, Any]:
    return {"role": "user", "content": text}


def _answer(text: str = "bye") -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _calls(*keys: str) -> dict[str, Any]:
    made = [ToolCall(name, {"key": key}).to_message() for name, key in zip(_NAMES, keys, strict=False)]
    return {"role": "assistant", "tool_calls": made}


def _response(text: str = "yes", name: str = _NAMES[0]) -> dict[str, Any]:
    return {"role": "tool", "name": name, "content": text}


def _common(one: str, other: str) -> str:
    """What both begin with."""
    return "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


_TOOLS = [_tool(name) for name in _NAMES]
_BETWEEN: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("user", "act"): [_user(_MARK)],
    ("user", "user"): [_user(_MARK), _user(_NEXT)],
    ("call", "tool"): [_user(), _calls(_MARK), _response(_NEXT)],
    ("answer", "user"): [_user(), _answer(_MARK), _user(_NEXT)],
    ("answer", "act"): [_user(), _answer(_MARK)],
    ("tool", "tool"): [_user(), _calls("a", "b"), _response(_MARK), _response(_NEXT, _NAMES[1])],
    ("tool", "act"): [_user(), _calls("a"), _response(_MARK)],
    ("tool", "user"): [_user(), _calls("a"), _response(_MARK), _user(_NEXT)],
}
"""The small conversations: what stands between a message of the one kind and one of the other."""


def _kind(message: Message) -> str:
    if message["role"] == "assistant":
        return "call" if message.get("tool_calls") else "answer"
    return str(message["role"])


class Template(Language):
    """A chat template of the Hugging Face ecosystem; the methods of `Language` are explained there.

    Args:
        tokenizer: with a chat template.
        tools: `"auto"` for the template's own way to show tools, calls and responses; `"plain"` for a format of this
            library that every template with a user and an assistant can carry.
        options: passed on to the template, for example `enable_thinking=False` or `date_string="1 Jan 2026"`.

    Attributes:
        format: `"template"` or `"plain"`, for records.
        calls: the name of the format of calls (`call_formats.FORMATS`).
        parallel: whether one message can hold several calls.
        rewrites: whether the template would render an earlier turn in another way later on. What was read stays.

    Raises:
        PolicyError: the template has no tools, or one of its roles has no header or no end; it says what to do.
    """

    longest_message = 256
    longest_episode = 1024
    lenient = True

    def __init__(self, tokenizer: Any, tools: str = "auto", **options: Any):
        if tools not in WAYS:
            raise ValueError(f"tools are shown in a way of {' or '.join(WAYS)}, not {tools!r}")
        if not tokenizer.chat_template:
            raise PolicyError("this tokenizer has no chat template; set tokenizer.chat_template")
        self.tokenizer, self.options = tokenizer, options
        self.format = "plain" if tools == "plain" else "template"
        self.pad: int = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        special = sorted({*added, *tokenizer.all_special_tokens}, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, special)) or r"(?!)")
        self._glue = cache(self._found_between)
        self._encode = lru_cache(4096)(self._encoded)
        self._anchor = ""
        if self.decode((*self._encoded("x"), *self._encoded("x"))) != "xx":
            self._anchor = str(tokenizer.eos_token)
        self._learn_style()
        self._learn_ends()
        self.calls, self._reader = self._find_reader()
        self._check_that_earlier_turns_stay()

    # What the template shows.

    def _learn_style(self) -> None:
        """How the template wants system messages, arguments and the missing content of a call."""
        self._system, self._arguments_as_text = True, False
        self._empty: dict[str, Any] = {}
        system = self._try([{"role": "system", "content": _MARK}, _user(_NEXT)])
        self._system = _MARK in system and _NEXT in system
        conversation = [_user(), _calls(_MARK), _response(_NEXT), _answer("bye")]
        for self._arguments_as_text, self._empty in product((False, True), _EMPTY):
            text = self._try(conversation, _TOOLS)
            # Both tools are described, and one is called by its name.
            if all(text.count(word) >= 1 for word in (*_NAMES, _MARK, _NEXT)) and text.count(_NAMES[0]) >= 2:
                break
        else:
            what = "tools, calls and responses" if self.format == "template" else "a user and an assistant"
            hint = f"; {USE_PLAIN}" if self.format == "template" else ""
            raise PolicyError(f"this tokenizer's chat template does not render {what}{hint}")
        both = self._try([_user(), _calls(_MARK, _NEXT), _response()], _TOOLS)
        self.parallel = _MARK in both and _NEXT in both and self._glue("tool", "tool") is not None
        texts = (
            ("user", [_user(), _answer(), _user(_AWKWARD)]),
            ("answer", [_user(), _answer(_AWKWARD), _user()]),
            ("tool", [_user(), _calls("a"), _response(_AWKWARD)]),
        )
        self._shown = {}
        for kind, messages in texts:
            text = self._try(messages, _TOOLS if kind == "tool" else ())
            fits = [shown for shown in _SHOWN if shown(_AWKWARD) in text]
            if not fits:
                raise PolicyError(
                    f"this tokenizer's chat template changes what a message says ({kind}); {USE_PLAIN}"
                )
            self._shown[kind] = fits[0]

    def _learn_ends(self) -> None:
        """What ends a message of each kind, and what an answer begins with."""
        header = self._text([_user()], (), prompt=True)
        answered = self._text([_user(), _answer(_MARK), _user()], ())
        if not answered.startswith(header):
            raise PolicyError(
                "this tokenizer's chat template asks the assistant to write after other words than those that stand "
                f"before its earlier turns ({header[-20:]!r}); try another of its options, or another template"
            )
        self._opening = answered[len(header) : answered.index(_MARK)]
        self._begun = "<think>" if header.rstrip().endswith("<think>") else ""
        # A call may be followed by another one: what is the same then closes the call, and the message ends after it.
        called = (
            self._text([_user(), _calls(_MARK), _response(_NEXT)], _TOOLS)
            .partition(_MARK)[2]
            .partition(_NEXT)[0]
        )
        again = self._try([_user(), _calls(_MARK, "b"), _response()], _TOOLS).partition(_MARK)[2]
        closing = _common(called, again) if self.parallel else ""
        self._end = {"call": "", "answer": "", "tool": "", "user": ""}
        stop = next((m for m in self._special.finditer(called) if m.end() > len(closing)), None)
        self._end["call"] = stop[0] if stop else ""
        self._call_glue = called[stop.start() :] if stop else ""
        # A last answer may end in another token than an earlier one; the model writes that of a last one.
        last = self._text([_user(), _answer(_MARK)], ()).partition(_MARK)[2]
        earlier, final = (self._special.search(text) for text in (self._need("answer", "user"), last))
        self._earlier_end = earlier[0] if earlier else final[0] if final else ""
        self._end["answer"] = final[0] if final else self._earlier_end
        # A response ends where it no longer matters what follows it, at the latest with a special token.
        follows = self._need("tool", "act")
        same = _common(follows, self._need("tool", "tool")) if self.parallel else follows
        found = self._special.search(follows)
        if (
            found
            and found.start() < len(same)
            and (found.end() <= len(same) or not same[: found.start()].strip())
        ):
            # Where the header of the next turn alone ends a response, nothing but the assistant can follow it.
            self.parallel &= found.end() <= len(same)
            same = follows[: found.end()]
        elif found:
            same, found = same[: found.start()], None
        self._end["tool"] = same
        if not all(self._end[kind] for kind in ("call", "answer", "tool")):
            raise PolicyError(
                "this tokenizer's chat template ends a message with no special token; add it with add_special_tokens"
            )
        ends = [self._end["call"], self._end["answer"], self.tokenizer.eos_token, *_OTHER_ENDS]
        vocabulary = self.tokenizer.get_vocab()
        self._act_ends = {vocabulary[token] for token in ends if token in vocabulary}
        self._tool_ends = self._act_ends | {vocabulary[found[0]]} if found else self._act_ends
        # Where responses end in no token of their own, the last letters are looked at.
        self._tool_tail = "" if found else self._end["tool"]
        pattern = re.escape(self._end["tool"]).replace(re.escape(_ID.format(1)), r"\w*")
        self._tool_end = re.compile(pattern)

    def _find_reader(self) -> tuple[str, Reader]:
        """The reader that reads back what the template writes."""
        if self.format == "plain":
            return "bare", bare
        formats = dict(FORMATS)
        if getattr(self.tokenizer, "response_template", None):
            formats = {"response_template": self._read_by_tokenizer, **formats}
        arguments = {"key": '{"a": 7}, </b>\n"'}
        message = {"role": "assistant", "tool_calls": [ToolCall(_NAMES[0], arguments).to_message()]}
        written = self._begun + self._call_text(message).removesuffix(self._end["call"])
        for name, reader in formats.items():
            try:
                calls, _ = reader(without_thinking(written), _TOOLS)
            except ValueError:
                continue
            if calls == [(_NAMES[0], arguments)]:
                return name, reader
        raise PolicyError(f"no reader is known for calls as this chat template writes them; {USE_PLAIN}")

    def _read_by_tokenizer(self, text: str, tools: Schemas) -> tuple[Calls, str]:
        """The parser of transformers, where the tokenizer says how its responses are to be parsed."""
        message = self.tokenizer.parse_response(text, prefix="", tools=list(tools))
        calls = [
            (call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls", [])
        ]
        return calls, message.get("content") or ""

    def _check_that_earlier_turns_stay(self) -> None:
        """Compare with what the template makes of a growing conversation."""
        turn = [_calls("a"), _response(), _calls("b"), _response(), _answer()]
        talk = [
            {"role": "system", "content": "be brief"},
            _user(),
            *turn,
            _user("more"),
            *turn,
            _user("thanks"),
        ]
        thought = [_user(), _answer("<think>\nhm\n</think>\n\nbye"), _user()]
        self.rewrites = "hm" not in self._try(thought)
        shorter = ""
        for length in (2, 4, 6, 8, 10, 12, 14):
            longer = self._text(talk[:length], _TOOLS, prompt=True)
            if not longer.startswith(shorter):
                self.rewrites = True
                return
            made = "".join(self._pieces(talk[:length], _TOOLS, "act"))
            if longer != made.replace(self._end["answer"], self._earlier_end):
                raise PolicyError(
                    f"this chat template writes a message differently with its place in the conversation; {USE_PLAIN}"
                )
            shorter = longer

    def _text(self, messages: Sequence[Message], tools: Schemas, *, prompt: bool = False) -> str:
        """The template's own rendering."""
        if self.format == "plain":
            messages, tools = self._in_plain_words(messages, tools), ()
        if messages[0]["role"] == "system" and not self._system and len(messages) > 1:
            first, second, *others = messages
            messages = [{**second, "content": f"{first['content']}\n\n{second['content']}"}, *others]
        return str(
            self.tokenizer.apply_chat_template(
                self._standard(messages),
                tools=list(tools) or None,
                tokenize=False,
                add_generation_prompt=prompt,
                **self.options,
            )
        )

    def _try(self, messages: Sequence[Message], tools: Schemas = (), *, prompt: bool = False) -> str:
        """The rendering; "" if the template refuses these messages."""
        try:
            return self._text(messages, tools, prompt=prompt)
        except _CANNOT_RENDER:
            return ""

    def _standard(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """The messages with what this template wants besides: ids of calls, a content, arguments as a text."""
        full: list[dict[str, Any]] = []
        waiting: Iterator[str] = iter(())
        for message in messages:
            if calls := message.get("tool_calls"):
                entries: list[dict[str, Any]] = []
                for number, call in enumerate(calls, start=1):
                    arguments = call["function"]["arguments"]
                    if self._arguments_as_text:
                        arguments = json.dumps(arguments, ensure_ascii=False)
                    function = {**call["function"], "arguments": arguments}
                    entries.append({"type": "function", "id": _ID.format(number), "function": function})
                waiting = iter([entry["id"] for entry in entries])
                message = {"role": "assistant", **self._empty, "tool_calls": entries}
            elif message["role"] == "tool":
                message = {**message, "tool_call_id": next(waiting, _ID.format(1))}
            full.append(dict(message))
        return full

    def _in_plain_words(self, messages: Sequence[Message], tools: Schemas) -> list[dict[str, Any]]:
        """The conversation in the plain format: tools in the system message, calls and responses as texts."""
        told = []
        if tools:
            lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
            told = [{"role": "system", "content": PLAIN.format(tools=lines)}]
        for message in messages:
            if message["role"] == "system" and told:
                told[0] = {"role": "system", "content": f"{message['content']}\n\n{told[0]['content']}"}
            elif calls := message.get("tool_calls"):
                lines = "\n".join(json.dumps(call["function"], ensure_ascii=False) for call in calls)
                told.append(_answer(lines))
            elif message["role"] == "tool":
                told.append(_user(RESPONSE.format(name=message["name"]) + message["content"]))
            else:
                told.append(dict(message))
        return told

    def _found_between(self, before: str, after: str) -> str | None:
        """What stands between a message `before` and a message `after`, with the name of the tool marked."""
        messages = _BETWEEN.get((before, after), [_user()])
        # The user's turns are rendered without tools: some templates move the description of tools to the last one.
        tools = _TOOLS if "tool" in (before, after) and after != "user" else ()
        text = self._try(messages, tools, prompt=after == "act")
        _, found, text = text.rpartition(_MARK) if before != "call" else text.partition(_MARK)
        if after != "act":
            text, reached, _ = text.partition(_NEXT)
            found = found and reached
        return text if found else None

    def _need(self, before: str, after: str) -> str:
        text = self._glue(before, after)
        if text is None and (before, after) == ("answer", "act"):
            # A template in which turns alternate: the assistant goes on as if the user had spoken.
            return self._need("user", "act")
        if text is None:
            raise PolicyError(f"this chat template cannot render {after} after {before}; {USE_PLAIN}")
        return text

    # From messages to ids.

    def _pieces(self, messages: Sequence[Message], tools: Schemas, prompt: str | None) -> list[str]:
        """The text of a conversation in the pieces that are tokenised one by one, as a rollout adds them."""
        roles = [message["role"] for message in messages]
        start = next((i for i, role in enumerate(roles) if role in ("assistant", "tool")), len(messages))
        pieces = [self._text(messages[:start], tools, prompt=start < len(messages) or prompt is not None)]
        for i in range(start, len(messages)):
            pieces.append(self._body(messages[i]))
            writer = messages[i + 1] if i + 1 < len(messages) else prompt
            if writer is not None:
                pieces += self._header(_kind(messages[i]), writer, self._end[_kind(messages[i])])
        return pieces

    def _body(self, message: Message) -> str:
        """What is written of a message: its content with what ends it."""
        kind = _kind(message)
        if kind == "call":
            return self._call_text(message)
        shown = self._shown.get(kind, str)(str(message["content"]))
        return f"{self._opening if kind == 'answer' else ''}{shown}{self._end[kind]}"

    def _call_text(self, message: Message) -> str:
        name = message["tool_calls"][0]["function"]["name"]
        header = self._text([_user()], [_tool(name)], prompt=True)
        text = self._text([_user(), message, _response(_NEXT, name)], [_tool(name)])
        after = self._call_glue.replace(_NAMES[0], name)
        return text[len(header) : text.rindex(_NEXT) - len(after)] + self._end["call"]

    def _header(self, before: str, writer: Message | str, ended: str) -> list[str]:
        """What is missing between a message that `ended` so and the first token of the next; names stand alone."""
        if isinstance(writer, str):
            after, name = ("act", "") if writer == "act" else ("tool", writer)
        else:
            after, name = str(writer["role"]).replace("assistant", "act"), str(writer.get("name", ""))
        text = self._call_glue if before == "call" and after == "tool" else self._need(before, after)
        if ended and ended in text:
            text = text[text.index(ended) + len(ended) :]
        else:
            # Another token than the template's has ended the message: it stands in that one's place.
            for end in (self._end[before], self._earlier_end if before == "answer" else ""):
                text = text.removeprefix(end)
        around = re.split("|".join(_NAMES), text)
        return [piece for part in around for piece in (part, name)][:-1]

    def _encoded(self, text: str) -> tuple[int, ...]:
        # A tokenizer that puts a blank before every text puts none after another token.
        ids = self.tokenizer(self._anchor + text, add_special_tokens=False).input_ids
        return tuple(ids[bool(self._anchor) :])

    def render(self, messages: Sequence[Message], tools: Schemas, *, prompt: str | None = None) -> list[int]:
        """Ids of a conversation; a last message ends with its own end."""
        return [token for piece in self._pieces(messages, tools, prompt) for token in self._encode(piece)]

    def extend(
        self,
        messages: Sequence[Message],
        tools: Schemas,
        role: str,
        *,
        new: int = 0,
        sampled: Sequence[int] = (),
    ) -> list[int]:
        """What is missing after the sampled message, the new messages, and the header of `role`; see `Language`."""
        last = len(messages) - new - 1
        kind = _kind(messages[last])
        if not sampled:
            ended = self._end[kind]
        elif kind == "tool" and sampled[-1] not in self._tool_ends:
            # The last token may hold more than the end: what fits is not added again.
            more = self.decode(sampled).rpartition(self._tool_tail)[2]
            ended = self._tool_tail + more
        else:
            ended = self.decode(sampled[-1:])
        pieces: list[str] = []
        for message in messages[last + 1 :]:
            pieces += [*self._header(kind, message, ended), self._body(message)]
            kind = _kind(message)
            ended = self._end[kind]
        pieces += self._header(kind, role, ended)
        return [token for piece in pieces for token in self._encode(piece)]

    # From ids to messages.

    def ended(self, ids: Sequence[int], role: str) -> bool:
        """Whether the last id ends a message, or the last letters end a response."""
        if role == "act":
            return ids[-1] in self._act_ends
        if ids[-1] in self._tool_ends or not self._tool_tail:
            return ids[-1] in self._tool_ends
        # A token has a letter at least, so that the tail is in so many tokens; one more may hold what follows it.
        return self._tool_tail in self.decode(ids[-len(self._tool_tail.encode()) - 1 :])

    def read(self, ids: Sequence[int], role: str) -> str:
        """The text before the end; a response that the template shows in quotes is taken out of them."""
        if role == "act":
            return self.decode(ids[:-1] if ids and ids[-1] in self._act_ends else ids)
        text = self.decode(ids)
        if end := self._tool_end.search(text):
            text = text[: end.start()]
        elif ids and ids[-1] in self._tool_ends:
            text = self.decode(ids[:-1])
        if self._shown["tool"] is _QUOTED:
            try:
                return str(json.loads(f'"{text}"', strict=False))
            except ValueError:
                return text
        return text

    def read_act(self, ids: Sequence[int], tools: Schemas) -> dict[str, Any]:
        """An answer (`content`), or calls (`tool_calls`); thinking is taken off."""
        listed = {tool["function"]["name"] for tool in tools}
        try:
            text = without_thinking(self._begun + self.read(ids, "act"))
            if self.format == "plain" and self._special.search(self._opening):
                text = text.rpartition(self._opening)[2]  # an answer has a header of its own (gpt-oss)
            calls, said = self._reader(text, tools)
        except (ValueError, RecursionError):
            raise ToolError(MALFORMED) from None
        if not calls:
            if LOOKS_LIKE_A_CALL.search(said):
                raise ToolError(MALFORMED)
            return {"role": "assistant", "content": said.strip()}
        if any(name not in listed for name, _ in calls) or len(calls) > 1 > self.parallel:
            raise ToolError(MALFORMED)
        return {
            "role": "assistant",
            "tool_calls": [ToolCall(name, given).to_message() for name, given in calls],
        }

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids; special tokens are kept."""
        return str(
            self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )

    def sayable(self, text: str) -> str:
        """The text itself: every text has ids."""
        return text

    def role_ids(self, ids: Sequence[int]) -> list[int]:
        """Role ids of a rendered conversation: everything after a header up to and including what ends the message."""
        roles = [GIVEN] * len(ids)
        place, role = self._after(ids, 0, "user", "act", anywhere=True), ACT
        while place is not None:
            start = place
            writer = "act" if role == ACT else "tool"
            while place < len(ids):
                place += 1
                if self.ended(ids[start:place], writer):
                    break
            roles[start:place] = [role] * (place - start)
            end, place = place, None
            steps = (
                [("call", "tool", REHEARSE)]
                if role == ACT
                else [("tool", "tool", REHEARSE), ("tool", "act", ACT)]
            )
            for before, after, then in steps:
                if place is None and (place := self._after(ids, end, before, after)) is not None:
                    role = then
            if place is None:  # it was an answer: the act role goes on after the user
                place, role = self._after(ids, end, "user", "act", anywhere=True), ACT
        return roles

    def _after(
        self, ids: Sequence[int], start: int, before: str, after: str, *, anywhere: bool = False
    ) -> int | None:
        """Where the header from one kind of message to another ends, if it stands at `start` or `anywhere` later."""
        if self._glue(before, after) is None:
            return None
        ended = self._end[before]
        for part in self._header(before, "act" if after == "act" else _NAMES[0], ended):
            if part == _NAMES[0]:
                anywhere = True
                continue
            wanted = list(self._encode(part))
            last = len(ids) if anywhere else start + 1
            found = (i for i in range(start, last) if list(ids[i : i + len(wanted)]) == wanted)
            place = next(found, None)
            if place is None:
                return None
            start, anywhere = place + len(wanted), False
        return start

    def speaks_like(self, other: Language) -> bool:
        """Whether the other language has the same template, tokens and options."""
        return (
            isinstance(other, Template)
            and (self.format, self.options) == (other.format, other.options)
            and self.tokenizer.chat_template == other.tokenizer.chat_template
            and self.tokenizer.get_vocab() == other.tokenizer.get_vocab()
        )

    def __repr__(self) -> str:
        return (
            f"<Template: tools {self.format}, calls {self.calls}{', rewrites earlier turns' * self.rewrites}>"
        )
