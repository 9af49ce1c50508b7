"""Checks beneath an exercise, and the reveal of a prediction. They print, and never raise: later cells go on.

They need nothing but the cell's own names, so they work without the notebook's file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

NOT_YET = "Not answered yet. Fill in the cell above and run it, then run this one again."
NO_PREDICTION = (
    "No prediction yet. Write one into the cell above, run it, and run this cell again; "
    "a guess that turns out wrong is worth more than none."
)


def check(answer: Any, expected: Any, *, on: Sequence[tuple[Any, ...]] = (), hint: str = "") -> None:
    """Compare an answer with what is expected, and say what was given, what was expected, and one hint.

    Args:
        answer: the reader's value; or, with `on`, the reader's function.
        expected: the right value (or a set of right values); with `on`, a function that is right.
        on: cases, each a tuple of arguments, on which the two functions are compared.
        hint: one sentence, shown when the answer is not right.
    """
    if _empty(answer):
        print(NOT_YET)
        return
    if on:
        problem = _compared(answer, expected, on)
    else:
        right = any(_same(answer, value) for value in expected) if isinstance(expected, set) else None
        right = _same(answer, expected) if right is None else right
        wanted = " or ".join(sorted(map(_shown, expected))) if isinstance(expected, set) else _shown(expected)
        problem = "" if right else f"given:    {_shown(answer)}\nexpected: {wanted}"
    if not problem:
        print("Right.")
    else:
        print("Not yet.\n" + problem + (f"\nhint:     {hint}" if hint else ""))


def reveal(prediction: Any, truth: float | str, about: str = "") -> None:
    """Show the truth beside a prediction; without a prediction, ask for one.

    Args:
        prediction: what the reader wrote.
        truth: what came out.
        about: what it is, in a few words.
    """
    if _empty(prediction):
        print(NO_PREDICTION)
    else:
        print(f"{about + ': ' if about else ''}you said {_shown(prediction)}; it is {_shown(truth)}.")


def _empty(value: Any) -> bool:
    if isinstance(value, str):
        return not value.strip()
    return value is None or value is ... or (isinstance(value, float) and math.isnan(value))


def _compared(
    answer: Callable[..., Any], expected: Callable[..., Any], cases: Sequence[tuple[Any, ...]]
) -> str:
    """The first case in which two functions differ, in words; empty if there is none."""
    if not callable(answer):
        return f"given:    {_shown(answer)}\nexpected: a function"
    for case in cases:
        called = ", ".join(map(_shown, case))
        try:
            given = answer(*case)
        except Exception as error:  # whatever a reader's function raises is an answer that is not right
            return f"for:      {called}\ngiven:    {type(error).__name__}: {error}\nexpected: {_shown(expected(*case))}"
        if _empty(given):
            return f"for:      {called}\ngiven:    nothing; does the function return its result?"
        wanted = expected(*case)
        if not _same(given, wanted):
            return f"for:      {called}\ngiven:    {_shown(given)}\nexpected: {_shown(wanted)}"
    return ""


def _same(one: Any, other: Any) -> bool:
    """Equal, where numbers may differ by rounding and it does not matter which kind of sequence holds them."""
    one, other = (value.tolist() if hasattr(value, "tolist") else value for value in (one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-4, abs_tol=1e-6) and isinstance(one, bool) == isinstance(
            other, bool
        )
    return bool(one == other)


def _shown(value: Any) -> str:
    """A value as a short text; numbers with three decimals at most."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, float):
        return f"{round(value, 3):g}"
    if isinstance(value, list | tuple):
        inner = ", ".join(map(_shown, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    text = value if isinstance(value, str) else repr(value)
    if "\n" in text and not isinstance(value, str):
        return f"a {type(value).__name__}"
    return text if len(text) <= 300 else text[:300] + " ..."
