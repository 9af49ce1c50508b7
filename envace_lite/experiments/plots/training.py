"""Figures of training: before, on the way, and after."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from envace_lite.experiments.plots.base import COLOURS, LABELS, MARKERS, bare, legend_below, line
from envace_lite.experiments.tables import mean_interval


def gap(
    before: Mapping[str, Sequence[float | None]],
    after: Mapping[str, Sequence[float | None]],
    observed: Sequence[Mapping[str, float]],
    title: str,
) -> Figure:
    """Before and after world rehearsal, and the way from one to the other.

    Args:
        before, after: metric -> [value, low, high], as in a record's results.
        observed: what the eval callback saw, with its `step`.
    """
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10, 3.9), width_ratios=(1, 1.15), layout="constrained"
    )
    names = ("real_success", "fidelity", "error_recall", "optimism")
    for offset, (label, table) in enumerate((("base", before), ("after rehearsal", after))):
        places = [i + 0.38 * offset - 0.19 for i in range(len(names))]
        cells = [[math.nan if x is None else x for x in table[name]] for name in names]
        spread = [[max(v - lo, 0) for v, lo, _ in cells], [max(hi - v, 0) for v, _, hi in cells]]
        bars = left.bar(
            places,
            [v for v, _, _ in cells],
            width=0.36,
            yerr=spread,
            capsize=2,
            color=COLOURS[offset],
            hatch=("//", "")[offset],
            edgecolor="white",
            label=label,
        )
        left.bar_label(bars, fmt="%.2f", fontsize=8, padding=2)
    left.set_xticks(range(len(names)), [LABELS[name] for name in names], fontsize=9)
    left.set_ylim(0, 1.12)
    left.set_title("test tasks, with 95 % intervals", fontsize=10)
    left.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0.0, -0.1), ncol=2)
    for colour, marker, name in zip(COLOURS, MARKERS, names, strict=False):
        steps = [row["step"] for row in observed]
        right.plot(
            steps,
            [row[name] for row in observed],
            color=colour,
            marker=marker,
            markersize=4,
            label=LABELS[name],
        )
    right.set_ylim(0, 1.02)
    right.set_xlabel("step of world rehearsal")
    right.set_title("on the way (a few test tasks)", fontsize=10)
    right.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0.0, -0.16), ncol=4)
    for axes in (left, right):
        bare(axes)
    figure.suptitle(title, fontsize=11)
    return figure


def arms(
    records: Sequence[Mapping[str, Any]], metrics: Sequence[str] = ("real_success", "fidelity", "optimism")
) -> Figure:
    """Curves of several ways of training: mean over the seeds, the band is the 95 % interval."""
    figure, panels = plt.subplots(
        1, len(metrics), figsize=(3.6 * len(metrics), 3.8), layout="constrained", squeeze=False
    )
    panels = panels[0]
    titles = list(dict.fromkeys(record["title"] for record in records))
    for axes, metric in zip(panels, metrics, strict=True):
        for i, title in enumerate(titles):
            curve(axes, [r["observed"] for r in records if r["title"] == title], metric, i, title)
        axes.set_title(LABELS[metric], fontsize=10)
        axes.set_xlabel("step")
    legend_below(figure, panels[0])
    return figure


def progress(
    observed: Sequence[Mapping[str, float]],
    metrics: Sequence[str] = ("real_success", "fidelity", "error_recall", "optimism"),
) -> Figure:
    """Curves of one run so far.

    Args:
        observed: what an eval callback saw, with its `step`.
    """
    figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
    for colour, marker, name in zip(COLOURS, MARKERS, metrics, strict=False):
        points = [(row["step"], row[name]) for row in observed if name in row]
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, marker=marker, label=LABELS[name])
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("step of training")
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0.0, -0.2), ncol=4)
    bare(axes)
    return figure


def curve(axes: Axes, runs: Sequence[Sequence[Mapping[str, float]]], metric: str, i: int, label: str) -> None:
    """One observed metric over the steps: mean over the runs, the band is the 95 % interval."""
    by_step = [{row["step"]: row[metric] for row in run if metric in row} for run in runs]
    steps = max((list(run) for run in by_step), key=len)
    line(
        axes,
        steps,
        [mean_interval([run[step] for run in by_step if step in run]) for step in steps],
        i,
        label,
    )
    axes.set_ylim(0, 1.02)
    bare(axes)
