"""Real chat templates as languages: what the episode reads is what the template itself would have rendered."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from envace_lite.model.call_formats import FORMATS
from envace_lite.model.language import ACT, GIVEN, REHEARSE
from envace_lite.model.policy import PolicyError
from envace_lite.model.template import Template
from envace_lite.rollout import Rehearse, Row, Trajectory
from envace_lite.world.tools import ToolError
from helpers import find_task

# Templates of models that the wheel of TRL does not carry, in the formats of their models.
OWN = {
    "mistral": """{{ bos_token }}{% set ns = namespace(last=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'user' %}
{%- if tools and loop.index0 == ns.last %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif -%}
[INST] {{ messages[0].content + '\n\n' if loop.index0 == 1 and messages[0].role == 'system' }}
{{- m.content }}[/INST]
{%- elif m.role == 'tool' %}
{%- if m.tool_call_id | length != 9 %}{{ raise_exception('nine characters') }}{% endif -%}
[TOOL_RESULTS] {"content": {{ m.content | tojson }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]
{%- elif m.tool_calls is defined -%}
[TOOL_CALLS] [
{%- for call in m.tool_calls %}
{{- '{"name": "' + call.function.name }}", "arguments": {{ call.function.arguments | tojson }}
{{- ', "id": "' + call.id }}"}{{ ', ' if not loop.last }}{% endfor %}]{{ eos_token }}
{%- elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}
{%- endif %}
{%- endfor %}""",
    "mistral_newer": """{{ bos_token }}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]
{%- for m in messages %}
{%- if m.role == 'system' %}[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]
{%- elif m.role == 'user' %}[INST]{{ m.content }}[/INST]
{%- elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]
{%- elif m.tool_calls %}
{%- for call in m.tool_calls %}[TOOL_CALLS]{{ call.function.name }}[ARGS]
{{- call.function.arguments | tojson }}{% endfor %}{{ eos_token }}
{%- else %}{{ m.content }}{{ eos_token }}
{%- endif %}
{%- endfor %}""",
    "hermes": """{{ bos_token }}<|im_start|>system
Tools: {{ tools | tojson }}<|im_end|>
{% for m in messages %}
{%- if m.role == 'tool' %}{% if loop.previtem.role != 'tool' %}<|im_start|>tool
{% endif %}<tool_response>
{{ m.content }}
</tool_response>{{ '\n' if not loop.last and loop.nextitem.role == 'tool' else '<|im_end|>\n' }}
{%- elif m.tool_calls %}<|im_start|>assistant
{% for call in m.tool_calls %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{{ '\n' if not loop.last }}{% endfor %}<|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}""",
    "smollm2": """{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system
You help.<|im_end|>
{% endif %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}""",
}
WITH_TOOLS = ["llama3_1", "llama3_2", "qwen2_5", "qwen3", "gemma4", "gemma4_v5", "gptoss", "glm4moe"]
WITH_TOOLS += ["qwen3_instruct_2507", "qwen3_8", "mistral", "mistral_newer", "hermes"]
MISTRAL = ["mistral-instruct-v0.3", "mistral-nemo-instruct"]
"""Those of Mistral that the wheel of Xinference carries. They tell the system's words in the last turn alone."""
WITH_TOOLS += MISTRAL
TOOLS_MOVE = ["mistral", *MISTRAL]
"""They tell the tools in the last turn of the user."""
WITHOUT = ["llama3", "gemma3", "phi3", "smollm2"]
SINGLE = {"llama3_1", "llama3_2", "gptoss"}
"""The templates that render one call a message."""
RESPONSE_ENDS = (
    {
        **dict.fromkeys(WITH_TOOLS, "\n</tool_response>"),
        **dict.fromkeys(["llama3_1", "llama3_2"], '"<|eot_id|>'),
        **dict.fromkeys(["gemma4", "gemma4_v5"], '<|"|>'),
        "gptoss": '"<|end|>',
        "mistral": '", "call_id": "call00001"}[/TOOL_RESULTS]',
        "mistral_newer": "[/TOOL_RESULTS]",
        **dict.fromkeys(MISTRAL, ', "call_id": "call00001"}[/TOOL_RESULTS]'),
    },
    {
        **dict.fromkeys([*WITH_TOOLS, "smollm2"], "<|im_end|>"),
        **dict.fromkeys(["llama3", "llama3_1", "llama3_2"], "<|eot_id|>"),
        **dict.fromkeys(["gemma4", "gemma4_v5"], "<turn|>"),
        **dict.fromkeys(["gptoss", "phi3"], "<|end|>"),
        **dict.fromkeys(["mistral", "mistral_newer", *MISTRAL], "[/INST]"),
        "gemma3": "<end_of_turn>",
        "glm4moe": "<|assistant|>",
    },
)
"""What ends a response, in the template's own way and in the plain format."""
ENDS = {"llama": "<|eot_id|>", "phi3": "<|endoftext|>", "gptoss": "<|return|>", "glm": "<|endoftext|>"}
ENDS |= {
    "gemma3": "<eos>",
    "gemma4": "<eos>",
    "mistral": "</s>",
    "qwen": "<|im_end|>",
    "hermes": "<|im_end|>",
}
ENDS |= {"smollm2": "<|im_end|>"}
BRACKETS = ["[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]"]
BRACKETS += ["[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"]
SPECIAL = r"<\|[a-z_]+\|>|<\|[a-z_]+>|<\|\"\|>|<[a-z_]+\|>|<(?:start|end)_of_turn>"

KINDS = {
    "text": "string",
    "count": "integer",
    "share": "number",
    "on": "boolean",
    "items": "array",
    "more": "object",
}
PROPERTIES = {key: {"type": kind, "description": f"A {kind}."} for key, kind in KINDS.items()}


def schema(name: str) -> dict[str, Any]:
    """The schema of a tool that takes a value of each type."""
    parameters = {"type": "object", "properties": PROPERTIES, "required": []}
    return {
        "type": "function",
        "function": {"name": name, "description": "Does it.", "parameters": parameters},
    }


TOOLS = [schema("loans.find"), schema("loans.renew")]


def source(name: str) -> str:
    """A template's text: an own one, or that in an installed wheel."""
    if name in OWN:
        return OWN[name]
    package = "xinference" if name in MISTRAL else "trl"
    found = importlib.util.find_spec(package)  # is not imported: it needs more than the templates
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"{package} is not installed: its chat templates are what this test reads")
    folder = Path(found.submodule_search_locations[0])
    if package == "trl":
        return (folder / "chat_templates" / f"{name}.jinja").read_text("utf-8")
    (told, *_) = json.loads((folder / "model" / "llm" / "models" / f"{name}.json").read_text("utf-8"))
    return str(told["chat_template"])


def tokenizer_for(name: str, template: str) -> PreTrainedTokenizerFast:
    """Bytes as tokens, and the template's special tokens."""
    end = next(token for family, token in ENDS.items() if name.startswith(family))
    special = dict.fromkeys(["<bos>", "<pad>", end, "<|eom_id|>", *re.findall(SPECIAL, template), *BRACKETS])
    words = {word: i for i, word in enumerate([*special, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    backend = Tokenizer(models.BPE(words, []))
    backend.add_special_tokens(list(special))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<bos>", pad_token="<pad>", eos_token=end
    )
    tokenizer.chat_template = template
    return tokenizer


@cache
def language(name: str, tools: str = "auto") -> Template:
    options = {"date_string": "1 Jan 2026"} if name.startswith("llama") else {}
    return Template(tokenizer_for(name, source(name)), tools, **options)


def calling(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    made = [{"type": "function", "function": {"name": name, "arguments": given}} for name, given in calls]
    return {"role": "assistant", "tool_calls": made}


def episode(*, parallel: bool = False, later: bool = False) -> list[dict[str, Any]]:
    """Two calls, one after another or together, an answer, and then perhaps another turn of the user."""
    calls = [("loans.find", {"text": 'Émile "Z"'}), ("loans.renew", {"text": "b7", "count": 2})]
    told = [
        {"role": "tool", "name": name, "content": text}
        for (name, _), text in zip(calls, ('{"id": "b7"}', "true"), strict=True)
    ]
    start = [{"role": "system", "content": "You lend books."}, {"role": "user", "content": "Renew my book."}]
    if parallel:
        middle = [calling(*calls), *told]
    else:
        middle = [calling(calls[0]), told[0], calling(calls[1]), told[1]]
    end = [{"role": "assistant", "content": "It is renewed."}]
    more = [{"role": "user", "content": "And now?"}, calling(calls[0]), told[0], end[0]] if later else []
    return [*start, *middle, *end, *more]


def with_ids(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What templates want besides: ids of calls, and a content."""
    full: list[dict[str, Any]] = []
    ids: list[str] = []
    for message in messages:
        if "tool_calls" in message:
            ids = [f"call{number:05d}" for number in range(1, len(message["tool_calls"]) + 1)]
            entries = [{**call, "id": i} for call, i in zip(message["tool_calls"], ids, strict=True)]
            message = {**message, "content": "", "tool_calls": entries}
        elif message["role"] == "tool":
            message = {**message, "tool_call_id": ids.pop(0)}
        full.append(message)
    return full


def rolled_out(
    lang: Template, messages: Sequence[dict[str, Any]], *, real: bool = False
) -> tuple[list[int], list[int]]:
    """Ids and role ids of an episode: the prompt, each message as a model writes it, and what `extend` adds.

    With `real`, the environment answers: responses are added, and not written.
    """
    ids = lang.render(messages[:2], TOOLS, prompt="act")
    roles = [GIVEN] * len(ids)
    place = 2
    while place < len(messages):
        message = messages[place]
        role = "act" if message["role"] == "assistant" else message["name"]
        # What a model writes after the header is what the language renders there; `ended` cuts it off.
        header = lang.render(messages[:place], TOOLS, prompt=role)
        whole = lang.render(messages[: place + 1], TOOLS)
        assert whole[: len(header)] == header
        written = whole[len(header) :]
        ends = [lang.ended(written[:n], role) for n in range(1, len(written) + 1)]
        assert ends == [False] * (len(written) - 1) + [True], (
            "a message ends with its last token, and not before"
        )
        ids += written
        roles += [ACT if role == "act" else REHEARSE] * len(written)
        new = 0
        while place + new + 1 < len(messages) and (
            messages[place + new + 1]["role"] == "user"
            or (real and messages[place + new + 1]["role"] == "tool")
        ):
            new += 1
        place += new + 1
        if place < len(messages):
            following = messages[place]
            writer = "act" if following["role"] == "assistant" else following["name"]
            added = lang.extend(messages[:place], TOOLS, writer, new=new, sampled=written)
            ids += added
            roles += [GIVEN] * len(added)
    return ids, roles


def own_rendering(lang: Template, messages: Sequence[dict[str, Any]]) -> str:
    """By the template alone. Where it forgets the system's words, they stand before those of the user."""
    if not lang._system:
        first, second, *others = messages
        messages = [{**second, "content": f"{first['content']}\n\n{second['content']}"}, *others]
    options = dict(lang.options)
    return str(lang.tokenizer.apply_chat_template(with_ids(messages), tools=TOOLS, tokenize=False, **options))


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_an_episode_is_what_the_template_renders(name: str) -> None:
    """The sampled ids and the added ones, joined, are the template's own rendering of the whole conversation."""
    lang = language(name)
    messages = episode()
    ids, _ = rolled_out(lang, messages)
    # A user's turn follows, so that no template treats the last answer in a way of its own.
    further = [*messages, {"role": "user", "content": "Thanks."}]
    own = own_rendering(lang, further)
    if name in TOOLS_MOVE:
        own = own_rendering(lang, messages)  # its tools move to the last turn of the user
    if name == "gptoss":  # the model ends its answer with <|return|>; only later that becomes <|end|>
        own = own.replace("renewed.<|end|>", "renewed.<|return|>")
    text = lang.decode(ids)
    assert own.startswith(text)
    assert list(lang.tokenizer(own, add_special_tokens=False).input_ids)[: len(ids)] == ids
    assert ids == lang.render(messages, TOOLS)


@pytest.mark.parametrize("name", WITH_TOOLS + WITHOUT)
@pytest.mark.parametrize("tools", ["auto", "plain"])
def test_role_ids_by_the_spans_of_the_contents(name: str, tools: str) -> None:
    """Each role's tokens are its content and what ends it, counted in the text, with no header."""
    if tools == "auto" and name in WITHOUT:
        return
    lang = language(name, tools)
    messages = episode(later=True)
    ids, roles = rolled_out(lang, messages)
    assert lang.role_ids(lang.render(messages, TOOLS)) == roles
    if tools == "plain":
        assert ids == lang.render(messages, TOOLS)
    for wanted, role in ((REHEARSE, "tool"), (ACT, "assistant")):
        spans = "".join(lang.decode([i]) if r == wanted else "\0" for i, r in zip(ids, roles, strict=True))
        written = [part for part in re.split("\0+", spans) if part]
        of_role = [message for message in messages if message["role"] == role]
        assert len(written) == len(of_role)
        for text, message in zip(written, of_role, strict=True):
            words = message.get("content") or message["tool_calls"][0]["function"]["name"]
            if role == "tool" and lang._shown["tool"](words) != words:
                words = json.dumps(words)[1:-1]
            assert words in text
            if role == "tool":
                assert text.startswith(words)
                assert text[len(words) :] == RESPONSE_ENDS[tools == "plain"][name]


@pytest.mark.parametrize("name", WITH_TOOLS + WITHOUT)
@pytest.mark.parametrize("tools", ["auto", "plain"])
def test_real_responses_get_the_ids_of_rehearsed_ones(name: str, tools: str) -> None:
    if tools == "auto" and name in WITHOUT:
        return
    lang = language(name, tools)
    messages = episode(later=True)
    assert rolled_out(lang, messages, real=True)[0] == rolled_out(lang, messages)[0]


@pytest.mark.parametrize("name", sorted(set(WITH_TOOLS) - SINGLE))
def test_two_calls_of_one_message(name: str) -> None:
    """They are answered one after another; templates that join their responses in one turn do so here, too."""
    lang = language(name)
    assert lang.parallel
    messages = episode(parallel=True)
    ids, _ = rolled_out(lang, messages)
    own = own_rendering(
        lang, messages if name in TOOLS_MOVE else [*messages, {"role": "user", "content": "Thanks."}]
    )
    assert own.replace("call00002", "call00001").startswith(
        lang.decode(ids).replace("call00002", "call00001")
    )
    assert rolled_out(lang, messages, real=True)[0] == ids
    header = len(lang.render(messages[:2], TOOLS, prompt="act"))
    read = lang.read_act(lang.render(messages[:3], TOOLS)[header:], TOOLS)
    assert read == messages[2]


@pytest.mark.parametrize("name", sorted(SINGLE))
def test_a_template_of_one_call_a_message_refuses_two(name: str) -> None:
    lang = language(name)
    assert not lang.parallel
    call = lang.decode(written(lang, calling(("loans.find", {})))[:-1])
    with pytest.raises(ToolError, match="malformed"):
        read(lang, call + call)


@pytest.mark.parametrize(
    "name", ["qwen3", "gptoss", "glm4moe", "gemma4", "llama3_1", "mistral", "hermes", *MISTRAL]
)
def test_what_was_read_stays_when_the_user_speaks_again(name: str) -> None:
    """Some templates rewrite the earlier turns then; here they stay, and the rest is the template's own."""
    lang = language(name)
    ids, _ = rolled_out(lang, episode(later=True))
    first, _ = rolled_out(lang, episode())
    assert ids[: len(first)] == first
    own = own_rendering(lang, [*episode(later=True), {"role": "user", "content": "Thanks."}])
    after = lang.decode(ids[len(first) :]).split("And now?")[1]
    if name == "gptoss":
        own = own.replace("renewed.<|end|>", "renewed.<|return|>")
    if name in TOOLS_MOVE:
        own = own_rendering(lang, episode(later=True))
        assert lang.decode(ids).count("[AVAILABLE_TOOLS]") == 1
    assert own.split("And now?")[1].startswith(after)


def test_templates_that_rewrite_are_found() -> None:
    assert [name for name in WITH_TOOLS if language(name).rewrites] == ["qwen3", "glm4moe", *TOOLS_MOVE]


def test_thinking_is_kept_in_the_ids_and_taken_from_the_message() -> None:
    lang = language("qwen3")
    start = lang.render(episode()[:2], TOOLS, prompt="act")
    call = '<tool_call>\n{"name": "loans.find", "arguments": {}}\n</tool_call>'
    text = f"<think>\nWhich book?\n</think>\n\n{call}<|im_end|>"
    sampled = encoded(lang, text)
    message = lang.read_act(sampled, TOOLS)
    assert message == calling(("loans.find", {}))
    added = lang.extend([*episode()[:2], message], TOOLS, "loans.find", sampled=sampled)
    assert lang.decode([*start, *sampled, *added]).endswith(
        f"assistant\n{text}\n<|im_start|>user\n<tool_response>\n"
    )
    assert lang.read_act(encoded(lang, "<think>hm</think>\n\nDone.<|im_end|>"), TOOLS)["content"] == "Done."
    with pytest.raises(ToolError, match="malformed"):
        lang.read_act(encoded(lang, "<think>and on and on<|im_end|>"), TOOLS)


def encoded(lang: Template, text: str) -> list[int]:
    return list(lang.tokenizer(text, add_special_tokens=False).input_ids)


def written(lang: Template, message: dict[str, Any]) -> list[int]:
    """A message as the language writes it after the user."""
    start = episode()[:2]
    return lang.render([*start, message], TOOLS)[len(lang.render(start, TOOLS, prompt="act")) :]


def read(lang: Template, text: str) -> dict[str, Any]:
    return lang.read_act(encoded(lang, text), TOOLS)


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
)
TEXTS = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]) | st.sampled_from('\n\t{}[]":,\\<>')
)
TEXTS |= st.sampled_from(
    ["007", "1.0", "true", "null", "None", "", "a\nb", '{"a": 1}', "}, {", "<b>", "it's"]
)
KEYS = st.from_regex(r"[a-z_]{1,6}", fullmatch=True)
VALUES = st.recursive(
    LEAVES | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "text": TEXTS,
        "count": st.integers(-(10**12), 10**12),
        "share": st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9),
        "on": st.booleans(),
        "items": st.lists(VALUES, max_size=3),
        "more": st.dictionaries(KEYS, VALUES, max_size=3),
    },
)


