"""Results: what a call brought, as data, and the account of what it changed.

A state may be any Python object: a dictionary, an instance of a class with nested lists, a data class. `as_json` is the
view of it that is compared, hashed and shown. What a call changed is found by comparing this view before and after the
call (`differences`), never by reading words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import date, datetime, time
from enum import Enum
from typing import Any

JSON = Any
"""None, a bool, an int, a float, a str, or lists and dictionaries (with str keys) of these."""
REMOVED = "(removed)"
"""In place of a value in `Result.changed`: what stood at this path is gone."""
MALFORMED = "malformed"
"""In place of an error's name: what was written is no result at all."""
ABSTAIN = "abstain"
"""In place of an error's name: the verdict is not known, and none is given."""


class NotJSON(TypeError):
    """A value has no JSON view; the message names its path and its type."""


def as_json(value: Any, path: str = "") -> JSON:
    """The JSON view of a value: copies all the way down, so that a later change of the value does not reach it.

    Sets become sorted lists, dates their ISO text, members of an enumeration their value, and objects the dictionary of
    their attributes without those that begin with an underscore.

    Raises:
        NotJSON: naming the path of what has no such view (a function, an open file, an attribute that points back).
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value.value if isinstance(value, Enum) else value
    if len(path) > 400:
        raise NotJSON(f"the value is nested too deeply, or holds itself: {path[:60]}...")
    if isinstance(value, Enum):
        return as_json(value.value, path)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {_key(key, path): as_json(inner, f"{path}/{key}") for key, inner in value.items()}
    if isinstance(value, Set):
        return sorted((as_json(inner, f"{path}/-") for inner in value), key=canonical)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [as_json(inner, f"{path}/{i}") for i, inner in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: as_json(getattr(value, f.name), f"{path}/{f.name}") for f in fields(value)}
    if hasattr(value, "model_dump"):  # pydantic's models
        return as_json(value.model_dump(), path)
    if hasattr(value, "__dict__") and not callable(value):
        public = {name: inner for name, inner in vars(value).items() if not name.startswith("_")}
        return as_json(public, path)
    raise NotJSON(f"{path or '/'}: a {type(value).__name__} has no JSON view")


def _key(key: Any, path: str) -> str:
    if isinstance(key, Enum):
        key = key.value
    if isinstance(key, bool) or not isinstance(key, str | int | float):
        raise NotJSON(f"{path or '/'}: a key has to be a text or a number, not {key!r}")
    return str(key)


def canonical(value: JSON) -> str:
    """A text that is the same for equal values alone: 1, 1.0, true and "1" all differ; the order of keys does not."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def leaves(value: JSON, path: str = "") -> dict[str, JSON]:
    """A value taken apart: JSON pointer (RFC 6901) -> what stands there. Empty lists and dictionaries are leaves, too.

    `{"to": "ana", "days": [3, 5]}` has the leaves `/to`, `/days/0` and `/days/1`.
    """
    if isinstance(value, Mapping) and value:
        parts = [(str(key).replace("~", "~0").replace("/", "~1"), inner) for key, inner in value.items()]
    elif isinstance(value, list | tuple) and value:
        parts = [(str(i), inner) for i, inner in enumerate(value)]
    else:
        return {path: value}
    return {where: leaf for key, inner in parts for where, leaf in leaves(inner, f"{path}/{key}").items()}


def differences(before: JSON, after: JSON) -> dict[str, JSON]:
    """What has changed from one JSON view to another: pointer -> the new value, or `REMOVED`."""
    return leaf_differences(leaves(before), leaves(after))


def leaf_differences(old: Mapping[str, JSON], new: Mapping[str, JSON]) -> dict[str, JSON]:
    """The same for two views that have been taken apart."""
    changed = {path: value for path, value in new.items() if path not in old or _differ(old[path], value)}
    gone = [path for path in old if path not in new]
    # A list or dictionary that was empty and no longer is, or the reverse, is told by what it holds now.
    return {**changed, **{path: REMOVED for path in gone if not any(p.startswith(f"{path}/") for p in new)}}


def _differ(one: JSON, other: JSON) -> bool:
    """Whether two leaves differ, also in their kind: 1 is neither 1.0 nor true."""
    return type(one) is not type(other) or one != other


@dataclass(frozen=True)
class Result:
    """What a call brought.

    Args:
        value: what the function returned, as JSON.
        error: None, or why there is no value: the class of an exception, or the rule that a toy world names.
        message: the exception's own text.
        changed: what the call changed in the state, JSON pointer -> new value.
        told: whether `changed` is known. The text of a result does not tell it, so it is not after `parse`.
    """

    value: JSON = None
    error: str | None = None
    message: str = ""
    changed: Mapping[str, JSON] = field(default_factory=dict)
    told: bool = True

    @property
    def text(self) -> str:
        """What a policy reads: the value as JSON (a plain text as it stands), or the error as a JSON object."""
        if self.error is not None:
            told = {"error": self.error, "message": self.message} if self.message else {"error": self.error}
            return json.dumps(told, ensure_ascii=False)
        if isinstance(self.value, str) and _reads_as_itself(self.value):
            return self.value
        return json.dumps(self.value, ensure_ascii=False)

    @property
    def seen(self) -> Mapping[str, JSON]:
        """What the value holds by name; in a toy world the records, and the facts, that the tool looked at."""
        return self.value if isinstance(self.value, Mapping) else {}

    @classmethod
    def parse(cls, text: str) -> Result:
        """Read such a text back; what it changed is then not told. Broken JSON becomes the error `malformed`."""
        text = text.strip()
        try:
            value = json.loads(text)
        except ValueError:
            broken = text[:1] in ("{", "[", '"', "")
            return cls(None, MALFORMED, told=False) if broken else cls(text, told=False)
        if (
            isinstance(value, dict)
            and set(value) <= {"error", "message"}
            and isinstance(value.get("error"), str)
        ):
            return cls(None, value["error"], str(value.get("message", "")), told=False)
        return cls(value, told=False)

    def same(self, other: Result) -> bool:
        """Whether both say the same, to the last leaf and its kind: 1 is neither 1.0 nor true."""
        return canonical(self.parts()) == canonical(other.parts())

    def parts(self) -> dict[str, JSON]:
        """The leaves that a rehearsed result is compared by: of the value, or `error` and `message`."""
        if self.error in (MALFORMED, ABSTAIN):
            return {}
        if self.error is not None:
            return {"error": self.error, **({"message": self.message} if self.message else {})}
        return {"error": None, **leaves(self.value)}


@dataclass(frozen=True)
class Rehearsed:
    """A rehearsed response, and the log-probability of the whole of it; 0 where nobody says how sure he is."""

    response: Result
    log_prob: float = 0.0


def _reads_as_itself(text: str) -> bool:
    """Whether a text can stand without quotes: it is read back as this text, and as nothing else."""
    read = Result.parse(text)
    return read.error is None and isinstance(read.value, str) and read.value == text
