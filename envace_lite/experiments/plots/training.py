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

WHEN = {"before": "base", "scalar": "base, one scalar", "after": "after world rehearsal"}
"""What a demo measures, and how it is called."""
SHOWN = ("real_success", "fidelity", "bearing", "error_recall")


def gap(
    results: Mapping[str, Mapping[str, Sequence[float | None]]],
    observed: Sequence[Mapping[str, float]],
    title: str,
) -> Figure:
    """Before and after world rehearsal beside a control, and the way from one to the other.

    Args:
        results: for each of `WHEN`, measure -> [value, low, high].
        observed: what the eval callback saw, with its `step`.
    """
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10, 3.9), width_ratios=(1.15, 1), layout="constrained"
    )
    width = 0.8 / len(WHEN)
    for place, (when, label) in enumerate(WHEN.items()):
        places = [i + width * (place - (len(WHEN) - 1) / 2) for i in range(len(SHOWN))]
        cells = [[math.nan if x is None else x for x in results[when][name]] for name in SHOWN]
        spread = [[max(v - lo, 0) for v, lo, _ in cells], [max(hi - v, 0) for v, _, hi in cells]]
        bars = left.bar(
            places,
            [v for v, _, _ in cells],
            width=0.94 * width,
            yerr=spread,
            capsize=2,
            color=COLOURS[(0, 4, 1)[place]],
            hatch=("//", "..", "")[place],
            edgecolor="white",
            label=label,
        )
        left.bar_label(bars, fmt="%.2f", fontsize=7, padding=2)
    left.set_xticks(range(len(SHOWN)), [LABELS[name] for name in SHOWN], fontsize=9)
    left.set_ylim(0, 1.12)
    left.set_title("test tasks, with 95 % intervals", fontsize=10)
    left.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0.0, -0.1), ncol=3)
    for colour, marker, name in zip(COLOURS, MARKERS, SHOWN, strict=False):
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
    records: Sequence[Mapping[str, Any]], metrics: Sequence[str] = ("real_success", "fidelity", "bearing")
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
    metrics: Sequence[str] = SHOWN,
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
