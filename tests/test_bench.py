"""The benchmark: the usual means do the same work, and what is measured has the stated form."""

from __future__ import annotations

import re
from typing import Any

import pytest

from envace_lite.experiments import bench, plots
from envace_lite.experiments.bench import (
    GROUP_SIZE,
    frames,
    growth_cell,
    growth_table,
    profile,
    profile_tables,
    ratios_table,
    spread,
)
from envace_lite.experiments.peers import TrlSteps, generate_rollout
from envace_lite.model.language import GIVEN
from envace_lite.model.policy import Policy
from envace_lite.rollout import rollout
from envace_lite.train import TrainConfig
from envace_lite.world import Task

Lessons = list[tuple[Task, list[dict[str, Any]]]]


def test_the_usual_way_writes_the_same_episodes(apt: Policy, lessons: Lessons) -> None:
    """Otherwise the two would not be timed on the same work."""
    tasks = [task for task, _ in lessons]
    usual = generate_rollout(apt, tasks, temperature=0)
    ours = rollout(apt, tasks, temperature=0)
    assert [(t.ids, t.roles, t.stop_reason) for t in usual] == [(t.ids, t.roles, t.stop_reason) for t in ours]


def test_the_usual_way_samples(tiny: Policy, lessons: Lessons) -> None:
    first = generate_rollout(tiny, [lessons[0][0]], group_size=3)
    assert len({tuple(t.ids) for t in first}) == 3
    assert all(t.stop_reason for t in first)


def test_what_trl_gets(apt: Policy, lessons: Lessons) -> None:
    """One row a repeated prompt; injected tokens are masked; masks are as long as the ids."""
    tasks = [task for task, _ in lessons][:2]
    steps = TrlSteps(apt, tasks, TrainConfig(group_size=2))
    rows = steps.rollout([tasks[1].id, tasks[1].id, tasks[0].id, tasks[0].id], None)
    ids, masks = rows["completion_ids"], rows["env_mask"]
    assert ids is not None
    assert masks is not None
    assert [len(i) for i in ids] == [len(m) for m in masks]
    assert rows["prompt_ids"] == [
        rollout(apt, [task], temperature=0)[0].prompt for task in (tasks[1], tasks[0]) for _ in range(2)
    ]
    again = rollout(apt, [tasks[1]], temperature=0)[0]
    assert [int(role != GIVEN) for role in again.roles] in masks[:2]


def test_a_cell_of_the_growth_table() -> None:
    cell = growth_cell("0.3 M", 2, 1, repeats=1)
    assert cell["tokens"] == 2 * 13 * 8 * GROUP_SIZE
    assert 2e5 < cell["parameters"] < 4e5
    assert cell["sampling_seconds"] > 0 < cell["update_seconds"]
    assert 0 < cell["update_share_of_rate"] < 1.5


def test_each_cell_of_the_growth_table_runs_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SIZES", {"0.3 M": bench.SIZES["0.3 M"]})
    monkeypatch.setattr(bench, "HORIZONS", (1,))
    monkeypatch.setattr(bench, "THREADS", {1: "one thread"})
    (cell,) = bench.bench_growth()
    assert (cell["size"], cell["horizon"], cell["threads"]) == ("0.3 M", 1, 1)
    assert cell["tokens"] == 13 * 8 * GROUP_SIZE


def test_spread_and_frames() -> None:
    assert spread([3.0, 1.0, 2.0]) == [2.0, 1.0, 3.0]
    result = {"rollouts": [{"batch": 16, "ratio": [2.0, 1.0, 3.0]}], "steps": [{"update": [1.0, 0.5, 2.0]}]}
    tables = frames(result)
    assert list(tables) == ["rollouts: tokens a second", "a training step"]
    assert tables["rollouts: tokens a second"].ratio[0] == "2 (1 to 3)"


RESULT: dict[str, Any] = {
    "rollouts": [
        {"batch": 16, "engine": [9.0, 8.0, 9.5], "generate": [3.0, 2.0, 4.0], "ratio": [3.0, 2.0, 4.0]}
    ],
    "steps": [
        {
            "threads": threads,
            "engine": [0.2, 0.1, 0.3],
            "trl": [2.0, 1.0, 3.0],
            "ratio": [10.0 / threads, 9.0 / threads, 11.0 / threads],
        }
        for threads in (1, 2)
    ],
    "profile": {"rollout": [{"operation": "aten::mm", "milliseconds": 2.04, "share": 0.253, "calls": 7}]},
    "growth": [
        {
            "size": size,
            "parameters": parameters,
            "horizon": horizon,
            "threads": threads,
            "tokens": 832 * horizon,
            "sampling_seconds": horizon * 0.1,
            "update_seconds": horizon * 0.2,
            "update_share_of_rate": 0.5,
            "memory_mb": 12.0,
        }
        for size, parameters in (("0.3 M", 300_000), ("5 M", 5_000_000))
        for horizon in (2, 5)
        for threads in (1, 2)
    ],
}


def test_the_tables_say_what_was_measured() -> None:
    ratios, growth, operations = ratios_table(RESULT), growth_table(RESULT), profile_tables(RESULT)
    assert "| rollout, 16 rows, one thread, beside `generate` | 3.0 (2.0 to 4.0) |" in ratios
    assert "| training step, two threads, beside TRL's `GRPOTrainer` | 5.0 (4.5 to 5.5) |" in ratios
    assert "| 5.0 M | 5 | 2 | 4,160 | 120 | 240 | 0.50 | 12 |" in growth
    assert len(re.findall(r"^\| [05]\.\d M", growth, re.M)) == 8
    assert "| `aten::mm` | 2.0 | 25% | 7 |" in operations


def test_without_trl_its_line_is_left_out() -> None:
    without = {**RESULT, "steps": [{"threads": 1, "engine": [0.2, 0.1, 0.3]}]}
    assert "TRL" not in ratios_table(without)
    assert len(plots.speed(without).axes[0].patches) == 1


def test_the_figure_has_a_bar_for_each_ratio_and_a_line_for_each_size() -> None:
    left, middle, right = plots.speed(RESULT).axes
    assert [bar.get_height() for bar in left.patches] == [3.0, 10.0, 5.0]
    assert len(middle.lines) == len(right.lines) == 2
    assert list(middle.lines[0].get_xdata()) == [1664, 4160]
    assert middle.lines[0].get_ydata() == pytest.approx([0.6, 1.5])


def test_the_profile_is_of_rollout_and_update(tiny: Policy) -> None:
    tables = profile(tiny, TrainConfig(prompts=2, group_size=2))
    assert list(tables) == ["rollout", "update"]
    for frame in tables.values():
        assert frame.milliseconds.is_monotonic_decreasing
        assert 0 < frame.share.sum() <= 1.05
    assert any("mm" in name for name in tables["update"].operation)


@pytest.mark.long
def test_a_step_of_trl(apt: Policy, lessons: Lessons) -> None:
    pytest.importorskip("trl")
    from envace_lite.model.policy import with_lora

    steps = TrlSteps(
        with_lora(apt), [task for task, _ in lessons], TrainConfig(steps=2, prompts=4, group_size=2)
    )
    steps.run()
    assert len(steps.seconds) == len(steps.tokens) == 2
