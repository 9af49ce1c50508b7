"""Alarms: silent for what went well, and told apart where the log alone could have warned."""

from __future__ import annotations

import pytest

from envace_lite.alarms import alarms
from envace_lite.experiments.records import of_kind, read_records

FINE = {
    "error_rate": 0.3,
    "informative": 0.6,
    "unfinished": 0.03,
    "entropy_rehearse": 0.1,
    "length_rehearse": 5.0,
    "drift": 1e-5,
}


@pytest.mark.parametrize(
    ("name", "end", "word"),
    [
        ("error_rate", 0.02, "simpler"),
        ("informative", 0.05, "nothing more"),
        ("unfinished", 0.4, "without an answer"),
        ("entropy_rehearse", 0.3, "drift"),
        ("length_rehearse", 8.0, "length"),
        ("drift", 0.1, "other probabilities"),
    ],
)
def test_each_alarm_rings_by_itself(name: str, end: float, word: str) -> None:
    steady = [FINE] * 50
    assert alarms(steady) == []
    (told,) = alarms([*steady[:25], *[{**FINE, name: end}] * 25])
    assert word in told
    assert f"({name} {FINE[name]:.3f} to {end:.3f})" in told


def test_little_to_look_at_is_no_reason_to_ring() -> None:
    assert alarms([]) == []
    assert alarms([FINE]) == []
    assert alarms([{"reward": 0.5}] * 10) == []


def test_the_recorded_trainings_ring_where_the_world_became_simpler() -> None:
    """The log alone tells the runs that end at an error from those with the right reward; no environment was asked.

    Of the other ways, whose rewards tell too little, nothing is said here: whatever rings there may be right.
    """
    sound = ("rehearsal", "anchored", "execute")
    runs = [r for r in of_kind("train", read_records()) if r["arm"] in (*sound, "end_at_error")]
    assert {run["arm"] for run in runs} >= {"rehearsal", "execute", "end_at_error"}
    for run in runs:
        told = alarms(run["curve"])
        if run["arm"] in sound:
            assert not told, run["name"]
        else:
            assert any("simpler" in sentence for sentence in told), run["name"]
