"""The figure of private rehearsal beside its equal-token controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from envace_lite.deliberate import CONTROLS, KINDS, METHODS, WITHOUT_BUDGET, curve
from envace_lite.plots.base import COLOURS, LABELS, MARKERS, bare, legend_below
from envace_lite.tables import mean_interval


def deliberation(
    records: Sequence[Mapping[str, Any]],
    metrics: Sequence[str] = ("real_success", "wrong_writes"),
    split: str = "test",
) -> Figure:
    """What each way of deciding brings for its tokens, on instructions and on goals apart.

    A line goes through the budgets of a method, from plain execution on. Bars are 95 % intervals: over the records,
    if there are several (one a seed), else over the tasks.

    Args:
        records: of `envace deliberate`, of one way of training.
    """
    figure, panels = plt.subplots(
        len(metrics), len(KINDS), figsize=(9.5, 3.4 * len(metrics)), layout="constrained", squeeze=False
    )
    for row, metric in zip(panels, metrics, strict=True):
        for axes, kind in zip(row, KINDS, strict=True):
            frame = _mean_curve([curve(record, metric, split=split, kind=kind) for record in records])
            start = frame[frame.method == "plain"]
            present = [method for method in METHODS if (frame.method == method).any()]
            for i, method in enumerate(present):
                points = frame[frame.method == method]
                if method not in WITHOUT_BUDGET:
                    points = pd.concat([start, points])
                spread = [points.value - points.low, points.high - points.value]
                axes.errorbar(
                    points.tokens,
                    points.value,
                    yerr=[side.clip(lower=0) for side in spread],
                    color=COLOURS[i % len(COLOURS)],
                    marker=MARKERS[(i + i // len(COLOURS)) % len(MARKERS)],
                    linestyle="none" if method in WITHOUT_BUDGET else "--" if method in CONTROLS else "-",
                    markersize=4,
                    linewidth=1.2,
                    elinewidth=0.6,
                    label=METHODS[method],
                )
            axes.set_xscale("log")
            axes.set_xlabel("tokens a task, read and written")
            axes.set_title(f"{LABELS.get(metric, metric.replace('_', ' '))}, {kind}", fontsize=10)
            bare(axes)
    legend_below(figure, panels[0][0])
    return figure


def _mean_curve(curves: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One curve from those of several seeds; a single one stays as it is."""
    if len(curves) == 1:
        return curves[0]
    rows = []
    for (method, budget), cells in pd.concat(curves).groupby(["method", "budget"], sort=False):
        value, low, high = mean_interval(list(cells.value))
        rows.append((method, budget, cells.tokens.mean(), value, low, high))
    return pd.DataFrame(rows, columns=curves[0].columns)