def same(one: Any, other: Any) -> bool:
    """Equal in value and kind: 1 is neither 1.0 nor true."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


@pytest.mark.parametrize("name", [*WITH_TOOLS, "plain"])
def test_arguments_survive_writing_and_reading(name: str) -> None:
    lang = language("phi3", "plain") if name == "plain" else language(name)

    @settings(max_examples=60)
    @given(ARGUMENTS)
    def survives(arguments: dict[str, Any]) -> None:
        back = lang.read_act(written(lang, calling(("loans.renew", arguments))), TOOLS)
        assert same(back, calling(("loans.renew", arguments)))

    survives()


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_a_response_survives_quoting(name: str) -> None:
    """A response that the template shows in quotes, or between marks, is read without them."""
    lang = language(name)
    for content in ('{"error": "LoanError", "message": "no \\"b9\\""}', "Émile\nZola", "", "[1, 2.0, null]"):
        messages = [*episode()[:3], {"role": "tool", "name": "loans.find", "content": content}]
        header = lang.render(messages[:3], TOOLS, prompt="loans.find")
        ids = lang.render(messages, TOOLS)[len(header) :]
        assert lang.ended(ids, "loans.find")
        assert lang.read(ids, "loans.find") == content


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_a_call_that_is_none(name: str) -> None:
    """Cut anywhere, with an unlisted name, or with arguments that are no object: malformed, and never an answer."""
    lang = language(name)
    message = calling(("loans.find", {"text": "a"}))
    whole = lang.decode(written(lang, message)).removesuffix(lang._end["call"])
    assert read(lang, whole) == message
    begin = whole.index("loans.find")
    for end in range(begin + len("loans.find"), len(whole.rstrip())):
        with pytest.raises(ToolError, match="malformed"):
            read(lang, whole[:end])
    for broken in {whole.replace("loans.find", "loans.lose"), whole.replace("{", "", 1)} - {whole}:
        with pytest.raises(ToolError, match="malformed"):
            read(lang, broken)
    answer = {"role": "assistant", "content": "There is no such book."}
    assert lang.read_act(written(lang, answer), TOOLS) == answer


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3", '<tool_call>{"name": "loans.find", "arguments": {"share": NaN}}</tool_call>'),
        ("qwen3", '<tool_call>{"name": "loans.find", "arguments": "{}"}</tool_call>'),
        ("qwen3", '{"name": "loans.find", "arguments": {}}'),
        ("qwen3", '{"name": "loans.find", "arguments": {}}\n</tool_call>'),
        ("mistral", "[TOOL_CALLS] []"),
        ("mistral", '[TOOL_CALLS] [{"name": "loans.find", "arguments": {}}] and more'),
        ("llama3_1", '<|python_tag|>loans.find.call(text="a")'),
        ("gptoss", '<|channel|>commentary to=browser.open<|message|>{"id": 1}'),
        ("gemma4", "<|tool_call>call:loans.find{text:a}<tool_call|>"),
        ("glm4moe", "<tool_call>loans.find\n<arg_key>text</arg_key>\nrenew\n</tool_call>"),
    ],
)
def test_what_looks_like_a_call_is_no_answer(name: str, text: str) -> None:
    with pytest.raises(ToolError, match="malformed"):
        read(language(name), text)


def test_nothing_is_evaluated() -> None:
    for name in WITH_TOOLS:
        lang = language(name)
        text = lang.decode(written(lang, calling(("loans.find", {"text": "__import__('os').abort()"}))))
        assert read(lang, text)["tool_calls"][0]["function"]["arguments"] == {
            "text": "__import__('os').abort()"
        }


def test_other_tokens_may_end_a_message() -> None:
    """The token that was sampled stays in the place of the template's."""
    llama = language("llama3_1")
    sampled = encoded(llama, '<|python_tag|>{"name": "loans.find", "parameters": {}}<|eom_id|>')
    assert llama.ended(sampled, "act")
    message = llama.read_act(sampled, TOOLS)
    added = llama.extend([*episode()[:2], message], TOOLS, "loans.find", sampled=sampled)
    assert llama.decode(added) == '<|start_header_id|>ipython<|end_header_id|>\n\n"'
    gpt = language("gptoss")
    sampled = encoded(
        gpt,
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Yes<|return|>",
    )
    assert not any(gpt.ended(sampled[:n], "act") for n in range(1, len(sampled)))
    assert gpt.read_act(sampled, TOOLS) == {"role": "assistant", "content": "Yes"}
    answered = [*episode()[:2], {"role": "assistant", "content": "Yes"}, {"role": "user", "content": "Good"}]
    added = gpt.extend(answered, TOOLS, "act", new=1, sampled=sampled)
    assert gpt.decode(added) == "<|start|>user<|message|>Good<|end|><|start|>assistant"
    plain = language("gptoss", "plain")
    final = '<|channel|>final<|message|>{"name": "loans.find", "arguments": {}}'
    assert read(plain, f"<|channel|>analysis<|message|>hm<|end|><|start|>assistant{final}") == calling(
        ("loans.find", {})
    )
    real = "<|channel|>commentary to=functions.loans.find <|constrain|>json<|message|>{}<|call|>"
    assert read(gpt, real) == calling(("loans.find", {}))


