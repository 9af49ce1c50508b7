"""Figures of the probe and of the trap: what they draw is what the records say."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from matplotlib.colors import same_color
from PIL import Image

from envace_lite.experiments import plots
from envace_lite.experiments.plots import COLOURS
from envace_lite.experiments.rows import MEASURES
from envace_lite.experiments.trap import CELLS, COMPARED, DIALS, outcome
from envace_lite.train import TrainConfig
from envace_lite.world import DOMAINS, TRAP


def trap_record(cell: str, seed: int, recall: float) -> dict[str, Any]:
    group = {"real_success": [0.7, 0.6, 0.8], "wm2real": [recall / 2, 0, 1]}
    results = {"promised": 0.9, "needs": group, "others": group, "rules": {TRAP.rule: {"recall": recall}}}
    return {"kind": "trap", "cell": cell, "seed": seed, "results": results | {"missing_rules": []}}


TRAPS = [trap_record(cell, seed, 0.2 + 0.1 * seed + CELLS[cell].dial) for cell in CELLS for seed in range(3)]


def probed(title: str, seed: int) -> dict[str, Any]:
    """A record of a run with everything that the figures read."""
    observed = [
        {
            "step": step,
            **{name: 0.01 * step + 0.1 * seed + 0.02 * place for place, name in enumerate(MEASURES)},
            **{f"held_out_{name}": 0.3 + 0.02 * place for place, name in enumerate(MEASURES)},
        }
        for step in (0, 10, 20)
    ]
    part = {
        "rules": {"status": {"recall": 0.5 + 0.1 * seed}, "type": {"recall": 0.1}},
        "by_depth": [[0, 50, 0.9, 0.9], [1, 40, 0.8, 0.7 - 0.1 * seed], [2, 3, 0.0, 0.0]],
        "reliability": [[30, 0.55, 0.4], [30, 0.95, 0.9], [5, 0.15, 1.0]],
    }
    about = {"kind": "train", "arm": "rehearsal", "title": title, "seed": seed, "domains": list(DOMAINS)}
    config = {"steps": TrainConfig().steps}
    return {**about, "config": config, "observed": observed, "probe": {"test": part, "held_out": part}}


RUNS = [probed(title, seed) for title in ("one", "other") for seed in range(3)]


def heights(line: Any) -> list[float]:
    return [float(y) for y in line.get_ydata()]


def test_the_dial_and_the_gap() -> None:
    left, right = plots.deployment_gap(TRAPS).axes
    lines = {line.get_label().split(":")[0]: line for line in left.lines}
    assert [float(x) for x in lines["promised"].get_xdata()] == [100 * dial for dial in DIALS]
    for name, key in (("promised", "promised"), ("delivered as rehearsed", "as_rehearsed")):
        expected = [
            mean(outcome(r["results"])[key] for r in TRAPS if r["cell"] == f"dial-{100 * dial:.0f}")
            for dial in DIALS
        ]
        assert heights(lines[name]) == pytest.approx(expected)
    names = [label.get_text() for label in right.get_yticklabels()]
    assert names == [CELLS[cell].title for cell in COMPARED]
    bars = right.patches
    assert [bar.get_hatch() for bar in bars] == [""] * len(COMPARED) + ["//"] * len(COMPARED)
    place = COMPARED.index("dial-20")
    recall = mean((0.4, 0.5, 0.6))  # at a dial of 0.2
    assert bars[place].get_width() == pytest.approx(recall)
    assert bars[len(COMPARED) + place].get_width() == pytest.approx(0.9 - recall / 2)


def test_the_gap_over_training() -> None:
    """Means over the seeds: successes and errors apart, the two kinds of parts apart, and held-out tools."""
    place = {name: 0.02 * number for number, name in enumerate(MEASURES)}
    shown = [("contents", "error_recall", "pessimism"), *[("bearing", "idle", "fidelity")] * 2]
    panels = plots.gap_over_training(RUNS[:3]).axes
    for panel, names in zip(panels, shown, strict=True):
        over_steps = (0.1, 0.2, 0.3) if panel is not panels[2] else (0.3, 0.3, 0.3)
        for line, name in zip(panel.lines, names, strict=True):
            assert heights(line) == pytest.approx([height + place[name] for height in over_steps])


def test_runs_of_another_length_are_not_drawn_among_the_others(tmp_path: Path) -> None:
    """Their steps would stand under those of the study."""
    longer = [{**run, "config": {"steps": 2 * TrainConfig().steps}} for run in RUNS]
    assert plots.draw_all(longer, tmp_path) == []


def test_depths_that_are_seldom_reached_are_left_out() -> None:
    teacher_forced, open_loop = plots.fidelity_over_depth(RUNS).axes
    assert heights(teacher_forced.lines[0]) == pytest.approx([0.9, 0.8])
    assert heights(open_loop.lines[1]) == pytest.approx([0.9, 0.6])
    assert [line.get_marker() for line in teacher_forced.lines] == list(plots.MARKERS[:2])


def test_recall_by_rule_is_told_apart_without_colour() -> None:
    (axes,) = plots.recall_by_rule(RUNS).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["status", "type"]
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([0.6, 0.1, 0.6, 0.1])
    assert len({(bar.get_hatch()) for bar in axes.patches}) == 2
    assert same_color(axes.patches[0].get_facecolor(), COLOURS[0])


def test_a_bin_with_few_pairs_is_left_out() -> None:
    (axes,) = plots.reliability(RUNS).axes
    assert heights(axes.lines[1]) == pytest.approx([0.4, 0.9])


def test_all_figures_are_drawn_and_described(tmp_path: Path) -> None:
    drawn = plots.draw_all([*RUNS, *TRAPS], tmp_path)
    names = {"arms", "gap_over_training", "where_decisions_rest", "trap"}
    names |= {"fidelity_over_depth", "recall_by_rule", "reliability"}
    assert {path.stem for path in drawn} == names
    for path in drawn:
        with Image.open(path) as image:
            assert image.text["Description"]  # type: ignore[attr-defined]
    assert plots.draw_all([], tmp_path / "none") == []
    assert not (tmp_path / "none").exists()
