"""Figures of the probe: what the rehearse role learned, and what a simpler world costs. All from records alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from envace_lite.experiments.plots.base import COLOURS, MARKERS, bare, legend_below, line
from envace_lite.experiments.plots.training import curve
from envace_lite.experiments.tables import mean_interval
from envace_lite.experiments.trap import CELLS, COMPARED, DIALS, outcome
from envace_lite.experiments.trust import GRID
from envace_lite.world import TRAP

Records = Sequence[Mapping[str, Any]]


def by_title(records: Records) -> dict[str, list[Mapping[str, Any]]]:
    """The records of each way of training, in their order."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        groups.setdefault(record["title"], []).append(record)
    return groups


def gap_over_training(records: Records) -> Figure:
    """What is told right over the steps: successes and errors apart, by what rests on it, and on held-out tools.

    Args:
        records: of one way of training, one a seed.
    """
    panels = {
        "by outcome": {
            "contents": "real successes told right",
            "error_recall": "real errors told as an error",
            "pessimism": "real successes told as an error",
        },
        "test tasks": {
            "bearing": "parts on which decisions rest",
            "idle": "other parts",
            "fidelity": "whole responses",
        },
        "held-out tools": {
            "held_out_bearing": "parts on which decisions rest",
            "held_out_idle": "other parts",
            "held_out_fidelity": "whole responses",
        },
    }
    figure, axes = plt.subplots(1, len(panels), figsize=(11, 4), layout="constrained")
    for panel, (title, metrics) in zip(axes, panels.items(), strict=True):
        for i, (metric, label) in enumerate(metrics.items()):
            curve(panel, [record["observed"] for record in records], metric, i, label)
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("step of training")
        panel.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0, -0.15))
    return figure


def fidelity_over_depth(records: Records, split: str = "test") -> Figure:
    """Fidelity on planned calls by the number of calls before: after real responses, and after rehearsed ones."""
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.9), layout="constrained", sharey=True)
    titles = ("after real responses (teacher-forced)", "after its own rehearsed responses (open loop)")
    for column, (axes, title) in enumerate(zip(panels, titles, strict=True), start=2):
        for i, (name, runs) in enumerate(by_title(records).items()):
            tables = [
                {row[0]: row[column] for row in run["probe"][split]["by_depth"] if row[1] >= 20}
                for run in runs
            ]
            depths = sorted(set.intersection(*(set(table) for table in tables)))
            points = [mean_interval([table[depth] for table in tables]) for depth in depths]
            line(axes, depths, points, i, name)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("calls before")
        axes.set_xticks(depths)
        axes.set_ylim(0, 1.02)
        bare(axes)
    legend_below(figure, panels[0])
    return figure


def recall_by_rule(records: Records, split: str = "test") -> Figure:
    """Which real errors are rehearsed as errors, by the rule that is broken."""
    groups = by_title(records)
    rules = sorted({rule for record in records for rule in record["probe"][split]["rules"]})
    figure, axes = plt.subplots(figsize=(9, 4.2), layout="constrained")
    width = 0.8 / len(groups)
    for i, (name, runs) in enumerate(groups.items()):
        values = [
            mean_interval([run["probe"][split]["rules"][rule]["recall"] for run in runs]) for rule in rules
        ]
        places = [x + (i - (len(groups) - 1) / 2) * width for x in range(len(rules))]
        low, high = ([abs(v[0] - v[end]) if v[end] == v[end] else 0 for v in values] for end in (1, 2))
        axes.bar(
            places,
            [v for v, _, _ in values],
            width,
            yerr=[low, high],
            capsize=2,
            color=COLOURS[i],
            hatch=("//", "", "..", "xx")[i % 4],
            edgecolor="white",
            label=name,
        )
    axes.set_xticks(range(len(rules)), rules)
    axes.set_ylim(0, 1.05)
    axes.set_title("share of the real errors that are rehearsed as an error, by rule", fontsize=10)
    bare(axes)
    legend_below(figure, axes)
    return figure