def test_a_response_may_end_early_or_with_a_merged_token() -> None:
    """The end of a turn ends a response, too; letters that came with the last token stay, and are not added again."""
    qwen = language("qwen2_5")
    messages = [*episode()[:3], {"role": "tool", "name": "loans.find", "content": "7"}]
    early = encoded(qwen, "7<|im_end|>")
    assert qwen.ended(early, "loans.find")
    assert qwen.read(early, "loans.find") == "7"
    assert qwen.decode(qwen.extend(messages, TOOLS, "act", sampled=early)) == "\n<|im_start|>assistant\n"
    merged = encoded(qwen, "7\n</tool_response>\n")
    assert qwen.ended(merged, "loans.find")
    assert qwen.read(merged, "loans.find") == "7"
    assert (
        qwen.decode(qwen.extend(messages, TOOLS, "act", sampled=merged))
        == "<|im_end|>\n<|im_start|>assistant\n"
    )
    assert qwen.decode(qwen.extend(messages, TOOLS, "loans.renew", sampled=merged)) == "<tool_response>\n"


@pytest.mark.parametrize("name", WITHOUT)
def test_a_template_without_tools(name: str) -> None:
    """It is refused in one sentence, as it is; with the plain format a whole episode works."""
    with pytest.raises(PolicyError, match=r'tools="plain"') as refusal:
        language(name)
    assert str(refusal.value).count(". ") == 0
    plain = language(name, "plain")
    assert plain.format == "plain"
    ids, roles = rolled_out(plain, episode(later=True))
    text = plain.decode(ids)
    assert '"loans.renew"' in text
    assert "Response of loans.find:\n" in text
    assert set(roles) == {GIVEN, ACT, REHEARSE}
    call = 'I look.\n{"name": "loans.find", "arguments": {"text": "x"}}'
    assert read(plain, call) == calling(("loans.find", {"text": "x"}))
    assert read(plain, '{"total": 3}') == {"role": "assistant", "content": '{"total": 3}'}
    with pytest.raises(ToolError, match="malformed"):
        read(plain, '{"name": "loans.find", "arguments": {"text": "x"}')


