"""Tools: typed Python functions that a policy may call, and the records of calling them.

What is simplified against the paper and its benchmarks:

1. A world is one flat dictionary of records (`"o3" -> "pending"`, `"wallet" -> 7`), not a database.
2. A response is a short sentence with a fixed order: the records that the tool looked at, the verdict
   (`ok` or `error RULE`), the records that it changed. A rehearsed response can so be compared with a
   real one leaf by leaf, and each part of it is one step of reasoning away from the conversation.
3. A call's arguments are words and small whole numbers.

Model text is never evaluated as code: it is split into words, matched with the tool's JSON schema, and
validated by `jsonschema`; the function is looked up by name.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, get_type_hints

from jsonschema import Draft202012Validator, validators
from transformers.utils import get_json_schema

from envace_lite.world.result import ABSTAIN, JSON, MALFORMED, Result

Value = str | int
UNKNOWN = "unknown"
"""The value of a record that does not exist, and the rule that a call breaks which names one."""
RULES = (UNKNOWN, *"type status stock wallet time funds full limit date range none busy".split())
"""Every rule that a tool of the toy worlds can name when it refuses a call."""
FACTS = ("found", "count", "total", "left", "cost")
"""What a tool works out and shows: the name that it found, and amounts that are no record."""
NOTHING: Mapping[str, Value] = {}
"""No record changes."""
MAX_VALUE = 9
"""The largest amount that a record can hold: amounts are single digits."""


class ToolError(Exception):
    """A tool refuses a call. The only exception that calling a tool may raise.

    Args:
        rule: one word that names the broken rule, e.g. `status`, `funds`, `unknown`, `type`.
    """

    def __init__(self, rule: str):
        super().__init__(rule)
        self.rule = rule


class World:
    """The records of one episode, and what the current call looked at and changed.

    A tool function receives a world as its first argument and uses four verbs: `see`, `need`, `set`
    and `add`. Changes are kept aside until the call ends well (`World.run`), so a refused call leaves no trace.
    """

    def __init__(self, records: Mapping[str, Value]):
        self.records: dict[str, Value] = dict(records)
        self._seen: dict[str, Value] = {}
        self._changed: dict[str, Value] = {}

    def see(self, key: str) -> Value:
        """Look a record up and show it in the response; one that does not exist is shown, and refused, as `unknown`."""
        if key not in self.records:
            return self._unknown(key)
        self._seen.setdefault(key, self.records[key])
        return self._changed.get(key, self.records[key])

    def amount(self, key: str) -> int:
        """Look up a record that has to be a number; one that is a word is refused with `type`."""
        value = self.see(key)
        if isinstance(value, int):
            return value
        self.refuse("type")
        return 0  # reached only in a world that does not take its own refusals seriously (traces.Retelling)

    def need(self, key: str, *allowed: Value, rule: str = "status") -> None:
        """Refuse with `rule` unless the record holds one of the allowed values."""
        if self.see(key) not in allowed:
            self.refuse(rule)

    def set(self, key: str, value: Value) -> None:
        """Write a record; it takes effect when the call ends well."""
        self._changed[key] = value

    def add(self, key: str, amount: int, rule: str = "funds") -> None:
        """Add to a numeric record; refuses with `rule` below zero and with `full` above `MAX_VALUE`."""
        total = self.amount(key) + amount
        if total < 0:
            self.refuse(rule)
        if total > MAX_VALUE:
            self.refuse("full")
        self.set(key, min(max(total, 0), MAX_VALUE))

    def show(self, key: str, value: Value) -> None:
        """Show a fact that is not a record of this world: the length of a month, what a tool demands."""
        self._seen[key] = value

    def refuse(self, rule: str) -> None:
        """End the call with an error."""
        raise ToolError(rule)

    def _unknown(self, key: str) -> Value:
        self._seen[key] = UNKNOWN
        raise ToolError(UNKNOWN)

    def run(self, function: Callable[..., None], arguments: Mapping[str, Value]) -> ToolResponse:
        """Run one tool function as a transaction."""
        self._seen, self._changed = {}, {}
        try:
            function(self, **arguments)
        except ToolError as error:
            return ToolResponse(self._seen, error.rule, {})
        self.records.update(self._changed)
        return ToolResponse(self._seen, None, self._changed)


@dataclass(frozen=True)
class ToolCall:
    """A call, as data. `arguments` keeps the order of the tool's parameters."""

    name: str
    arguments: Mapping[str, JSON] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The compact sentence, `cancel_order o3`, where each argument is one word; else `lend {"to": "Ana Lee"}`."""
        values = self.arguments.values()
        return " ".join([self.name, *map(str, values)]) if all(map(_is_word, values)) else self.full_text

    @property
    def full_text(self) -> str:
        """The call with its arguments as JSON, which names them: some may be left out."""
        return f"{self.name} {json.dumps(dict(self.arguments), ensure_ascii=False)}"

    def to_message(self) -> dict[str, Any]:
        """The entry of an assistant message's `tool_calls`."""
        return {"type": "function", "function": {"name": self.name, "arguments": dict(self.arguments)}}

    @classmethod
    def from_message(cls, entry: Mapping[str, Any]) -> ToolCall:
        """Read such an entry back."""
        return cls(entry["function"]["name"], dict(entry["function"]["arguments"]))

    def __hash__(self) -> int:
        return hash(self.text)


