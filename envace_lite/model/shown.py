"""What a chat template shows: how it wants its messages, and what ends a message of each kind.

Nothing here knows a template by name. Small conversations are rendered with a mark in the place of each content, and
cut at the marks; what stands between two marks belongs to the template.

What is simplified: what stands between two messages may depend on their roles and on the name of a tool, and on
nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product, takewhile
from typing import Any

from jinja2.exceptions import TemplateError

from envace_lite.model.language import Message, Schemas
from envace_lite.model.policy import PolicyError
from envace_lite.world.tools import ToolCall

WAYS = ("auto", "plain")
"""How tools are shown: in the template's own way, or in the plain format."""
USE_PLAIN = 'choose Template(tokenizer, tools="plain")'
PLAIN = """You can call these tools:
{tools}
To call one, answer with one line of JSON, {{"name": ..., "arguments": {{...}}}}, and with nothing else."""
"""What the system message says in the plain format."""
RESPONSE = "Response of {name}:\n"
"""What a response begins with in the plain format; it stands in a turn of the user."""

MARK, NEXT = "first9mark", "second9mark"
NAMES = "name9of9one", "name9of9other"
CALL_ID = "call{:05d}"  # nine letters and digits: Mistral's templates want so many
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
QUOTED = _SHOWN[2]


def a_tool(name: str) -> dict[str, Any]:
    """The schema of a small tool."""
    key = {"type": "string", "description": "A key."}
    parameters = {"type": "object", "properties": {"key": key}, "required": ["key"]}
    return {"type": "function", "function": {"name": name, "description": "Look.", "parameters": parameters}}


def a_user(text: str = "hello") -> dict[str, Any]:
    """A message of the user."""
    return {"role": "user", "content": text}


def an_answer(text: str = "bye") -> dict[str, Any]:
    """An answer of the assistant."""
    return {"role": "assistant", "content": text}


def some_calls(*keys: str) -> dict[str, Any]:
    """A message with a call for each key."""
    made = [ToolCall(name, {"key": key}).to_message() for name, key in zip(NAMES, keys, strict=False)]
    return {"role": "assistant", "tool_calls": made}


def a_response(text: str = "yes", name: str = NAMES[0]) -> dict[str, Any]:
    """The response of a tool."""
    return {"role": "tool", "name": name, "content": text}


def _common(one: str, other: str) -> str:
    """What both begin with."""
    return "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


TOOLS = [a_tool(name) for name in NAMES]
_BETWEEN: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("user", "act"): [a_user(MARK)],
    ("user", "user"): [a_user(MARK), a_user(NEXT)],
    ("call", "tool"): [a_user(), some_calls(MARK), a_response(NEXT)],
    ("answer", "user"): [a_user(), an_answer(MARK), a_user(NEXT)],
    ("answer", "act"): [a_user(), an_answer(MARK)],
    ("tool", "tool"): [a_user(), some_calls("a", "b"), a_response(MARK), a_response(NEXT, NAMES[1])],
    ("tool", "act"): [a_user(), some_calls("a"), a_response(MARK)],
    ("tool", "user"): [a_user(), some_calls("a"), a_response(MARK), a_user(NEXT)],
}
"""The small conversations: what stands between a message of the one kind and one of the other."""


def kind_of(message: Message) -> str:
    """`system`, `user`, `call`, `answer` or `tool`."""
    if message["role"] == "assistant":
        return "call" if message.get("tool_calls") else "answer"
    return str(message["role"])