def test_what_a_tokenizer_says_of_its_own_responses_is_used() -> None:
    tokenizer = tokenizer_for("qwen2_5", source("qwen2_5"))
    tokenizer.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "tool_calls": {
                "open": "<tool_call>",
                "close_pattern": r"</tool_call>\s*",
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {"content": "text"},
        },
    }
    lang = Template(tokenizer)
    assert lang.calls == "response_template"
    message = calling(("loans.find", {"text": "a"}))
    assert lang.read_act(written(lang, message), TOOLS) == message


def test_templates_that_cannot_be_used() -> None:
    template = OWN["hermes"]
    with pytest.raises(PolicyError, match="no chat template"):
        Template(tokenizer_for("hermes", ""))
    numbered = template.replace("{{ m.role }}", "{{ m.role }}{{ loop.index if m.role == 'user' }}")
    with pytest.raises(PolicyError, match="its place"):
        Template(tokenizer_for("hermes", numbered))
    with pytest.raises(PolicyError, match="no reader"):
        Template(tokenizer_for("hermes", template.replace('"name"', '"tool"')))
    with pytest.raises(PolicyError, match="no special token"):
        Template(
            tokenizer_for(
                "hermes", template.replace("<|im_end|>", "(end)").replace("<|im_start|>", "(start)")
            )
        )
    with pytest.raises(ValueError, match="auto"):
        Template(tokenizer_for("hermes", template), "none")
    for part in ("{{ tools | tojson }}", "{{ call.function.name }}", "{{ m.content }}\n</tool_response>"):
        assert part in template
        with pytest.raises(PolicyError, match="does not render tools"):
            Template(tokenizer_for("hermes", template.replace(part, "")))


