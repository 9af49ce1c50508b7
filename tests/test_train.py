"""Training: no environment, both roles, and an interrupted run that ends like one that was not."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from envace_lite.grpo import role_advantages
from envace_lite.model.checkpoint import CheckpointError, load_state, save_state
from envace_lite.model.language import ACT, GIVEN, REHEARSE
from envace_lite.model.policy import Family, Policy, with_lora
from envace_lite.rollout import Execute, Rehearse, Responder, Simulate, Trajectory, rollout
from envace_lite.train import TrainConfig, TrainLog, collect, learning_rate, metrics, train, update
from envace_lite.world import Task, ToyDomain
from envace_lite.world.tools import Tool
from helpers import copied, same_weights, splits, weights

Lessons = list[tuple[Task, list[dict[str, Any]]]]
SMALL = TrainConfig(
    steps=4,
    prompts=4,
    group_size=4,
    lr=1e-2,
    warmup=1,
    lora_rank=4,
    temperature=1.4,
    save_every=1,
    observe_every=2,
)
ALL_WEIGHTS = replace(SMALL, lora_rank=0, lr=1e-3)
both_kinds = pytest.mark.parametrize("config", [SMALL, ALL_WEIGHTS], ids=["lora", "all weights"])


@pytest.fixture(scope="module")
def tasks(lessons: Lessons) -> list[Task]:
    return [task for task, _ in lessons]


def odd_length(trajectory: Trajectory) -> float:
    """A reward that differs within almost every group."""
    return float(len(trajectory.ids) % 2)


# No environment --------------------------------------------------------------------------------------------


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a session or calling a tool is an error."""

    def refuse(*_: Any) -> None:
        raise AssertionError("the environment was asked")

    monkeypatch.setattr(ToyDomain, "reset", refuse)
    monkeypatch.setattr(Tool, "call", refuse)


@both_kinds
@pytest.mark.usefixtures("no_environment")
def test_world_rehearsal_needs_no_environment(apt: Policy, tasks: list[Task], config: TrainConfig) -> None:
    policy = copied(apt)
    trained, log = train(policy, tasks, replace(config, steps=2, prompts=12))
    assert log.totals["environment_calls"] == 0
    assert log.frame.calls.min() > 0.1
    assert log.frame.grad_norm.max() > 0
    assert not same_weights(
        weights(trained), weights(with_lora(copied(apt), rank=4) if trained.is_lora else apt)
    )


@pytest.mark.usefixtures("no_environment")
def test_training_on_the_environment_asks_it(apt: Policy, tasks: list[Task]) -> None:
    with pytest.raises(AssertionError, match="the environment was asked"):
        train(copied(apt), tasks, SMALL, responder=Execute())


def test_environment_calls_are_counted(apt: Policy, tasks: list[Task]) -> None:
    _, log = train(copied(apt), tasks, replace(SMALL, steps=2), responder=Execute())
    made = sum(row["calls"] for row in log.rows) * SMALL.prompts * SMALL.group_size
    assert log.totals["environment_calls"] == pytest.approx(made)
    assert made > 10


# Interrupted and resumed -----------------------------------------------------------------------------------


def interrupted_at(step: int, config: TrainConfig) -> Callable[[Trajectory], float]:
    """A reward that interrupts while the rollouts of a step (from 0) are judged."""
    judged = 0

    def reward(trajectory: Trajectory) -> float:
        nonlocal judged
        judged += 1
        if judged > (step + 0.5) * config.prompts * config.group_size:
            raise KeyboardInterrupt
        return odd_length(trajectory)

    reward.__name__ = odd_length.__name__  # a run is only continued under the same reward
    return reward


def outcome(trained: Policy, log: TrainLog) -> tuple[dict[str, Tensor], Any, float]:
    return weights(trained), log.rows, log.totals["tokens"]


@pytest.fixture(scope="module")
def uninterrupted(apt: Policy, tasks: list[Task]) -> Callable[[TrainConfig], Any]:
    """What a run without an interrupt leads to."""
    known: dict[TrainConfig, Any] = {}

    def result(config: TrainConfig) -> Any:
        if config not in known:
            known[config] = outcome(*train(copied(apt), tasks, config, reward=odd_length))
        return known[config]

    return result


