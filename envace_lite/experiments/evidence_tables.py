"""Tables of the evidence: each way of training beside its base and the controls, with intervals that cover everything.

An interval resamples bases, the seeds of each, and tasks, all at once: a sentence about the method has to hold for
other bases, other seeds and other tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from envace_lite.experiments.evidence import WAYS
from envace_lite.experiments.records import of_kind
from envace_lite.experiments.rows import MEASURES, unpack
from envace_lite.experiments.tables import markdown
from envace_lite.world.task import NEWS

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
            found.setdefault(name, {})[record["base"], 0] = unpack(rows)
    for record in of_kind("evidence", records):
        found.setdefault(record["way"], {})[record["base"], record["seed"]] = unpack(record["rows"][split])
    return {name: found[name] for name in TITLES if name in found}


def value_and_interval(
    some: Cells, measure: str, group: str = "", resamples: int = 1000
) -> tuple[float, float, float]:
    """A measure over some cells with the ends of its 95 % interval; NaN where it was not measured.

    Args:
        group: one of `rows.GROUPS`, or "" for all tasks.
    """
    over, under = MEASURES[measure]
    if not all(over in rows and (not under or under in rows) for rows in some.values()):
        return (float("nan"),) * 3
    first = next(iter(some.values()))
    where = np.array(first[group], dtype=bool) if group else np.ones(len(first[over]), dtype=bool)
    numbers = np.array([[np.array(rows[over])[where]] for rows in some.values()], dtype=float)[:, 0]
    sizes = np.ones_like(numbers)
    if under:
        sizes = np.array([np.array(rows[under])[where] for rows in some.values()], dtype=float)
    value = numbers.sum() / sizes.sum() if sizes.sum() else float("nan")
    tasks, drawn = task_weights(numbers.shape[1], resamples), cell_weights(tuple(some), resamples)
    with np.errstate(invalid="ignore"):
        spread = ((numbers @ tasks) * drawn).sum(0) / ((sizes @ tasks) * drawn).sum(0)
    low, high = np.nanpercentile(spread, (2.5, 97.5))
    return float(value), float(low), float(high)


@cache
def task_weights(count: int, resamples: int) -> np.ndarray:
    """How often each task occurs in each resample, (T, R)."""
    return np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), resamples).T.astype(float)


@cache
def cell_weights(keys: tuple[tuple[str, int], ...], resamples: int) -> np.ndarray:
    """How often each cell (base, seed) occurs in each resample, (C, R): bases are drawn, then seeds of each."""
    rng = np.random.default_rng(1)
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
    group: str = "",
) -> pd.DataFrame:
    """One row for the base, each control and each way, one column a measure: value (low to high)."""
    rows = {}
    for name, some in cells(records, split).items():
        shown = {}
        for measure in measures:
            value, low, high = value_and_interval(some, measure, group)
            shown[measure] = "" if np.isnan(value) else f"{value:.3f} ({low:.3f} to {high:.3f})"
        rows[TITLES[name]] = {"cells": len(some), **shown}
    return pd.DataFrame(rows).T


def worst(records: Sequence[Mapping[str, Any]], way: str, split: str = "test") -> pd.Series:
    """The worst cell of a way for each measure: a claim for every seed rests on it."""
    each = cells(records, split).get(way, {}).items()
    found = {
        measure: [value_and_interval({key: rows}, measure, resamples=1)[0] for key, rows in each]
        for measure in MEASURES
    }
    rises = ("wrong_writes", "pessimism")
    return pd.Series({m: (max if m in rises else min)(v, default=float("nan")) for m, v in found.items()})


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

    def mean(some: Cells) -> float:
        return value_and_interval(some, measure, resamples=1)[0]

    shared = [key for key in one if key in other] or list(one)
    start = mean({key: base[key[0], 0] for key in shared})
    return (mean({key: one[key] for key in shared}) - start) / (
        mean({key: other[key] for key in shared if key in other} or other) - start
    )


SHOWN = (
    "fidelity",
    "bearing",
    "idle",
    "contents",
    "error_recall",
    "pessimism",
    "real_success",
    "wrong_writes",
)
"""The measures of the project's page, in this order."""


def tables(records: Sequence[Mapping[str, Any]]) -> str:
    """Everything that was recorded, on test tasks and on tools that are new in each way, as markdown."""
    if not cells(records, "test"):
        return "Nothing has been recorded yet."
    text = ["**Test tasks**", markdown(table(records, "test", SHOWN).rename_axis("way of training"))]
    for what, words in NEWS.items():
        text += [
            f"**Held-out tools: {words}**",
            markdown(table(records, "held_out", SHOWN[:4], f"new:{what}").rename_axis("way of training")),
        ]
    return "\n\n".join(text)
