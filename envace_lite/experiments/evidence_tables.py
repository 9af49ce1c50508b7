"""Tables of the evidence: each way of training beside its base and the controls, with intervals that cover everything.

An interval resamples bases, the seeds of each, and tasks, all at once: a sentence about the method has to hold for
other bases, other seeds and other tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from envace_lite.experiments.evidence import MEASURES, WAYS
from envace_lite.experiments.records import of_kind
from envace_lite.world import DEPENDENT, Task
from envace_lite.world.shipped import shipped_tasks

CONTROLS = {
    "base": "base, before any training",
    "scalar": "base, one scalar",
    "scalar_by_domain": "base, one scalar a domain",
    "oracle": "base, best of 8 samples by the truth",
}
TITLES = {**CONTROLS, **{name: way.title for name, way in WAYS.items()}}
"""How each row of a table is called."""
Cells = dict[tuple[str, int], dict[str, Any]]
"""The rows of a split by base and seed."""


def cells(records: Sequence[Mapping[str, Any]], split: str) -> dict[str, Cells]:
    """Everything that was measured on a split: way or control -> cells."""
    found: dict[str, Cells] = {}
    for record in of_kind("controls", records):
        for name, rows in record["rows"][split].items():
            found.setdefault(name, {})[record["base"], 0] = rows
    for record in of_kind("evidence", records):
        found.setdefault(record["way"], {})[record["base"], record["seed"]] = record["rows"][split]
    return {name: found[name] for name in TITLES if name in found}


def chosen(split: str, wanted: Callable[[Task], bool] = lambda _: True) -> np.ndarray:
    """Which tasks of a split are counted, (T,)."""
    return np.array([wanted(task) for task in shipped_tasks(DEPENDENT, split)])


def value_and_interval(
    some: Cells, measure: str, where: np.ndarray, resamples: int = 1000
) -> tuple[float, float, float]:
    """A measure over some cells with the ends of its 95 % interval; NaN where it was not measured.

    Args:
        where: which tasks are counted, (T,).
    """
    over, under = MEASURES[measure]
    if not all(over in rows and (not under or under in rows) for rows in some.values()):
        return (float("nan"),) * 3
    numbers = np.array([[np.array(rows[over])[where]] for rows in some.values()], dtype=float)[:, 0]
    sizes = np.ones_like(numbers)
    if under:
        sizes = np.array([np.array(rows[under])[where] for rows in some.values()], dtype=float)
    value = numbers.sum() / sizes.sum() if sizes.sum() else float("nan")
    rng = np.random.default_rng(0)
    tasks = rng.multinomial(numbers.shape[1], np.full(numbers.shape[1], 1 / numbers.shape[1]), resamples).T
    drawn = cell_weights(list(some), resamples, rng)
    with np.errstate(invalid="ignore"):
        spread = ((numbers @ tasks) * drawn).sum(0) / ((sizes @ tasks) * drawn).sum(0)
    low, high = np.nanpercentile(spread, (2.5, 97.5))
    return float(value), float(low), float(high)


def cell_weights(keys: Sequence[tuple[str, int]], resamples: int, rng: np.random.Generator) -> np.ndarray:
    """How often each cell (base, seed) occurs in each resample, (C, R): bases are drawn, then seeds of each."""
    bases = sorted({base for base, _ in keys})
    weights = np.zeros((len(keys), resamples))
    for column in range(resamples):
        for base in rng.choice(bases, len(bases)):
            own = [place for place, key in enumerate(keys) if key[0] == base]
            np.add.at(weights[:, column], rng.choice(own, len(own)), 1)
    return weights


def table(
    records: Sequence[Mapping[str, Any]],
    split: str = "test",
    measures: Sequence[str] = tuple(MEASURES),
    wanted: Callable[[Task], bool] = lambda _: True,
) -> pd.DataFrame:
    """One row for the base, each control and each way, one column a measure: value (low to high)."""
    where = chosen(split, wanted)
    rows = {}
    for name, some in cells(records, split).items():
        shown = {}
        for measure in measures:
            value, low, high = value_and_interval(some, measure, where)
            shown[measure] = "" if np.isnan(value) else f"{value:.3f} ({low:.3f} to {high:.3f})"
        rows[TITLES[name]] = {"cells": len(some), **shown}
    return pd.DataFrame(rows).T


def worst(records: Sequence[Mapping[str, Any]], way: str, split: str = "test") -> pd.Series:
    """The worst cell of a way for each measure: a claim for every seed rests on it."""
    falls = ("wrong_writes", "pessimism")
    found = {}
    for measure, (over, under) in MEASURES.items():
        values = [
            sum(rows[over]) / (sum(rows[under]) if under else len(rows[over]))
            for rows in cells(records, split).get(way, {}).values()
        ]
        found[measure] = (max if measure in falls else min)(values, default=float("nan"))
    return pd.Series(found)


def gain(
    records: Sequence[Mapping[str, Any]],
    name: str,
    measure: str,
    split: str = "test",
    against: str = "execute",
) -> float:
    """(policy - base) over (environment arm - base), over the bases and seeds that both have.

    Args:
        name: a way or a control.
        against: the way that stands for the whole gain.
    """
    found = cells(records, split)
    one, other, base = found[name], found[against], found["base"]
    where = chosen(split)

    def mean(some: Cells) -> float:
        return value_and_interval(some, measure, where, resamples=1)[0]

    shared = [key for key in one if key in other] or list(one)
    start = mean({key: base[key[0], 0] for key in shared})
    return (mean({key: one[key] for key in shared}) - start) / (
        mean({key: other[key] for key in shared if key in other} or other) - start
    )
