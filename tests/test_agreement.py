"""Agreement of JSON and text, by kind."""

from __future__ import annotations

import math
from typing import Any

import pytest

from envace_lite.fidelity import ProbePair, groundings, probe_pairs
from envace_lite.fidelity.agreement import KINDS, agreement, compare_leaves, facts_kept, kind_of
from envace_lite.fidelity.baselines import always_success, copy_arguments, oracle
from envace_lite.world import register
from envace_lite.world.result import Result
from envace_lite.world.tools import ToolCall
from worlds import WORLDS

every_world = pytest.mark.parametrize("name", WORLDS)


@pytest.mark.parametrize(
    ("real", "told", "kind", "expected"),
    [
        (2, 2.0, "number", 1.0),
        (2, "2", "number", 0.0),
        (1, True, "number", 0.0),
        (0.1 + 0.2, 0.3, "number", 1.0),
        (True, 1, "exact", 0.0),
        (None, None, "exact", 1.0),
        ("Bob", "bob", "exact", 0.0),
        (["a", "b"], ["b", "a"], "set", 1.0),
        (["a", "a"], ["a"], "set", 2 / 3),
        ([], [], "set", 1.0),
        ([1], "1", "set", 0.0),
        ("due in 7 days", "due in 9 days", "text", 0.75),
        ("due in 7 days", "Due in 7 days.", "text", 1.0),
        ("due in 7 days", None, "text", 0.0),
    ],
)
def test_each_kind_has_its_comparison(real: Any, told: Any, kind: str, expected: float) -> None:
    assert kind_of(real) == kind
    assert agreement(real, told) == pytest.approx(expected)


def test_facts_are_names_and_numbers_of_the_conversation() -> None:
    said = "Ana moved to 5 Elm Street"
    assert facts_kept("Ana lives at 5 Elm Street since May", "Ana lives at 7 Elm Street", said) == 3 / 4
    assert math.isnan(facts_kept("no fact here", "x", said))
    assert math.isnan(facts_kept(5, 5, said))


@every_world
def test_the_oracle_agrees_in_every_leaf(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envace_lite.world._OTHERS", {})
    domain = WORLDS[name]()
    register(domain)
    pairs = probe_pairs(domain.draw(20))
    right = compare_leaves(pairs, oracle(pairs))
    assert (right.agreement == 1.0).all()
    assert set(right.kind) <= set(KINDS) - {"extra"}
    assert right.facts.dropna().eq(1.0).all()
    for baseline in (always_success, copy_arguments):
        assert compare_leaves(pairs, baseline(pairs)).agreement.mean() < 0.7
    broken = compare_leaves(pairs, [Result.parse("{")] * len(pairs))
    assert (broken.agreement == 0.0).all()


def test_what_is_only_rehearsed_is_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envace_lite.world._OTHERS", {})
    domain = WORLDS["library"]()
    register(domain)
    pair = next(p for p in probe_pairs(domain.draw(20)) if p.call.name == "find" and p.real.error is None)
    told = Result({**pair.real.value, "shelf": 3}, told=False)
    frame = compare_leaves([pair], [told])
    assert frame[frame.agreement < 1][["path", "kind", "rehearsed"]].values.tolist() == [
        ["/shelf", "extra", "3"]
    ]


def test_a_value_is_known_from_the_call_the_prompt_or_an_earlier_response(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("envace_lite.world._OTHERS", {})
    library = WORLDS["library"]()
    register(library)
    (task,) = library.draw(1)
    call = ToolCall("find", {"title": "Middlemarch"})
    real = Result({"title": "Middlemarch", "member": "Ana Lee", "shelf": "K77", "room": 9, "due": None})
    earlier = (ToolCall("find", {"title": "Emma"}), Result({"shelf": "K77"}))
    expected = {"error": "initial", "/title": "initial", "/member": "initial", "/due": "initial"}
    told = groundings(ProbePair(task, (earlier,), call, real))
    assert told == {**expected, "/shelf": "history", "/room": "hidden"}
    untold = groundings(ProbePair(task, (), call, real))
    assert untold == {**expected, "/shelf": "hidden", "/room": "hidden"}
