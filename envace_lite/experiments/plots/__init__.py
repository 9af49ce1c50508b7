"""Figures. Colours are told apart by people with any colour vision, and never carry meaning alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envace_lite.experiments.deliberate_tables import AFTER
from envace_lite.experiments.plots.base import COLOURS, LABELS, MARKERS, save, show
from envace_lite.experiments.plots.bearing import PANELS, where_decisions_rest
from envace_lite.experiments.plots.deliberating import deliberation
from envace_lite.experiments.plots.probing import (
    deployment_gap,
    fidelity_over_depth,
    gap_over_training,
    recall_by_rule,
    reliability,
    risk_over_coverage,
)
from envace_lite.experiments.plots.timing import speed
from envace_lite.experiments.plots.training import arms, gap, progress
from envace_lite.experiments.records import of_kind
from envace_lite.train import TrainConfig
from envace_lite.world import DOMAINS

DECIDED = "Real success and wrong writes over the tokens of each way of deciding, on three kinds of tasks"


def draw_all(records: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """Every figure that the records suffice for.

    Args:
        records: of `arms.load_records`.

    Returns:
        The paths of the figures that were drawn.
    """
    everywhere = [r for r in records if len(r.get("domains", [])) == len(DOMAINS)]
    runs = [r for r in of_kind("train", everywhere) if r["config"]["steps"] == TrainConfig().steps]
    probed = of_kind("controls", everywhere) + runs
    rehearsed = [r for r in runs if r["arm"] == "rehearsal"]
    traps = of_kind("trap", records)
    benches = [r["result"] for r in of_kind("bench", records) if "growth" in r["result"]]
    decided = {
        title: [r for r in of_kind("deliberate", records) if r["title"] == title] for title in (AFTER, "base")
    }
    wanted = [
        ("arms", runs, arms, "Real success, fidelity and bearing parts over the steps, by arm"),
        (
            "gap_over_training",
            rehearsed,
            gap_over_training,
            "What is told right over the steps, by outcome, by what rests on it, and on held-out tools",
        ),
        ("fidelity_over_depth", probed, fidelity_over_depth, "Fidelity by the number of calls before"),
        ("recall_by_rule", probed, recall_by_rule, "Share of real errors rehearsed as errors, by rule"),
        (
            "reliability",
            probed,
            reliability,
            "Probability of rehearsed responses against the share that is right",
        ),
        (
            "risk_over_coverage",
            [r for r in of_kind("trust", everywhere) if r["title"] == AFTER],
            risk_over_coverage,
            "Share of the trusted responses that is wrong, over the share that is trusted",
        ),
        (
            "trap",
            traps,
            deployment_gap,
            "What training promises and delivers, by the dial; recall of the rule and gap, by what stands beside",
        ),
        ("deliberation", decided[AFTER], deliberation, DECIDED),
        (
            "deliberation_held_out",
            decided[AFTER],
            lambda found: deliberation(found, split="held_out"),
            f"{DECIDED}, on held-out tools",
        ),
        ("deliberation_base", decided["base"], deliberation, f"{DECIDED}, before training"),
        (
            "where_decisions_rest",
            [r for r in runs if r["arm"] in PANELS],
            where_decisions_rest,
            "Share of the parts of responses rehearsed right, where decisions rest on them and elsewhere",
        ),
        ("speed", benches, lambda found: speed(found[0]), "Speed beside the usual means, and growth"),
    ]
    return [save(draw(found), folder / f"{name}.png", about) for name, found, draw, about in wanted if found]


__all__ = [
    "COLOURS",
    "LABELS",
    "MARKERS",
    "arms",
    "deliberation",
    "deployment_gap",
    "draw_all",
    "fidelity_over_depth",
    "gap",
    "gap_over_training",
    "progress",
    "recall_by_rule",
    "reliability",
    "risk_over_coverage",
    "save",
    "show",
    "speed",
    "where_decisions_rest",
]