@both_kinds
@pytest.mark.parametrize("step", [0, 1, 2, 3])
@pytest.mark.parametrize("save_every", [1, 2])
def test_a_resumed_run_is_the_uninterrupted_one(
    apt: Policy,
    tasks: list[Task],
    tmp_path: Path,
    uninterrupted: Callable[[TrainConfig], Any],
    config: TrainConfig,
    step: int,
    save_every: int,
) -> None:
    """Bit for bit: weights, metrics and tokens. The second process starts from the base again."""
    config = replace(config, save_every=save_every)
    with pytest.raises(KeyboardInterrupt):
        train(copied(apt), tasks, config, reward=interrupted_at(step, config), folder=tmp_path)
    torch.manual_seed(step)
    resumed = outcome(*train(copied(apt), tasks, config, reward=odd_length, folder=tmp_path))
    expected = uninterrupted(replace(config, save_every=1))
    assert same_weights(resumed[0], expected[0])
    assert resumed[1:] == expected[1:]


@both_kinds
def test_a_run_is_resumed_with_the_same_policy_object(
    apt: Policy,
    tasks: list[Task],
    tmp_path: Path,
    uninterrupted: Callable[[TrainConfig], Any],
    config: TrainConfig,
) -> None:
    """As in a notebook, where a cell is interrupted and run again."""
    policy = copied(apt)
    with pytest.raises(KeyboardInterrupt):
        train(policy, tasks, config, reward=interrupted_at(2, config), folder=tmp_path)
    resumed = outcome(*train(policy, tasks, config, reward=odd_length, folder=tmp_path))
    assert same_weights(resumed[0], uninterrupted(config)[0])


@pytest.mark.parametrize("save", [1, 2, 3])
def test_an_interrupt_while_saving_leaves_the_earlier_checkpoint(
    apt: Policy,
    tasks: list[Task],
    tmp_path: Path,
    uninterrupted: Callable[[TrainConfig], Any],
    monkeypatch: pytest.MonkeyPatch,
    save: int,
) -> None:
    saved = 0

    def write_half(state: Any, file: Any) -> None:
        nonlocal saved
        saved += 1
        if saved == save:
            file.write(b"PK" * 1000)
            raise KeyboardInterrupt
        original(state, file)

    original = torch.save
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", write_half)
        with pytest.raises(KeyboardInterrupt):
            train(copied(apt), tasks, SMALL, reward=odd_length, folder=tmp_path)
    path = tmp_path / "train.pt"
    assert path.is_file() == (save > 1)
    if save > 1:
        assert load_state(path)["step"] == save - 1
    resumed = outcome(*train(copied(apt), tasks, SMALL, reward=odd_length, folder=tmp_path))
    assert same_weights(resumed[0], uninterrupted(SMALL)[0])


def test_a_finished_run_is_returned(apt: Policy, tasks: list[Task], tmp_path: Path) -> None:
    config = replace(SMALL, steps=1)
    first = outcome(*train(copied(apt), tasks, config, reward=odd_length, folder=tmp_path))
    again = outcome(*train(copied(apt), tasks, config, reward=interrupted_at(0, config), folder=tmp_path))
    assert same_weights(first[0], again[0])
    assert first[1:] == again[1:]


def test_a_run_with_another_configuration_is_not_continued(
    apt: Policy, tasks: list[Task], tmp_path: Path
) -> None:
    train(copied(apt), tasks, replace(SMALL, steps=1), folder=tmp_path)
    with pytest.raises(CheckpointError, match="another configuration"):
        train(copied(apt), tasks, replace(SMALL, steps=1, lr=2e-2), folder=tmp_path)