def _is_word(value: JSON) -> bool:
    """Whether the compact language can say an argument: it is one word or number, and is read back as the same."""
    if not isinstance(value, str | int) or isinstance(value, bool):
        return False
    text = str(value)
    # One that begins like JSON, or is the word between two calls, would be read as something else.
    one = bool(text) and not text.startswith("{") and not re.search(r"\s", text) and text != "and"
    return one and as_value(text) == value


Exchange = tuple[ToolCall, Result]
"""A call and what it brought."""


def exchange_messages(call: ToolCall, response: Result) -> list[dict[str, Any]]:
    """A call and its response as two messages in the standard form."""
    told = {"role": "tool", "name": call.name, "content": response.text}
    return [{"role": "assistant", "tool_calls": [call.to_message()]}, told]


class ToolResponse(Result):
    """The result of a toy world's tool: records seen, the broken rule (or None), records changed.

    A path of `changed` is the name of a record, since the state is flat. `seen` is the value under the name that it has
    in these worlds; the other arguments of a `Result` are there for `dataclasses.replace`, which hands them on.
    """

    def __init__(
        self,
        seen: Mapping[str, Value] | None = None,
        error: str | None = None,
        changed: Mapping[str, Value] = NOTHING,
        *,
        value: Mapping[str, Value] | None = None,
        message: str = "",
        told: bool = True,
    ):
        super().__init__(value if seen is None else seen, error, message, changed, told)

    @property
    def text(self) -> str:
        """The compact sentence, `o3:pending needs:pending ok o3:cancelled` or `o3:sent needs:pending error status`."""
        verdict = "ok" if self.error is None else f"error {self.error}"
        return " ".join([*records(self.seen), verdict, *records(self.changed)])

    def same(self, other: Result) -> bool:
        """Whether both are the same sentence."""
        return self.text == other.text

    def parts(self) -> dict[str, str]:
        """A response taken apart: slot -> content. Slots are `seen KEY`, `verdict` and `changed KEY`.

        The words `o1:pending needs:paid error status` have the parts `seen o1`, `seen needs` and `verdict`.
        """
        verdict = "ok" if self.error is None else f"error {self.error}"
        return {
            **{f"seen {key}": str(value) for key, value in self.seen.items()},
            **({} if self.error in (MALFORMED, ABSTAIN) else {"verdict": verdict}),
            **{f"changed {key}": str(value) for key, value in self.changed.items()},
        }

    def __repr__(self) -> str:
        return f"ToolResponse(seen={self.seen!r}, error={self.error!r}, changed={self.changed!r})"

    @classmethod
    def parse(cls, text: str) -> ToolResponse:
        """Read a sentence back. One that is not well formed becomes an error with the rule `malformed`."""
        match = re.fullmatch(r"((?:\S+:\S+ )*)(?:ok((?: \S+:\S+)*)|error ([^\s:]+))", text.strip())
        if not match:
            return cls({}, MALFORMED, {})
        seen, changed = ([word.split(":", 1) for word in (part or "").split()] for part in match.groups()[:2])
        if any(len(dict(pairs)) < len(pairs) for pairs in (seen, changed)):  # no tool says a record twice
            return cls({}, MALFORMED, {})
        read = [{key: as_value(value) for key, value in pairs} for pairs in (seen, changed)]
        return cls(read[0], match.group(3), read[1])


def records(values: Mapping[str, Value]) -> list[str]:
    """Records as words of the compact language, `key:value`: one word each, so that looking one up is one step."""
    return [f"{key}:{value}" for key, value in values.items()]