def reliability(records: Records, split: str = "test") -> Figure:
    """The rehearse role's confidence against the share of its responses that are right."""
    figure, axes = plt.subplots(figsize=(5.6, 5), layout="constrained")
    axes.plot([0, 1], [0, 1], color="black", linewidth=0.8, linestyle="--", label="as sure as right")
    for i, (name, runs) in enumerate(by_title(records).items()):
        bins: dict[int, list[tuple[float, float, float]]] = {}
        for run in runs:
            for pairs, confidence, right in run["probe"][split]["reliability"]:
                bins.setdefault(min(int(confidence * 10), 9), []).append((pairs, confidence, right))
        points = []
        for _, rows in sorted(bins.items()):
            total = sum(pairs for pairs, _, _ in rows)
            if total >= 20:
                points.append([sum(row[0] * row[k] for row in rows) / total for k in (1, 2)])
        axes.plot(*zip(*points, strict=True), color=COLOURS[i], marker=MARKERS[i], markersize=4, label=name)
    axes.set_xlabel("probability of the rehearsed response")
    axes.set_ylabel("share that equals the real one")
    axes.set_title("is it as sure as it is right?", fontsize=10)
    axes.set(xlim=(0, 1.02), ylim=(0, 1.02))
    bare(axes)
    legend_below(figure, axes, columns=1)
    return figure


def risk_over_coverage(records: Records, what: str = "response") -> Figure:
    """The risk of trusting the most probable responses alone, beside controls, on test tasks and held-out tools.

    Args:
        records: of the kind `trust`.
        what: it means to be wrong, a key of `trust.WRONG`.
    """
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.9), layout="constrained", sharey=True)
    for axes, (split, title) in zip(
        panels, {"test": "test tasks", "held_out": "held-out tools"}.items(), strict=True
    ):
        place = 0
        for name, runs in by_title(records).items():
            for score, label in SCORES.items():
                curves = [run["results"][split][what]["risk"][score] for run in runs]
                points = [mean_interval(column) for column in zip(*curves, strict=True)]
                line(axes, GRID, points, place, f"{name}: {label}")
                place += 1
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("share of the responses that are trusted")
        axes.set_xlim(0, 1.02)
        bare(axes)
    panels[0].set_ylim(bottom=0)  # of both, when everything is drawn
    panels[0].set_ylabel("share of those that is wrong")
    legend_below(figure, panels[0])
    return figure


SCORES = {
    "probability": "the most probable first",
    "tool": "by the tool's name alone",
    "best": "by who knows which are wrong",
}


def deployment_gap(records: Records) -> Figure:
    """What training promises and delivers, against the dial; recall of the rule and gap, by what stands beside it."""
    runs = {name: [r["results"] for r in records if r.get("cell") == name] for name in CELLS}
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained", width_ratios=(1.1, 1))
    dialled = {dial: runs[f"dial-{100 * dial:.0f}"] for dial in DIALS if runs[f"dial-{100 * dial:.0f}"]}
    lines = {
        "promised": "promised: task success in rehearsal, as in training",
        "delivered": "delivered step by step: real success where the rule matters",
        "as_rehearsed": "delivered as rehearsed: the rehearsed calls, carried out unseen",
        "recall": f"recall of the rule {TRAP.rule!r}",
    }
    for i, (key, label) in enumerate(lines.items()):
        points = [mean_interval([outcome(result)[key] for result in results]) for results in dialled.values()]
        line(left, [100 * dial for dial in dialled], points, i, label)
    left.set_xlabel("dial: % of the training tasks that need the rule")
    left.set_ylim(0, 1.02)
    left.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0, -0.14))
    bare(left)
    names = [name for name in COMPARED if runs[name]]
    bars = {"recall": "recall of the rule", "gap": "promised minus delivered as rehearsed"}
    for i, (key, label) in enumerate(bars.items()):
        means, lows, highs = zip(
            *(mean_interval([outcome(result)[key] for result in runs[name]]) for name in names), strict=True
        )
        if key == "recall":  # a share
            lows, highs = np.clip(lows, 0, 1), np.clip(highs, 0, 1)
        right.barh(
            [place + 0.4 * i for place in range(len(names))],
            means,
            height=0.38,
            xerr=[np.nan_to_num(np.subtract(means, lows)), np.nan_to_num(np.subtract(highs, means))],
            capsize=2,
            color=COLOURS[i],
            hatch=("", "//")[i],
            edgecolor="white",
            label=label,
        )
    right.set_yticks(
        [place + 0.2 for place in range(len(names))], [CELLS[name].title for name in names], fontsize=8
    )
    right.invert_yaxis()
    right.axvline(0, color="black", linewidth=0.8)
    right.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0, -0.08))
    bare(right)
    right.grid(axis="x", color="#dddddd", linewidth=0.6)
    return figure