def test_a_folder_that_cannot_be_written(apt: Policy, tasks: list[Task], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(CheckpointError, match="cannot write the checkpoint"):
        train(copied(apt), tasks, replace(SMALL, steps=1), folder=tmp_path / "file")


def test_a_damaged_checkpoint(apt: Policy, tasks: list[Task], tmp_path: Path) -> None:
    save_state(tmp_path / "train.pt", {}, step=1)
    whole = (tmp_path / "train.pt").read_bytes()
    for data in (b"", whole[: len(whole) // 2], b"not a checkpoint"):
        (tmp_path / "train.pt").write_bytes(data)
        with pytest.raises(CheckpointError, match=r"train\.pt is damaged"):
            train(copied(apt), tasks, SMALL, folder=tmp_path)


def test_a_state_survives_a_file(tmp_path: Path) -> None:
    path, identity = tmp_path / "new" / "state.pt", {"lr": 0.1}
    for step in (3, 4):
        save_state(path, identity, step=step, log=[{"reward": 0.5}], weights=torch.arange(3.0))
    loaded = load_state(path, identity)
    assert loaded["step"] == 4
    assert loaded["log"] == [{"reward": 0.5}]
    assert torch.equal(loaded["weights"], torch.arange(3.0))
    with pytest.raises(CheckpointError, match=r"state\.pt has another configuration"):
        load_state(path, {"lr": 0.2})
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["state.pt"]


# The eval callback -----------------------------------------------------------------------------------------


@both_kinds
def test_the_observer_feeds_nothing_back(
    apt: Policy, tasks: list[Task], uninterrupted: Callable[[TrainConfig], Any], config: TrainConfig
) -> None:
    def observer(step: int, policy: Policy, trajectories: Any) -> dict[str, float]:
        random.seed(step)
        torch.manual_seed(step)
        deployed = rollout(policy, tasks, Execute(), temperature=0.0)
        policy.log_probs([Family(t.prompt, [t.ids]) for t in deployed])
        return {"seen": float(len(trajectories)), "draw": torch.rand(1).item()}

    trained, log = train(copied(apt), tasks, config, reward=odd_length, eval_callback=observer)
    assert same_weights(weights(trained), uninterrupted(config)[0])
    assert log.rows == uninterrupted(config)[1]
    assert [(row["step"], row["seen"]) for row in log.observed] == [(0, 0.0), (2, 16.0), (4, 16.0)]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_run_depends_on_its_seed_alone(
    apt: Policy, tasks: list[Task], uninterrupted: Callable[[TrainConfig], Any], seed: int
) -> None:
    torch.manual_seed(99)
    trained, _ = train(copied(apt), tasks, replace(SMALL, seed=seed), reward=odd_length, workers=2)
    assert same_weights(weights(trained), uninterrupted(SMALL)[0]) == (seed == 0)


def test_adapters_are_trained_and_the_base_is_left_alone(apt: Policy, tasks: list[Task]) -> None:
    policy = copied(apt)
    trained, _ = train(policy, tasks, replace(SMALL, steps=1), reward=odd_length)
    assert trained.is_lora
    prompts = [Family([2, 3], [[4, 5, 6]])]
    assert torch.equal(policy.log_probs(prompts)[0], apt.log_probs(prompts)[0])
    assert not torch.equal(trained.log_probs(prompts)[0], apt.log_probs(prompts)[0])


# The loss --------------------------------------------------------------------------------------------------


def batch(
    policy: Policy, tasks: list[Task], responder: Responder | None = None
) -> tuple[list[Trajectory], Tensor]:
    """Some rollouts with rewards that differ within each group; the first group is left without a difference."""
    calling, config = [task for task in tasks if "no_tool" not in task.tags], replace(SMALL, prompts=8)
    trajectories, _ = collect(policy, calling, config, 0, responder or Rehearse(), odd_length)
    rewards = torch.tensor([float(row % 3 == 0) for row in range(len(trajectories))]).view(8, -1)
    rewards[0] = 1.0
    return trajectories, rewards


def gradient(
    policy: Policy,
    trajectories: list[Trajectory],
    rewards: Tensor,
    config: TrainConfig = ALL_WEIGHTS,
    **options: Any,
) -> tuple[Tensor, dict[str, float]]:
    """The gradient of an update (not shortened), and the metrics that it returns."""
    policy = copied(policy)
    optimizer = torch.optim.SGD(policy.model.parameters(), lr=0.0)
    row = update(policy, trajectories, rewards, replace(config, max_grad_norm=1e9), optimizer, **options)
    grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in policy.model.parameters()]
    return torch.cat([grad.flatten() for grad in grads]), row


def expected_gradient(
    policy: Policy, trajectories: list[Trajectory], rewards: Tensor, roles: list[int]
) -> Tensor:
    """The same from the definition: on the first update the ratio is one, and nothing is clipped."""
    policy = copied(policy)
    total = sum(t.roles.count(role) for t in trajectories for role in roles)
    loss = torch.zeros(())
    for role in roles:
        outputs = torch.tensor([float(t.outputs[role]) for t in trajectories]).view(rewards.shape)
        for t, advantage in zip(trajectories, role_advantages(rewards, outputs).flatten(), strict=True):
            logits = policy.model(input_ids=torch.tensor([t.prompt + t.ids])).logits[
                0, len(t.prompt) - 1 : -1
            ]
            log_p = (logits / SMALL.temperature).log_softmax(-1)[range(len(t.ids)), t.ids]
            loss = loss - advantage * log_p[torch.tensor(t.roles) == role].sum() / total
    loss.backward()
    return torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])


def close(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).norm() < 1e-4 * other.norm())


