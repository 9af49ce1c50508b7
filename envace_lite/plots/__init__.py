"""Figures. Colours are told apart by people with any colour vision, and never carry meaning alone."""

from envace_lite.plots.base import COLOURS, LABELS, MARKERS, save, show
from envace_lite.plots.probing import (
    deployment_gap,
    fidelity_over_depth,
    gap_over_training,
    recall_by_rule,
    reliability,
)
from envace_lite.plots.speed import speed
from envace_lite.plots.training import arms, gap

__all__ = [
    "COLOURS",
    "LABELS",
    "MARKERS",
    "arms",
    "deployment_gap",
    "fidelity_over_depth",
    "gap",
    "gap_over_training",
    "recall_by_rule",
    "reliability",
    "save",
    "show",
    "speed",
]
