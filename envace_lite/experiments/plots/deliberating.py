"""The figure of private rehearsal beside its equal-token controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from envace_lite.experiments.deliberate import KINDS
from envace_lite.experiments.deliberate_tables import curve
from envace_lite.experiments.plots.base import LABELS, bare, legend_below
from envace_lite.experiments.tables import mean_interval
from envace_lite.experiments.ways import CONTROLS, METHODS, WITHOUT_BUDGET

LOOKS = {
    "plain": ("#000000", "o"),
    "greedy": ("#000000", "s"),
    "parallel": ("#56B4E9", "^"),
    "likelihood": ("#56B4E9", "v"),
    "no_errors": ("#56B4E9", "P"),
    "verdict": ("#56B4E9", "X"),
    "judged": ("#0072B2", "o"),
    "sequential": ("#0072B2", "D"),
    "write": ("#0072B2", "s"),
    "vote": ("#D55E00", "^"),
    "judged_vote": ("#D55E00", "o"),
    "refine": ("#CC79A7", "X"),
    "scratch": ("#009E73", "P"),
}
"""Colour and marker of each way: rehearsal in blue with solid lines, votes in orange with dashed ones."""


def deliberation(
    records: Sequence[Mapping[str, Any]],
    metrics: Sequence[str] = ("real_success", "wrong_writes"),
    split: str = "test",
) -> Figure:
    """What each way of deciding brings for its tokens, a column for each group of tasks (`deliberate.KINDS`).

    A line goes through the budgets of a method, from plain execution on. Bars are 95 % intervals: over the records,
    if there are several (one a seed), else over the tasks. The frame is that of all ways but self-refinement, which
    would squeeze the others; where it is out of the frame its value stands in words.

    Args:
        records: of the study `deliberate`, of one way of training; those of `scratch` may stand among them.
    """
    figure, panels = plt.subplots(
        len(metrics), len(KINDS), figsize=(12.5, 3.4 * len(metrics)), layout="constrained", squeeze=False
    )
    for row, metric in zip(panels, metrics, strict=True):
        for axes, (kind, title) in zip(row, KINDS.items(), strict=True):
            frame = _mean_curve([curve(record, metric, split=split, kind=kind) for record in records])
            _panel(axes, frame)
            axes.set_title(f"{LABELS.get(metric, metric.replace('_', ' '))}, {title}", fontsize=10)
    legend_below(figure, panels[0][0])
    return figure


def _panel(axes: Axes, frame: pd.DataFrame) -> None:
    start = frame[frame.method == "plain"]
    for method in METHODS:
        points = frame[frame.method == method]
        if points.empty:
            continue
        if method not in WITHOUT_BUDGET:
            points = pd.concat([start, points])
        spread = [points.value - points.low.clip(lower=0), points.high - points.value]
        colour, marker = LOOKS[method]
        axes.errorbar(
            points.tokens,
            points.value,
            yerr=[side.clip(lower=0).tolist() for side in spread],
            color=colour,
            marker=marker,
            linestyle="none" if method in WITHOUT_BUDGET else "--" if method in CONTROLS else "-",
            markersize=4,
            linewidth=2.2 if method == "judged" else 1.1,
            elinewidth=0.5,
            label=METHODS[method],
        )
    others = frame[frame.method != "refine"]
    low, high = others.value.min(), others.value.max()
    margin = 0.25 * max(high - low, 0.1)
    axes.set_ylim(max(low - margin, -0.01), high + margin)
    out = frame[(frame.method == "refine") & ~frame.value.between(*axes.get_ylim())]
    if len(out):
        values = ", ".join(f"{value:.2f}" for value in out.value)
        axes.text(
            0.02, 0.02, f"self-refinement, out of the frame: {values}", transform=axes.transAxes, size=7
        )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("tokens a task, read and written")
    bare(axes)


def _mean_curve(curves: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One curve from those of several seeds; a single one stays as it is."""
    if len(curves) == 1:
        return curves[0]
    rows = []
    for (method, budget), cells in pd.concat(curves).groupby(["method", "budget"], sort=False):
        value, low, high = mean_interval(list(cells.value))
        rows.append((method, budget, cells.tokens.mean(), value, low, high))
    return pd.DataFrame(rows, columns=curves[0].columns)
