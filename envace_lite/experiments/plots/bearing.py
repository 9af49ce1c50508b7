"""The claim of the method as two curves: realism where decisions rest on it, and elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from envace_lite.experiments.plots.base import COLOURS, MARKERS, bare, legend_below

HALVES = {"bearing": "parts on which decisions rest", "idle": "other parts"}
PANELS = {
    "rehearsal": "world rehearsal",
    "execute": "executable environment",
    "end_at_error": "ends at a rehearsed error",
    "drawn": "reward drawn at random",
}
"""The arms that are shown, and how they are called."""


def where_decisions_rest(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Share of the parts of real responses that are rehearsed right, over training; a thin line a cell, a thick mean.

    Args:
        records: of the kind `train`; arms other than those of `PANELS` are left out.
    """
    shown = [arm for arm in PANELS if any(record["arm"] == arm for record in records)]
    figure, panels = plt.subplots(
        1, len(shown), figsize=(1.4 + 3.6 * len(shown), 3.8), sharey=True, squeeze=False, layout="constrained"
    )
    for axes, arm in zip(panels[0], shown, strict=True):
        observed = [record["observed"] for record in records if record["arm"] == arm]
        for i, (name, label) in enumerate(HALVES.items()):
            curves = [[(row["step"], row[name]) for row in rows] for rows in observed]
            for curve in curves:
                axes.plot(*zip(*curve, strict=True), color=COLOURS[i], linewidth=0.7, alpha=0.45)
            shared = sorted(set.intersection(*({step for step, _ in curve} for curve in curves)))
            means = [sum(dict(curve)[step] for curve in curves) / len(curves) for step in shared]
            axes.plot(shared, means, color=COLOURS[i], marker=MARKERS[i], markersize=4, label=label)
        count = f"{len(observed)} run{'s' if len(observed) > 1 else ''}"
        axes.set_title(f"{PANELS[arm]} ({count})", fontsize=10)
        axes.set_xlabel("step")
        bare(axes)
    panels[0][0].set_ylabel("rehearsed right")
    legend_below(figure, panels[0][0])
    return figure
