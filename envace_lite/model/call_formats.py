"""How chat models write calls, and how what they wrote is read back.

A chat template shows how a call is written, but not how it is read. Six formats cover most of the models that call
tools; `template.Template` tries which of them reads what its template writes.

What is simplified: a reader takes the call that a template would have written, and little else. Nothing is evaluated,
and nothing is mended: a quote or a bracket that is missing makes a call malformed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

from envace_lite.model.language import Schemas

Calls = list[tuple[str, dict[str, Any]]]
"""Names with arguments."""
Reader = Callable[[str, Schemas], tuple[Calls, str]]
"""From what was written to the calls in it and the other words. Raises `ValueError` for a call that cannot be read."""

LOOKS_LIKE_A_CALL = re.compile(
    r'</?tool_call|\[TOOL_CALLS\]|<\|python_tag\|>|<\|?tool_call\|?>|to=functions\.|^\s*\{?\s*"name"\s*:'
)
_OPENING = re.compile(r"(?:^|(?<=[;}]))[ \t;]*(?:<\|python_tag\|>)?\s*(?=\{)", re.MULTILINE)
_THINKING = re.compile(r"\s*(<think>.*?</think>|<\|channel>thought.*?<channel\|>)", re.DOTALL)


def without_thinking(text: str) -> str:
    """A message without the blocks of thinking that it begins with.

    Raises:
        ValueError: the thinking does not end.
    """
    while block := _THINKING.match(text):
        text = text[block.end() :]
    if text.lstrip().startswith(("<think>", "<|channel>thought")):
        raise ValueError("the thinking does not end")
    return text.strip()


def tagged(text: str, tools: Schemas) -> tuple[Calls, str]:
    """`<tool_call>{"name": "f", "arguments": {}}</tool_call>`: Hermes, Qwen 2.5 and 3."""
    calls, said, at = [], "", 0
    while (start := text.find("<tool_call>", at)) >= 0:
        value, end = _json(text, start + len("<tool_call>"))
        close = re.compile(r"\s*</tool_call>").match(text, end)
        if not close:
            raise ValueError("the call is not closed")
        calls.append(_call(value))
        said, at = said + text[at:start], close.end()
    return calls, said + text[at:]


def bare(text: str, tools: Schemas) -> tuple[Calls, str]:
    """`{"name": "f", "parameters": {}}` at the start of a line: Llama 3, and the plain format of this library."""
    calls, said, at = [], "", 0
    while match := _OPENING.search(text, at):
        start = match.end()
        try:
            value, end = _json(text, start)
        except ValueError:
            if '"name"' in text[start:]:
                raise
            value, end = {}, start + 1  # a sentence that begins with a brace
        if "name" in value:
            calls.append(_call(value))
            said, at = said + text[at : match.start()], end
        else:  # an answer in JSON
            said, at = said + text[at:end], end
    return calls, said + text[at:]


def bracketed(text: str, tools: Schemas) -> tuple[Calls, str]:
    """`[TOOL_CALLS] [{"name": "f", "arguments": {}}]`, or `[TOOL_CALLS]f[ARGS]{}`: Mistral, older and newer."""
    said, *parts = text.split("[TOOL_CALLS]")
    calls: Calls = []
    for part in parts:
        named = re.match(r"\s*([^\s\[{]+)\s*(?:\[CALL_ID\]\w*)?\s*(?:\[ARGS\])?", part)
        value, end = _json(part, named.end() if named else 0)
        if part[end:].strip():
            raise ValueError("there is more than the call")
        values = {"name": named[1], "arguments": value} if named else value
        calls += [_call(entry) for entry in (values if isinstance(values, list) and values else [values])]
    return calls, said


def harmony(text: str, tools: Schemas) -> tuple[Calls, str]:
    """`<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}`: gpt-oss; analysis is left out."""
    calls: Calls = []
    said = ""
    for part in re.split(r"<\|start\|>assistant|<\|(?:end|call|return)\|>", text):
        header, found, body = part.partition("<|message|>")
        receiver = re.search(r"to=([^\s<]+)", header)
        if found and receiver:
            value, end = _json(body, 0)
            if not receiver[1].startswith("functions.") or body[end:].strip():
                raise ValueError("there is more than the call, or no function is called")
            calls.append(_call({"name": receiver[1].removeprefix("functions."), "arguments": value}))
        elif not found or "final" in header:
            said += body or header
    return calls, said


def _marked_up(block: str, pair: str) -> Reader:
    """A reader of formats with one element an argument: a text has no quotes, and the schema tells it from a number."""

    def read(text: str, tools: Schemas) -> tuple[Calls, str]:
        blocks = list(re.finditer(block, text, re.DOTALL))
        if len(blocks) != text.count("<tool_call>"):
            raise ValueError("the call is not closed")
        calls: Calls = []
        for name, body in (match.groups() for match in blocks):
            if not re.fullmatch(f"(?:{pair})*", body, re.DOTALL):
                raise ValueError("the arguments cannot be read")
            kinds = _kinds(name, tools)
            pairs = (match.groups() for match in re.finditer(pair, body, re.DOTALL))
            calls.append((name, {key: _typed(value, kinds.get(key)) for key, value in pairs}))
        return calls, re.sub(block, "", text, flags=re.DOTALL)

    return read


def braced(text: str, tools: Schemas) -> tuple[Calls, str]:
    """`<|tool_call>call:f{key:<|"|>text<|"|>}<tool_call|>`: Gemma 4, where keys have no quotes, and null is `None`."""
    calls: Calls = []
    said, *parts = text.split("<|tool_call>")
    for part in parts:
        match = re.fullmatch(r"call:([^\s{]+)(\{.*\})<tool_call\|>(.*)", part, re.DOTALL)
        if not match:
            raise ValueError("the call cannot be read")
        # Every second part is a text, and all that is in it stays as it is.
        places = match[2].split('<|"|>')
        for place, words in enumerate(places):
            if place % 2:
                places[place] = json.dumps(words)
            else:
                keyed = re.sub(r"(?<=[{,])\s*([^\s{},:\[\]\"]+)\s*:", r'"\1":', words)
                places[place] = re.sub(r"\bNone\b(?!\":)", "null", keyed)
        value, _ = _json("".join(places), 0)
        calls.append(_call({"name": match[1], "arguments": value}))
        said += match[3]
    return calls, said


FORMATS: dict[str, Reader] = {
    "tagged": tagged,
    "bare": bare,
    "bracketed": bracketed,
    "harmony": harmony,
    "braced": braced,
    "elements": _marked_up(  # GLM 4
        r"<tool_call>\s*([^\s<]+)\s*(.*?)</tool_call>",
        r"<arg_key>([^<]+)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*",
    ),
    "functions": _marked_up(  # Qwen 3 Coder
        r"<tool_call>\s*<function=([^>\s]+)>\s*(.*?)</function>\s*</tool_call>",
        r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>\s*",
    ),
}
"""The formats by name, in the order in which they are tried."""


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def _json(text: str, start: int) -> tuple[Any, int]:
    """The JSON value that begins at `start`, blanks aside, and where it ends."""
    while text[start : start + 1].isspace():
        start += 1
    return _DECODER.raw_decode(text, start)


def _call(value: Any) -> tuple[str, dict[str, Any]]:
    """Name and arguments of an object that describes a call."""
    fields = value if isinstance(value, dict) else {}
    name, arguments = fields.get("name"), fields.get("arguments", fields.get("parameters"))
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ValueError("a call has a name, and an object of arguments")
    return name, arguments


def _kinds(name: str, tools: Schemas) -> dict[str, Any]:
    """Types of the parameters of a tool, as far as its schema tells them."""
    for body in (tool["function"] for tool in tools):
        if body["name"] == name:
            return {key: about.get("type") for key, about in body["parameters"].get("properties", {}).items()}
    return {}


def _typed(text: str, kind: Any) -> Any:
    if kind == "string":
        return text
    try:
        value, end = _json(text, 0)
    except ValueError:
        return text
    return text if text[end:].strip() else value