class Shown:
    """What a tokenizer's chat template shows; for the arguments and errors see `template.Template`."""

    parallel: bool

    def __init__(self, tokenizer: Any, tools: str = "auto", **options: Any):
        if tools not in WAYS:
            raise ValueError(f"tools are shown in a way of {' or '.join(WAYS)}, not {tools!r}")
        if not tokenizer.chat_template:
            raise PolicyError("this tokenizer has no chat template; set tokenizer.chat_template")
        self.tokenizer, self.options = tokenizer, options
        self.format = "plain" if tools == "plain" else "template"
        added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        special = sorted({*added, *tokenizer.all_special_tokens}, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, special)) or r"(?!)")
        self._glue = cache(self._found_between)
        self._learn_style()
        self._learn_ends()

    def _learn_style(self) -> None:
        """How the template wants system messages, arguments and the missing content of a call."""
        self._system, self._arguments_as_text = True, False
        self._empty: dict[str, Any] = {}
        # A template may tell it to the last user alone; then it is told to the first one, where it stays.
        system = self._try([{"role": "system", "content": MARK}, a_user(NEXT), an_answer()])
        self._system = -1 < system.find(MARK) < system.find(NEXT)
        conversation = [a_user(), some_calls(MARK), a_response(NEXT), an_answer("bye")]
        for self._arguments_as_text, self._empty in product((False, True), _EMPTY):
            text = self._try(conversation, TOOLS)
            # Both tools are described, and one is called by its name.
            if all(text.count(word) >= 1 for word in (*NAMES, MARK, NEXT)) and text.count(NAMES[0]) >= 2:
                break
        else:
            what = "tools, calls and responses" if self.format == "template" else "a user and an assistant"
            hint = f"; {USE_PLAIN}" if self.format == "template" else ""
            raise PolicyError(f"this tokenizer's chat template does not render {what}{hint}")
        both = self._try([a_user(), some_calls(MARK, NEXT), a_response()], TOOLS)
        self.parallel = MARK in both and NEXT in both and self._glue("tool", "tool") is not None
        texts = (
            ("user", [a_user(), an_answer(), a_user(_AWKWARD)]),
            ("answer", [a_user(), an_answer(_AWKWARD), a_user()]),
            ("tool", [a_user(), some_calls("a"), a_response(_AWKWARD)]),
        )
        self._shown = {}
        for kind, messages in texts:
            text = self._try(messages, TOOLS if kind == "tool" else ())
            fits = [shown for shown in _SHOWN if shown(_AWKWARD) in text]
            if not fits:
                raise PolicyError(
                    f"this tokenizer's chat template changes what a message says ({kind}); {USE_PLAIN}"
                )
            self._shown[kind] = fits[0]

    def _learn_ends(self) -> None:
        """What ends a message of each kind, and what an answer begins with."""
        header = self._text([a_user()], (), prompt=True)
        answered = self._text([a_user(), an_answer(MARK), a_user()], ())
        if not answered.startswith(header):
            raise PolicyError(
                "this tokenizer's chat template asks the assistant to write after other words than those that stand "
                f"before its earlier turns ({header[-20:]!r}); try another of its options, or another template"
            )
        self._opening = answered[len(header) : answered.index(MARK)]
        self._begun = "<think>" if header.rstrip().endswith("<think>") else ""
        # A call may be followed by another one: what is the same then closes the call, and the message ends after it.
        called = (
            self._text([a_user(), some_calls(MARK), a_response(NEXT)], TOOLS)
            .partition(MARK)[2]
            .partition(NEXT)[0]
        )
        again = self._try([a_user(), some_calls(MARK, "b"), a_response()], TOOLS).partition(MARK)[2]
        closing = _common(called, again) if self.parallel else ""
        self._end = {"call": "", "answer": "", "tool": "", "user": ""}
        stop = next((m for m in self._special.finditer(called) if m.end() > len(closing)), None)
        self._end["call"] = stop[0] if stop else ""
        self._call_glue = called[stop.start() :] if stop else ""
        # A last answer may end in another token than an earlier one; the model writes that of a last one.
        last = self._text([a_user(), an_answer(MARK)], ()).partition(MARK)[2]
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
        pattern = re.escape(self._end["tool"]).replace(re.escape(CALL_ID.format(1)), r"\w*")
        self._tool_end = re.compile(pattern)

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
                    entries.append({"type": "function", "id": CALL_ID.format(number), "function": function})
                waiting = iter([entry["id"] for entry in entries])
                message = {"role": "assistant", **self._empty, "tool_calls": entries}
            elif message["role"] == "tool":
                message = {**message, "tool_call_id": next(waiting, CALL_ID.format(1))}
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
                told.append(an_answer(lines))
            elif message["role"] == "tool":
                told.append(a_user(RESPONSE.format(name=message["name"]) + message["content"]))
            else:
                told.append(dict(message))
        return told

    def _found_between(self, before: str, after: str) -> str | None:
        """What stands between a message `before` and a message `after`, with the name of the tool marked."""
        messages = _BETWEEN.get((before, after), [a_user()])
        # The user's turns are rendered without tools: some templates move the description of tools to the last one.
        tools = TOOLS if "tool" in (before, after) and after != "user" else ()
        text = self._try(messages, tools, prompt=after == "act")
        _, found, text = text.rpartition(MARK) if before != "call" else text.partition(MARK)
        if after != "act":
            text, reached, _ = text.partition(NEXT)
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
