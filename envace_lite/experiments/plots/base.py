"""What all figures share. Colours are told apart by people with any colour vision, and never carry meaning alone."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg", force=False)

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
LABELS = {
    "real_success": "real success",
    "fidelity": "fidelity",
    "bearing": "parts that bear decisions",
    "error_recall": "error recall",
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


def bare(axes: Axes) -> None:
    """Only the axes that are read, and faint lines to read them by."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def line(
    axes: Axes, places: Sequence[float], points: Sequence[tuple[float, float, float]], i: int, label: str
) -> None:
    """The i-th line of a figure, through (value, low, high) at each place."""
    colour, marker = COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]
    axes.plot(places, [v for v, _, _ in points], color=colour, marker=marker, markersize=4, label=label)
    axes.fill_between(
        places, [low for _, low, _ in points], [high for *_, high in points], color=colour, alpha=0.15
    )


def legend_below(figure: Figure, axes: Axes, columns: int = 2) -> None:
    """One legend for all panels."""
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", frameon=False, fontsize=8, ncol=columns)
