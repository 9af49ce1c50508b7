"""The benchmark: the usual means do the same work, and what is measured has the stated form."""

from __future__ import annotations

from typing import Any

import pytest

from envace_lite.bench import GROUP_SIZE, frames, growth_cell, spread
from envace_lite.chat import GIVEN
from envace_lite.domains import Task
from envace_lite.peers import TrlSteps, generate_rollout
from envace_lite.policy import Policy
from envace_lite.rollout import rollout
from envace_lite.train import TrainConfig

Lessons = list[tuple[Task, list[dict[str, Any]]]]


def test_the_usual_way_writes_the_same_episodes(apt: Policy, lessons: Lessons) -> None:
    """Otherwise the two would not be timed on the same work."""
    tasks = [task for task, _ in lessons]
    usual = generate_rollout(apt, tasks, temperature=0)
    ours = rollout(apt, tasks, temperature=0)
    assert [(t.ids, t.roles, t.ending) for t in usual] == [(t.ids, t.roles, t.ending) for t in ours]


def test_the_usual_way_samples(tiny: Policy, lessons: Lessons) -> None:
    first = generate_rollout(tiny, [lessons[0][0]], group_size=3)
    assert len({tuple(t.ids) for t in first}) == 3
    assert all(t.ending for t in first)


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


def test_spread_and_frames() -> None:
    assert spread([3.0, 1.0, 2.0]) == [2.0, 1.0, 3.0]
    result = {"rollouts": [{"batch": 16, "ratio": [2.0, 1.0, 3.0]}], "step": {"update": [1.0, 0.5, 2.0]}}
    tables = frames(result)
    assert list(tables) == ["rollouts: tokens a second", "a training step"]
    assert tables["rollouts: tokens a second"].ratio[0] == "2 (1 to 3)"


@pytest.mark.long
def test_a_step_of_trl(apt: Policy, lessons: Lessons) -> None:
    pytest.importorskip("trl")
    from envace_lite.policy import with_lora

    steps = TrlSteps(
        with_lora(apt), [task for task, _ in lessons], TrainConfig(steps=2, prompts=4, group_size=2)
    )
    steps.run()
    assert len(steps.seconds) == len(steps.tokens) == 2
