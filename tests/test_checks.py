"""Checks say what was given, what was expected and one hint; the reveal asks for a prediction first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from envace_lite.course.checks import NO_PREDICTION, NOT_YET, check, reveal

EMPTY = [None, "", "  ", ..., float("nan")]


@pytest.mark.parametrize("empty", EMPTY)
def test_an_empty_answer_is_met_kindly(empty: Any, capsys: pytest.CaptureFixture[str]) -> None:
    check(empty, 3, hint="secret")
    check(empty, abs, on=[(1,)], hint="secret")
    assert capsys.readouterr().out == f"{NOT_YET}\n{NOT_YET}\n"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (3, 3),
        (0.3, 0.1 + 0.2),
        ("a b", "a b"),
        ((1, 2), [1, 2]),
        (torch.tensor([1.0, 2.0]), [1, 2]),
        (np.array([1, 2]), [1, 2]),
        ({"a": 0.1}, {"a": 0.1 + 1e-9}),
        ("b", {"a", "b"}),
        (0, 0),
        (False, False),
    ],
)
def test_a_right_answer_passes(answer: Any, expected: Any, capsys: pytest.CaptureFixture[str]) -> None:
    check(answer, expected, hint="secret")
    assert capsys.readouterr().out == "Right.\n"


@pytest.mark.parametrize(
    ("answer", "expected", "given", "wanted"),
    [
        (2, 3, "2", "3"),
        (0.12345, 0.2, "0.123", "0.2"),
        ("x", {"a", "b"}, "x", "a or b"),
        ([1], [1, 2], "[1]", "[1, 2]"),
        ({"a": 1}, {"b": 1}, "{'a': 1}", "{'b': 1}"),
        (1, True, "1", "True"),
        ("3", 3, "3", "3"),
        (abs, 3, repr(abs), "3"),
    ],
)
def test_a_wrong_answer_is_told_what_was_expected(
    answer: Any, expected: Any, given: str, wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check(answer, expected, hint="look again")
    said = f"Not yet.\ngiven:    {given}\nexpected: {wanted}\nhint:     look again\n"
    assert capsys.readouterr().out == said


def test_a_function_is_compared_case_by_case(capsys: pytest.CaptureFixture[str]) -> None:
    def right(x: int, y: int) -> int:
        return x + y

    check(lambda x, y: y + x, right, on=[(1, 2), (3, 4)])
    check(lambda x, y: x * y, right, on=[(2, 2), (3, 4)], hint="add")
    check(lambda x, y: x / 0, right, on=[(1, 2)])
    check(lambda x, y: None, right, on=[(1, 2)])
    check(5, right, on=[(1, 2)])
    assert capsys.readouterr().out.split("Not yet.\n") == [
        "Right.\n",
        "for:      3, 4\ngiven:    12\nexpected: 7\nhint:     add\n",
        "for:      1, 2\ngiven:    ZeroDivisionError: division by zero\nexpected: 3\n",
        "for:      1, 2\ngiven:    nothing; does the function return its result?\n",
        "given:    5\nexpected: a function\n",
    ]


def test_a_long_value_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    check("x" * 1000, "y")
    assert len(capsys.readouterr().out) < 400


@pytest.mark.parametrize("empty", EMPTY)
def test_the_reveal_asks_for_a_prediction(empty: Any, capsys: pytest.CaptureFixture[str]) -> None:
    reveal(empty, 0.123, "optimism")
    out = capsys.readouterr().out
    assert out == NO_PREDICTION + "\n"
    assert "0.123" not in out


@pytest.mark.parametrize("prediction", [0, 0.0, False, 0.5, "an error"])
def test_the_reveal_shows_the_truth_beside_a_prediction(
    prediction: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    reveal(prediction, 0.12345, "optimism")
    out = capsys.readouterr().out
    assert out.startswith("optimism: you said ")
    assert out.endswith("; it is 0.123.\n")
