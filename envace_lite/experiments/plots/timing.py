"""The figure of the benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from envace_lite.experiments.plots.base import COLOURS, MARKERS, bare, legend_below


def speed(result: Mapping[str, Any]) -> Figure:
    """What `bench` measured: how many times faster than the usual means, and how the cost of a step grows.

    Args:
        result: as in the record of `python -m envace_lite.experiments bench`, with `growth`.
    """
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    ratios = {f"rollout,\nbatch {row['batch']}": row["ratio"] for row in result["rollouts"]}
    for row in result["steps"]:
        if "ratio" in row:
            ratios[f"step,\nthreads {row['threads']}"] = row["ratio"]
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
    ticks = sorted({row["tokens"] for row in cells})
    middle.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    middle.minorticks_off()
    middle.set_xlabel("rollout tokens of a step")
    middle.set_title("seconds of a training step, one thread", fontsize=10)
    right.set_ylim(0, 1.02)
    right.set_xlabel("calls an episode")
    right.set_title("update: share of the matrix-product rate", fontsize=10)
    legend_below(figure, middle, len(sizes))
    for axes in (left, middle, right):
        bare(axes)
    return figure