def test_who_speaks_alike() -> None:
    assert language("qwen3").speaks_like(Template(tokenizer_for("qwen3", source("qwen3"))))
    assert not language("qwen3").speaks_like(language("qwen2_5"))
    assert not language("qwen3").speaks_like(language("qwen3", "plain"))
    assert set(FORMATS) >= {language(name).calls for name in WITH_TOOLS}


class Scripted:
    """What `Row` asks of a policy; the test chooses the tokens in its place."""

    context = 100_000

    def __init__(self, chat: Template):
        self.chat = chat


@pytest.mark.parametrize("name", ["qwen3", "llama3_2", "gptoss", "gemma4", "glm4moe", "mistral", "plain"])
def test_the_engine_speaks_it(name: str) -> None:
    """A malformed call is told, a call is rehearsed, and the record is the language's rendering of what was said."""
    lang = language("gemma3", "plain") if name == "plain" else language(name)
    task = find_task("orders")
    called = task.tools[0]["function"]
    call = (called["name"], dict.fromkeys(called["parameters"]["properties"], "o1"))
    row = Row(
        Scripted(lang),
        Trajectory(task, lang.render(task.messages, task.tools, prompt="act")),
        Rehearse(),
        None,
    )
    wanted = [
        calling(("unlisted", {})),
        calling(call),
        "o1:paid ok",
        {"role": "assistant", "content": "done"},
    ]
    for message in wanted:
        if isinstance(message, str):
            before = row.trajectory.messages()
            start = lang.render(before, task.tools, prompt=call[0])
            told = [*before, {"role": "tool", "name": call[0], "content": message}]
        else:
            start = lang.render(task.messages, task.tools, prompt="act")
            told = [*task.messages, message]
        for token in lang.render(told, task.tools)[len(start) :]:
            while row.injected:
                row.take(-1, 0.0)
            row.take(token, -0.5)
    record = row.trajectory
    assert record.stop_reason == "answer"
    assert [message["role"] for message in record.said] == [
        "assistant",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert "no call of a listed tool" in record.said[1]["content"]
    assert record.answers == ["done"]
    assert record.exchanges[0][1].text == "o1:paid ok"
    assert record.outputs == {ACT: 3, REHEARSE: 1}
    sampled = [role for role, log_prob in zip(record.roles, record.log_probs, strict=True) if log_prob]
    assert set(sampled) == {ACT, REHEARSE}
    if (
        not lang._opening and lang._end["call"] == lang._end["answer"]
    ):  # else a malformed call is no answer's text
        assert [*record.prompt, *record.ids] == lang.render(record.messages(), task.tools)


@pytest.mark.parametrize("name", ["qwen2_5", "llama3_1", "mistral", "gemma4"])
@pytest.mark.parametrize("blanks", [False, True], ids=["bytes", "blanks"])
def test_tokenizers_with_long_tokens(name: str, blanks: bool) -> None:
    """Tokens that join letters, and tokenizers that put a blank before a text, do not change what is read."""
    plain = tokenizer_for(name, source(name))
    backend = Tokenizer(models.BPE())
    if blanks:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        backend.decoder = decoders.Metaspace(prepend_scheme="first")
    else:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
    corpus = [
        source(name),
        json.dumps(TOOLS),
        str(episode(later=True)),
        "\n".join(map(chr, range(32, 127))),
        "\n\té É",
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=[t.content for t in plain.added_tokens_decoder.values()],
        show_progress=False,
    )
    backend.train_from_iterator(corpus, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<bos>", pad_token="<pad>", eos_token=plain.eos_token
    )
    tokenizer.chat_template = plain.chat_template
    lang = Template(tokenizer, **language(name).options)
    ids, _ = rolled_out(lang, episode(later=True))
    assert len(ids) < 0.6 * len(rolled_out(language(name), episode(later=True))[0])
    assert lang.decode(ids) == language(name).decode(rolled_out(language(name), episode(later=True))[0])
    assert ids == lang.render(episode(later=True), TOOLS)
