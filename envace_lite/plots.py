"""Figures. Colours are told apart by people with any colour vision, and never carry meaning alone."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg", force=False)

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from envace_lite.deliberate import CONTROLS, KINDS, METHODS, WITHOUT_BUDGET, curve
from envace_lite.study import mean_interval

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
LABELS = {
    "real_success": "real success",
    "fidelity": "fidelity",
    "error_recall": "error recall",
    "optimism": "optimism",
    "wrong_writes": "wrong writes a task",
}


def save(figure: Figure, path: Path | str, description: str) -> Path:
    """Write a figure as PNG with its description inside, and close it."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Description": description, "Software": "envace_lite"})
    plt.close(figure)
    return path


def show(figure: Figure, description: str) -> None:
    """Show a figure in a notebook, whatever matplotlib's backend, with its description as alt text; and close it."""
    from IPython.display import Image, display

    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=100)
    plt.close(figure)
    display(Image(picture.getvalue(), alt=description))


def _bare(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def gap(
    before: Mapping[str, Sequence[float | None]],
    after: Mapping[str, Sequence[float | None]],
    observed: Sequence[Mapping[str, float]],
    title: str,
) -> Figure:
    """Before and after world rehearsal, and the way from one to the other.

    Args:
        before, after: metric -> [value, low, high], as in a record's results.
        observed: what the observer saw, with its `step`.
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
        _bare(axes)
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
            runs = [record["observed"] for record in records if record["title"] == title]
            steps = [row["step"] for row in max(runs, key=len)]
            by_step = [{row["step"]: row[metric] for row in run} for run in runs]
            values = [mean_interval([run[step] for run in by_step if step in run]) for step in steps]
            colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
            means = [v for v, _, _ in values]
            axes.plot(steps, means, color=colour, marker=marker, markersize=3, label=title)
            axes.fill_between(steps, [x[1] for x in values], [x[2] for x in values], color=colour, alpha=0.15)
        axes.set_ylim(0, 1.02)
        axes.set_title(LABELS[metric], fontsize=10)
        axes.set_xlabel("step")
        _bare(axes)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", frameon=False, fontsize=8, ncol=2)
    return figure


def speed(result: Mapping[str, Any]) -> Figure:
    """What `bench` measured: how many times faster than the usual means, and how the cost of a step grows.

    Args:
        result: as in the record of `envace bench`, with `growth`.
    """
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    ratios = {f"rollout,\nbatch {row['batch']}": row["ratio"] for row in result["rollouts"]}
    if "ratio" in result["step"]:
        ratios["training\nstep"] = result["step"]["ratio"]
    values = list(ratios.values())
    spread = [[v - low for v, low, _ in values], [high - v for v, _, high in values]]
    bars = left.bar(list(ratios), [v for v, _, _ in values], yerr=spread, capsize=3, color=COLOURS[0])
    left.bar_label(bars, fmt="%.1f", fontsize=8, padding=2)
    left.axhline(1, color="black", linewidth=0.8, linestyle="--")
    left.tick_params(axis="x", labelsize=8)
    left.set_title("times as fast as generate, and as TRL", fontsize=10)
    cells = [row for row in result["growth"] if row["threads"] == 1]
    sizes = list(dict.fromkeys(row["size"] for row in cells))
    for colour, marker, size in zip(COLOURS, MARKERS, sizes, strict=False):
        rows = [row for row in cells if row["size"] == size]
        tokens = [row["tokens"] for row in rows]
        cost = [row["sampling_seconds"] + row["update_seconds"] for row in rows]
        middle.plot(tokens, cost, color=colour, marker=marker, markersize=4, label=size)
        shares = [row["update_share_of_rate"] for row in rows]
        right.plot([row["horizon"] for row in rows], shares, color=colour, marker=marker, markersize=4)
    middle.set_xscale("log")
    middle.set_yscale("log")
    middle.set_xlabel("rollout tokens of a step")
    middle.set_title("seconds of a training step, one thread", fontsize=10)
    right.set_ylim(0, 1.02)
    right.set_xlabel("calls an episode")
    right.set_title("update: share of the matrix-product rate", fontsize=10)
    handles, names = middle.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", frameon=False, fontsize=8, ncol=len(names))
    for axes in (left, middle, right):
        _bare(axes)
    return figure


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
            _bare(axes)
    handles, names = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", frameon=False, fontsize=8, ncol=2)
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
