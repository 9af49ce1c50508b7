"""The trap domain and its study: the dial, the cells, the promise and what is delivered."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from envace_lite import paths
from envace_lite.experiments import trap
from envace_lite.experiments.arms import load_records
from envace_lite.experiments.grounding import Grounding
from envace_lite.experiments.rewards import REWARDS
from envace_lite.experiments.trap import CELLS, assess, few_examples, run_cell, trap_table
from envace_lite.model.policy import Family, Policy, load_policy
from envace_lite.train import TrainConfig, train
from envace_lite.world import DOMAINS, TRAP, Task, get_domain
from envace_lite.world.shipped import shipped_tasks
from envace_lite.world.trap import WITHOUT
from helpers import CHAT, carried_out, copied, planned_calls, same_weights, weights

# The domain ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dial", [0.0, 0.1, 1.0])
def test_the_dial_is_the_share_of_tasks_that_need_the_rule(dial: float) -> None:
    tasks = TRAP.tasks("train", dial, 60)
    assert sum(map(TRAP.needs, tasks)) == round(60 * dial)
    assert len({task.id for task in tasks}) == 60
    assert TRAP.tasks("train", dial, 60) == tasks
    assert TRAP.tasks("train", dial, 60, seed=1) != tasks


def test_a_task_that_needs_the_rule_cannot_be_told_without_it() -> None:
    """In its plan a sale is refused where no share is owned; in the others none is."""
    for task in TRAP.tasks("test", 0.5, 60):
        met = [response.error for _, response in carried_out(task, planned_calls(task)).log]
        assert ("stock" in met) == TRAP.needs(task)
        assert "market.cash_in" not in [call.name for call in planned_calls(task)]


@pytest.mark.parametrize("without", WITHOUT)
def test_what_the_other_tasks_do_without(without: str) -> None:
    tasks = TRAP.tasks("train", 0.2, 100, without=without)
    assert all(rule == "stock" for task in tasks if TRAP.needs(task) for _, rule in TRAP.refusals(task))
    refused = {pair for task in tasks if not TRAP.needs(task) for pair in TRAP.refusals(task)}
    assert "stock" not in {rule for _, rule in refused}
    assert ("market.sell" in {tool for tool, _ in refused}) == (without == "rule")
    assert bool(refused) == (without != "refusals")
    assert not any("goal" in task.tags for task in tasks)


def test_a_mistyped_way_is_named() -> None:
    with pytest.raises(ValueError, match="one of rule, tool, refusals; 'refusal' is none"):
        TRAP.tasks("train", 0.0, 1, without="refusal")


def test_refusals_are_those_of_the_real_world() -> None:
    task = next(t for t in TRAP.tasks("test", 1.0, 20) if len(planned_calls(t)) == 1)
    assert TRAP.refusals(task) == {("market.sell", "stock")}
    assert TRAP.refusals(next(iter(TRAP.tasks("test", 0.0, 1)))) == set()


def test_its_tasks_are_drawn_where_others_are_shipped() -> None:
    tasks = shipped_tasks(["trap", "orders"], "test", 6)
    assert [task.domain for task in tasks] == ["trap"] * 6 + ["orders"] * 6
    assert sum(map(TRAP.needs, tasks[:6])) == 3


def test_it_speaks_the_words_of_bank() -> None:
    assert get_domain("trap") is TRAP
    assert "trap" not in DOMAINS
    for task in TRAP.tasks("test", 0.5, 30):
        assert task.messages[0]["content"].startswith("bank ")
        CHAT.render(task.messages, task.tools, prompt="act")


# Real examples beside --------------------------------------------------------------------------------------


def test_examples_are_real_responses(tiny: Policy) -> None:
    chosen = few_examples(tiny, 0)
    assert len(chosen.examples) == 16
    for prompt, response in chosen.examples:
        assert tiny.chat.decode(response).endswith("error stock <end>")
        assert "<tool>" in tiny.chat.decode(prompt[-3:])


def small(**changes: Any) -> TrainConfig:
    usual = {"steps": 12, "prompts": 2, "group_size": 2, "lora_rank": 0, "lr": 3e-3, "warmup": 1}
    return TrainConfig(**(usual | changes))


def test_what_is_shown_is_learned(tiny: Policy) -> None:
    """Without a difference in reward, the examples alone move the policy, towards them."""
    tasks = TRAP.tasks("train", 0.0, 8)
    grounding = Grounding(few_examples(tiny, 0).examples[:2], weight=1.0, per_step=2)
    families = [Family(prompt, [response]) for prompt, response in grounding.examples]

    def constant(_: object) -> float:
        return 0.0

    before = copied(tiny).log_probs(families)[0].mean()
    trained, _ = train(copied(tiny), tasks, small(), reward=constant, extra_loss=grounding)
    assert trained.log_probs(families)[0].mean() > before + 0.5
    still, _ = train(copied(tiny), tasks, small(), reward=constant)
    assert same_weights(weights(still), weights(tiny))


def test_a_grounding_without_weight_changes_nothing(tiny: Policy) -> None:
    tasks = TRAP.tasks("train", 0.0, 8)

    def odd(trajectory: Any) -> float:
        return sum(trajectory.ids) % 2

    weightless = Grounding(few_examples(tiny, 0).examples, weight=0.0)
    plain, _ = train(copied(tiny), tasks, small(steps=2, group_size=8), reward=odd)
    beside, _ = train(copied(tiny), tasks, small(steps=2, group_size=8), reward=odd, extra_loss=weightless)
    for one, other in zip(weights(plain).values(), weights(beside).values(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
    assert not same_weights(weights(plain), weights(tiny))  # there was something to change


def test_examples_of_a_step_are_drawn_from_the_seed() -> None:
    grounding = Grounding([([i], [i]) for i in range(50)], per_step=8)
    first = [family.prompt for family in grounding.draw(1)]
    assert first == [family.prompt for family in grounding.draw(1)]
    assert first != [family.prompt for family in grounding.draw(2)]
    assert len(first) == len({tuple(prompt) for prompt in first}) == 8


# Cells -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(CELLS))
def test_every_cell_names_what_exists(name: str) -> None:
    assert CELLS[name].reward in REWARDS
    assert CELLS[name].without in WITHOUT
    assert 0 <= CELLS[name].dial <= 1


@pytest.mark.parametrize(("name", "against"), [("self_judged", "dial-20"), ("few_examples", "dial-0")])
def test_a_cell_differs_in_one_thing_from_that_which_it_is_compared_with(name: str, against: str) -> None:
    usual = vars(CELLS[against])
    differing = {key for key, value in vars(CELLS[name]).items() if value != usual[key]} - {"title"}
    assert len(differing) == 1


@pytest.fixture
def somewhere(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(paths, "WORK", tmp_path / "work")
    monkeypatch.setattr(trap, "TRAINING_TASKS", 20)
    monkeypatch.setattr(trap, "TRAP_CONFIG", small(steps=2))
    monkeypatch.setattr(assess, "__kwdefaults__", None)
    monkeypatch.setattr(assess, "__defaults__", (12,))


@pytest.mark.any_tokens
@pytest.mark.usefixtures("somewhere")
def test_a_cell_is_recorded_and_tabled(tiny: Policy) -> None:
    for seed in (0, 1):
        record = run_cell(
            copied(tiny), "few_examples", seed, command="python -m envace_lite.experiments trap"
        )
        assert record["totals"]["real_examples"] == 16
        assert load_policy(paths.WORK / f"trap-few_examples-{seed}" / "policy").chat.words == tiny.chat.words
        assert record["totals"]["environment_calls"] == 0
    results = record["results"]
    assert set(results["rules"]) >= {"stock", "unknown"}
    table = trap_table(load_records())
    assert "| 0%, and 16 real errors of the rule | 2 |" in table
    assert "20%" not in table
    assert trap_table([]) == ""


@pytest.mark.any_tokens
def test_promise_and_delivery(apt: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """What training reports is weighed by the dial; what is delivered is real success where the rule matters."""
    monkeypatch.setitem(REWARDS, "task_success", lambda t: float(TRAP.needs(t.task)))
    results = assess(apt, CELLS["dial-20"], 10)
    assert results["promised"] == pytest.approx(0.2)
    assert results["needs"]["real_success"][0] == 0.0
    assert [results["needs"][m][0] for m in ("rehearsed_success", "wm2real")] == [0.0, 0.0]


def test_tasks_of_the_trap_are_tasks() -> None:
    for task in TRAP.tasks("held_out", 0.5, 6):
        assert isinstance(task, Task)
        assert any(call.name == "market.cash_in" for call in planned_calls(task))
