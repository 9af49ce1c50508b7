"""How far rehearsed results of any tool agree with real ones, leaf by leaf, each by its kind.

A response of a toy world is right or wrong in each word. JSON and free text need more: a number may be written as 2 or
2.0, the order of a set says nothing, and a sentence can be nearly the same. What is measured on text is the overlap of
words and the facts that were copied, not the meaning; no model judges it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import pandas as pd

from envace_lite.fidelity.grounding import groundings
from envace_lite.fidelity.pairs import ProbePair
from envace_lite.world.result import ABSTAIN, JSON, MALFORMED, Result, canonical

KINDS = {
    "exact": "a name, a truth value or nothing: equal or not",
    "number": "equal up to rounding, 2 or 2.0",
    "set": "a list of plain values, in any order: harmonic mean of precision and recall",
    "text": "three words or more: harmonic mean of the precision and recall of words",
    "error": "whether it is an error, and of which class",
    "message": "the text of an error, as text",
    "extra": "a leaf that only the rehearsed result has",
}
"""The kinds of leaves, with how each is compared."""
COLUMNS = ("task", "domain", "call", "path", "kind", "grounding", "real", "rehearsed", "agreement", "facts")
_MISSING = object()


def compare_leaves(pairs: Sequence[ProbePair], rehearsed: Sequence[Result]) -> pd.DataFrame:
    """One row for each leaf of each real result, and for each that only the rehearsed one has.

    Columns: `path` (JSON pointer; `error` and `message` for those), `kind` (a key of `KINDS`), `grounding`, both values
    as JSON, `agreement` from 0 to 1, and `facts`: of the names and numbers that a text takes from the conversation, the
    share that the rehearsed text has, too (NaN where there are none).
    """
    rows = [row for pair, mine in zip(pairs, rehearsed, strict=True) for row in _rows(pair, mine)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _rows(pair: ProbePair, mine: Result) -> list[dict[str, object]]:
    real, told, grounded = _leaves(pair.real), _leaves(mine), groundings(pair)
    about = {"task": pair.task.id, "domain": pair.task.domain, "call": pair.call.name}
    said = " ".join(str(message.get("content", "")) for message in pair.messages)
    rows = []
    for path, value in {**real, **{path: _MISSING for path in told if path not in real}}.items():
        other = told.get(path, _MISSING)
        kind = "extra" if value is _MISSING else path if path in ("error", "message") else kind_of(value)
        rows.append(
            {
                **about,
                "path": path,
                "kind": kind,
                "grounding": next((place for slot, place in grounded.items() if slot.startswith(path)), ""),
                "real": "" if value is _MISSING else canonical(value),
                "rehearsed": "" if other is _MISSING else canonical(other),
                "agreement": 0.0 if _MISSING in (value, other) else agreement(value, other),
                "facts": facts_kept(value, other, said),
            }
        )
    return rows


def _leaves(result: Result) -> dict[str, JSON]:
    """A result taken apart; a list of plain values is one leaf, since its order may say nothing."""
    if result.error in (MALFORMED, ABSTAIN):
        return {}
    if result.error is not None:
        return {"error": result.error, **({"message": result.message} if result.message else {})}
    return {"error": None, **_within(result.value, "")}


def _within(value: JSON, path: str) -> dict[str, JSON]:
    if isinstance(value, Mapping) and value:
        parts = {str(key): inner for key, inner in value.items()}
    elif isinstance(value, list) and any(isinstance(inner, dict | list) for inner in value):
        parts = {str(place): inner for place, inner in enumerate(value)}
    else:
        return {path: value}
    return {
        where: leaf for key, inner in parts.items() for where, leaf in _within(inner, f"{path}/{key}").items()
    }


def kind_of(value: JSON) -> str:
    """How a real value is compared: a key of `KINDS`."""
    if isinstance(value, bool) or value is None:
        return "exact"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, list):
        return "set"
    return "text" if isinstance(value, str) and len(_words(value)) >= 3 else "exact"


def agreement(real: JSON, told: JSON) -> float:
    """How far a told value agrees with a real one, 0 to 1.

    For the real text `due in 7 days` the told `due in 9 days` has three of four words right: 0.75.
    """
    kind = kind_of(real)
    if kind == "number":
        number = isinstance(told, int | float) and not isinstance(told, bool)
        return float(number and math.isclose(real, told, rel_tol=1e-6))
    if kind == "set" and isinstance(told, list):
        return _overlap(Counter(map(canonical, real)), Counter(map(canonical, told)))
    if kind == "text" and isinstance(told, str):
        return _overlap(Counter(_words(real)), Counter(_words(told)))
    return float(canonical(real) == canonical(told))


def facts_kept(real: object, told: object, conversation: str) -> float:
    """Of the names and numbers that a real text takes from the conversation, the share that the told text has."""
    if not isinstance(real, str):
        return math.nan
    facts = {word for word in re.findall(r"\w+", real) if re.search(r"[0-9A-Z]", word)}
    facts &= set(re.findall(r"\w+", conversation))
    return len(facts & set(re.findall(r"\w+", str(told)))) / len(facts) if facts else math.nan


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def _overlap(one: Counter[str], other: Counter[str]) -> float:
    """Harmonic mean of precision and recall of two multisets; two empty ones agree."""
    size = one.total() + other.total()
    return 2 * (one & other).total() / size if size else 1.0