def test_each_role_has_its_own_gradient(apt: Policy, tasks: list[Task]) -> None:
    """A role that is switched off contributes nothing."""
    trajectories, rewards = batch(apt, tasks)
    act, _ = gradient(apt, trajectories, rewards, replace(ALL_WEIGHTS, train_rehearse=False))
    rehearse, _ = gradient(apt, trajectories, rewards, replace(ALL_WEIGHTS, train_act=False))
    both, row = gradient(apt, trajectories, rewards)
    assert close(act, expected_gradient(apt, trajectories, rewards, [ACT]))
    assert close(rehearse, expected_gradient(apt, trajectories, rewards, [REHEARSE]))
    assert close(both, expected_gradient(apt, trajectories, rewards, [ACT, REHEARSE]))
    assert both.norm().item() == pytest.approx(row["grad_norm"], rel=1e-4)
    assert min(act.norm(), rehearse.norm()) > 0.01
    assert not close(act, both)


def test_entropy_by_role(apt: Policy, tasks: list[Task]) -> None:
    trajectories, rewards = batch(apt, tasks)
    used = trajectories[SMALL.group_size :]  # the first group has no difference in reward
    _, entropy = apt.log_probs([Family(t.prompt, [t.ids]) for t in used], SMALL.temperature)
    roles = torch.tensor([role for t in used for role in t.roles])
    _, row = gradient(apt, trajectories, rewards)
    for role, name in ((ACT, "act"), (REHEARSE, "rehearse")):
        assert row[f"entropy_{name}"] == pytest.approx(entropy[roles == role].mean().item(), rel=1e-3)


def test_an_extra_loss_adds_to_the_gradient(apt: Policy, tasks: list[Task]) -> None:
    trajectories, rewards = batch(apt, tasks)
    policy, ones = copied(apt), []

    def extra() -> None:
        for parameter in policy.model.parameters():
            ones.append(parameter.grad is not None)
            parameter.grad = torch.ones_like(parameter) + (0 if parameter.grad is None else parameter.grad)

    plain, _ = gradient(apt, trajectories, rewards)
    optimizer = torch.optim.SGD(policy.model.parameters(), lr=0.0)
    config = replace(ALL_WEIGHTS, max_grad_norm=1e9)
    update(policy, trajectories, rewards, config, optimizer, extra_loss=extra)
    both = torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])
    torch.testing.assert_close(both, plain + 1, atol=1e-4, rtol=1e-4)
    assert all(ones)


@pytest.mark.parametrize("make", [Execute, Simulate])
def test_injected_responses_get_no_gradient(apt: Policy, tasks: list[Task], make: Any) -> None:
    """Neither what they say in the loss, nor what was recorded as their log-probability, matters."""
    trajectories, rewards = batch(apt, tasks, make(copied(apt)) if make is Simulate else make())
    assert any(GIVEN in t.roles for t in trajectories)
    plain, _ = gradient(apt, trajectories, rewards)
    assert close(plain, expected_gradient(apt, trajectories, rewards, [ACT]))
    for t in trajectories:
        t.log_probs = [
            -5.0 if role == GIVEN else value for value, role in zip(t.log_probs, t.roles, strict=True)
        ]
    assert torch.equal(gradient(apt, trajectories, rewards)[0], plain)


def test_groups_without_a_difference_are_left_out(apt: Policy, tasks: list[Task]) -> None:
    trajectories, rewards = batch(apt, tasks)
    whole, _ = gradient(apt, trajectories, rewards)
    size = SMALL.group_size
    for t in trajectories[:size]:
        t.log_probs = [float("nan")] * len(t.ids)  # would spoil whatever they are a part of
    assert torch.equal(gradient(apt, trajectories, rewards)[0], whole)
    nothing, row = gradient(apt, trajectories, torch.ones_like(rewards))
    assert not nothing.any()
    assert row["grad_norm"] == 0.0


def test_without_a_difference_nothing_moves(apt: Policy, tasks: list[Task]) -> None:
    trained, log = train(copied(apt), tasks, ALL_WEIGHTS, reward=lambda _: 1.0)
    assert same_weights(weights(trained), weights(apt))
    assert (log.frame.informative == 0).all()
    assert (log.frame.grad_norm == 0).all()


def test_recomputed_log_probs_drift_by_rounding_only(apt: Policy, tasks: list[Task]) -> None:
    trajectories, rewards = batch(apt, tasks)
    assert gradient(apt, trajectories, rewards)[1]["drift"] < 1e-4
    trajectories[-1].log_probs = [value - 0.5 for value in trajectories[-1].log_probs]
    assert gradient(apt, trajectories, rewards)[1]["drift"] == pytest.approx(0.5, abs=1e-3)