def as_value(word: str) -> Value:
    """A word of the compact language as an argument: digits become an int."""
    return int(word) if re.fullmatch(r"[0-9]{1,9}", word) else word


class Tool:
    """A typed function with its documentation.

    Args:
        name: what the policy calls it.
        function: `function(world, **arguments) -> None` with type hints (`str` or `int`) and a Google-style
            docstring; its first parameter is the `World`.
        write: whether a call can change a record.
        owner: `"agent"`, or `"user"` for a tool that only the user can use and the agent has to ask for.

    Raises:
        transformers.utils.DocstringParsingException, TypeHintParsingException: the function is not documented
            or typed as `get_json_schema` asks.
    """

    def __init__(self, name: str, function: Callable[..., Any], *, write: bool = True, owner: str = "agent"):
        self.name, self.function, self.write, self.owner = name, function, write, owner

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON schema in the form of the `tools` column."""
        body = {**_describe(self.function), "name": self.name}
        return {"type": "function", "function": body}

    @property
    def documentation(self) -> str:
        """The description that the policy reads."""
        return str(self.schema["function"]["description"])

    @property
    def kinds(self) -> dict[str, str]:
        """Parameter names with the kind of thing each stands for, in order."""
        properties = self.schema["function"]["parameters"].get("properties", {})
        return {name: entry["description"] for name, entry in properties.items()}

    def call(self, state: Any, arguments: Mapping[str, JSON]) -> Result:
        """Validate and run: what a session does with any kind of tool."""
        return self.respond(state, arguments)

    def respond(self, world: World, arguments: Mapping[str, JSON]) -> ToolResponse:
        """Validate and run in a toy world. A wrong type, a missing or an extra argument breaks the rule `type`."""
        if not _validator(self.function).is_valid(dict(arguments)):
            return ToolResponse({}, "type", {})
        return world.run(self.function, arguments)

    def renamed(self, name: str) -> Tool:
        """This tool under another name."""
        return Tool(name, self.function, write=self.write, owner=self.owner)

    def __repr__(self) -> str:
        return f"Tool({self.name}({', '.join(self.kinds)}): {self.documentation})"


@cache
def _describe(function: Callable[..., None]) -> dict[str, Any]:
    """The schema of a tool function without its first parameter, the world."""
    signature = inspect.signature(function)
    world, *parameters = signature.parameters.values()
    hints = get_type_hints(function)
    hints.pop(world.name, None)

    def described() -> None: ...

    described.__name__, described.__doc__, described.__annotations__ = (
        function.__name__,
        function.__doc__,
        hints,
    )
    described.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    description: dict[str, Any] = get_json_schema(described)["function"]
    description.pop("return", None)
    return description


# JSON Schema takes 3.0 for an integer; a record would then hold a float. Amounts and days are never negative.
_Validator = validators.extend(
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda _, value: type(value) is int and value >= 0
    ),
)


@cache
def _validator(function: Callable[..., None]) -> Any:
    return _Validator({**_describe(function)["parameters"], "additionalProperties": False})


def documented(text: str, **parameters: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator that writes the docstring `get_json_schema` reads, for functions made by a factory."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        arguments = "\n".join(f"    {name}: {about}" for name, about in parameters.items())
        function.__doc__ = f"{text}\n\nArgs:\n{arguments}" if parameters else text
        return function

    return decorate


def parse_calls(text: str, schemas: Sequence[Mapping[str, Any]]) -> list[ToolCall]:
    """Read `name argument ... and name argument ...` as calls of the listed tools; also `name {JSON}` for one call.

    Words are assigned by position. Types are not checked here: a wrong type is for the environment to refuse.

    Args:
        text: what the act role wrote.
        schemas: the JSON schemas of the tools in the prompt.

    Raises:
        ToolError: rule `malformed`, when no tool has that name or the number of arguments differs.
    """
    listed = {schema["function"]["name"]: schema["function"]["parameters"] for schema in schemas}
    calls = []
    name, _, rest = text.strip().partition(" ")
    if name in listed and rest.startswith("{"):
        with suppress(ValueError):  # else it is a word that happens to begin like JSON
            return [ToolCall(name, json.loads(rest))]
    for part in re.split(r"\sand\s", text.strip()):
        name, *words = part.split() or [""]
        parameters = listed.get(name, {}).get("properties", {})
        if name not in listed or len(words) != len(parameters):
            raise ToolError(MALFORMED)
        calls.append(ToolCall(name, dict(zip(parameters, map(as_value, words), strict=True))))
    return calls