@pytest.mark.samples
@both_kinds
def test_rewarded_rollouts_become_likelier(apt: Policy, tasks: list[Task], config: TrainConfig) -> None:
    """And the others less likely."""
    trained, _ = train(copied(apt), tasks, replace(config, steps=1, lr=1e-4), reward=odd_length)
    trajectories, rewards = collect(apt, tasks, config, 0, Rehearse(), odd_length)
    gain = 0.0
    for role in (ACT, REHEARSE):
        outputs = torch.tensor([float(t.outputs[role]) for t in trajectories]).view(rewards.shape)
        for t, advantage in zip(trajectories, role_advantages(rewards, outputs).flatten(), strict=True):
            mine, family = torch.tensor(t.roles) == role, [Family(t.prompt, [t.ids])]
            before, after = (p.log_probs(family, config.temperature)[0][mine].sum() for p in (apt, trained))
            gain += (advantage * (after - before)).item()
    assert gain > 0.001


def test_long_gradients_are_shortened(apt: Policy, tasks: list[Task]) -> None:
    trajectories, rewards = batch(apt, tasks)
    policy = copied(apt)
    optimizer = torch.optim.SGD(policy.model.parameters(), lr=0.0)
    row = update(policy, trajectories, rewards, replace(ALL_WEIGHTS, max_grad_norm=0.01), optimizer)
    norms = [p.grad.norm() for p in policy.model.parameters() if p.grad is not None]
    assert row["grad_norm"] > 0.02
    assert torch.stack(norms).norm().item() == pytest.approx(0.01, rel=1e-3)


# Tasks, rates, metrics -------------------------------------------------------------------------------------


def test_a_step_draws_evenly_from_the_domains(apt: Policy, tasks: list[Task]) -> None:
    names = {task.domain for task in tasks}
    uneven = [*tasks, *[task for task in tasks if task.domain == "bank"] * 20]
    trajectories, _ = collect(apt, uneven, replace(SMALL, prompts=8), 0, Rehearse(), odd_length)
    drawn = [t.task.domain for t in trajectories[:: SMALL.group_size]]
    assert {drawn.count(name) for name in names} == {2}


def test_every_step_draws_anew(apt: Policy, tasks: list[Task]) -> None:
    """Other tasks, and other rollouts of the same task."""
    many = splits("orders")["train"][:50]
    drawn, sampled = [], []
    for step in (0, 1, 0):
        drawn.append([t.task.id for t in collect(apt, many, SMALL, step, Rehearse(), lambda _: 0.0)[0]])
        sampled.append([t.ids for t in collect(apt, tasks[:1], SMALL, step, Rehearse(), lambda _: 0.0)[0]])
    for kind in (drawn, sampled):
        assert kind[0] == kind[2] != kind[1]


def test_rates() -> None:
    config = TrainConfig(steps=100, lr=1.0, warmup=10, decay=0.1)
    rates = [learning_rate(config, step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == pytest.approx(1 - 0.9 * 0.09)
    assert rates[-1] == pytest.approx(0.109)
    assert rates[9:] == sorted(rates[9:], reverse=True)


def test_metrics_of_known_rollouts(tasks: list[Task]) -> None:
    task = tasks[0]
    good = Trajectory(task, [], [1] * 9, [ACT] * 4 + [REHEARSE] * 5, [0.0] * 9, stop_reason="answer")
    good.outputs = {ACT: 2, REHEARSE: 1}
    bad = Trajectory(task, [], [1] * 4, [ACT] * 4, [0.0] * 4, stop_reason="malformed")
    bad.outputs = {ACT: 1, REHEARSE: 0}
    row = metrics([good, bad, good, good], torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
    expected = {
        "reward": 0.75,
        "reward_act": 6 / 7,  # a rollout counts as often as the role wrote a message
        "reward_rehearse": 1.0,
        "informative": 0.5,
        "calls": 0.0,
        "error_rate": 0.0,
        "unfinished": 0.25,
        "length_act": 16 / 7,
        "length_rehearse": 5.0,
    }
    assert {name: row[name] for name in expected} == pytest.approx(expected)


def test_the_seconds_of_a_run_are_its_own(apt: Policy, tasks: list[Task]) -> None:
    begin = time.perf_counter()
    _, log = train(copied(apt), tasks, replace(SMALL, steps=1))
    assert 0 < log.totals["seconds"] < time.perf_counter() - begin


def test_a_log_can_be_shown(apt: Policy, tasks: list[Task]) -> None:
    _, log = train(copied(apt), tasks, replace(SMALL, steps=1))
    assert "reward" in log._repr_html_()
    assert repr(log).startswith("<TrainLog: 1 steps, reward 0.")
    assert list(log.frame.index) == [1]
