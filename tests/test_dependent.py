"""Worlds whose responses matter: what rests on a response is found out, told, and held against the real world."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from envace_lite.experiments.anchor import SlowReference
from envace_lite.experiments.arms import ARMS
from envace_lite.experiments.controls import with_bias
from envace_lite.experiments.gradients import add_gradients
from envace_lite.experiments.grounding import RealResponses
from envace_lite.experiments.plots import where_decisions_rest
from envace_lite.experiments.rewards import EveryVerdict, answer_and_state, drawn
from envace_lite.experiments.rows import pack, unpack
from envace_lite.fidelity import probe_pairs
from envace_lite.fidelity.parts import parts, slots
from envace_lite.model.language import REHEARSE
from envace_lite.model.policy import Family, Policy, new_policy
from envace_lite.reward import answer_only, task_success
from envace_lite.rollout import Trajectory
from envace_lite.train import EvalCallback, TrainConfig, train
from envace_lite.world import DOMAINS, Task
from envace_lite.world.bearing import bearing
from envace_lite.world.draw import make_task
from envace_lite.world.phrases import Instruction
from envace_lite.world.request import Script, ScriptStep, Turn
from envace_lite.world.tools import ToolCall, ToolResponse, Value, parse_calls
from envace_lite.world.verifier import BROKEN, DONE, OPEN, request_status
from helpers import conversation, copied, splits

STATE: dict[str, Value] = {"o1": "paid", "o2": "sent", "o4": "paid", "courier": "busy"}


# Following a request ---------------------------------------------------------------------------------------


def script(*steps: str, report: str = "o1", **state: Value) -> Script:
    """A request to `orders` with these steps."""
    domain = DOMAINS["orders"]
    tools = [
        domain.tools[name] for name in ("find_order", "count_orders", "pack_order", "send_order", "get_order")
    ]
    schemas = [tool.schema for tool in tools]

    def call(text: str) -> ToolCall | None:
        return parse_calls(text, schemas)[0] if text else None

    read = [Instruction.read(step) for step in steps]
    turn = [ScriptStep(call(s.call), call(s.otherwise), condition=s.condition, rule=s.rule) for s in read]  # type: ignore[arg-type]
    return Script(domain, {**STATE, **state}, tools, [Turn(report, tuple(turn))])


@pytest.mark.parametrize(
    ("steps", "plan"),
    [
        (["find_order paid", "pack_order found"], ["find_order paid", "pack_order o1"]),
        (["find_order packed", "pack_order found"], ["find_order packed"]),
        (
            ["find_order packed", "send_order found else pack_order o4"],
            ["find_order packed", "pack_order o4"],
        ),
        (["count_orders paid", "if least count:2 pack_order o1"], ["count_orders paid", "pack_order o1"]),
        (["count_orders paid", "if least count:3 pack_order o1"], ["count_orders paid"]),
        (
            ["count_orders paid", "if least count:3 pack_order o1 else pack_order o4"],
            ["count_orders paid", "pack_order o4"],
        ),
        (["pack_order o2 else status pack_order o4"], ["pack_order o2", "pack_order o4"]),
        (["pack_order o2 else unknown pack_order o4"], ["pack_order o2"]),
        (["pack_order o3 else unknown pack_order o4"], ["pack_order o3", "pack_order o4"]),
    ],
)
def test_a_careful_agent_does_what_the_responses_call_for(steps: list[str], plan: list[str]) -> None:
    task = make_task(script(*steps), "x")
    assert task.plan == [plan]
    messages = conversation(task)
    assert request_status(task, messages[len(task.messages) :]) == DONE
    for end in range(len(task.messages), len(messages)):
        assert request_status(task, messages[len(task.messages) : end]) == OPEN


def test_the_verifier_judges_by_what_it_was_told() -> None:
    """Told of another name or number, it wants another call: it knows no world."""
    task = make_task(script("find_order paid", "pack_order found"), "x")
    answers: dict[str, ToolResponse] = {
        "find_order paid": ToolResponse.parse("o4:paid found:o4 ok"),
        "pack_order o4": ToolResponse.parse("o4:paid needs:paid ok o4:packed"),
        "pack_order o1": ToolResponse.parse("o1:paid needs:paid ok o1:packed"),
    }

    def said(*calls: str) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        for text in calls:
            (call,) = parse_calls(text, task.tools)
            messages.append({"role": "assistant", "tool_calls": [call.to_message()]})
            messages.append({"role": "tool", "name": call.name, "content": answers[text].text})
        return messages

    assert request_status(task, said("find_order paid", "pack_order o4")) == OPEN
    assert request_status(task, said("find_order paid", "pack_order o1")) == BROKEN


def test_the_answer_about_what_was_found_is_about_that_record() -> None:
    assert make_task(script("find_order sent", report="found"), "x").outcomes[0].answers == ("sent",)
    assert make_task(script("count_orders paid", report="count"), "x").outcomes[0].answers == ("2",)


# What decisions rest on ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "report", "rests"),
    [
        (["get_order o1"], "o1", [[]]),  # the conversation has it already
        (["find_order paid", "pack_order found"], "o2", [["seen found"], ["verdict"]]),
        (["pack_order o1"], "o1", [["verdict", "changed o1"]]),
        (["pack_order o1"], "o2", [["verdict"]]),
        (["count_orders paid"], "o1", [[]]),
        (["count_orders paid"], "count", [["seen count"]]),
        (["pack_order o2 else get_order o1"], "o1", [["verdict"]]),
        (["pack_order o2 else status get_order o1"], "o1", [["verdict", "rule"], []]),
        (["pack_order o1", "send_order o1"], "o4", [["verdict", "changed o1"], ["verdict"]]),
    ],
)
def test_what_a_decision_rests_on(steps: list[str], report: str, rests: list[list[str]]) -> None:
    found = bearing(script(*steps, report=report, courier="free"))
    assert found[: len(rests)] == rests


# Parts and controls ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fresh() -> Policy:
    return new_policy(width=32, layers=1)


def test_slots_are_the_words_of_a_response() -> None:
    response = ToolResponse.parse("o1:pending needs:paid error status")
    assert slots(response) == {
        "seen o1": "pending",
        "seen needs": "paid",
        "verdict": "error",
        "rule": "status",
    }
    for task in splits("bank")["test"][:50]:
        for pair in probe_pairs([task]):
            assert len(slots(pair.real)) == len(pair.real.text.split())


@pytest.mark.any_tokens
def test_each_part_of_each_planned_response_is_judged(fresh: Policy) -> None:
    tasks: list[Task] = splits("bank")["test"][:20]
    pairs = probe_pairs(tasks)
    frame = parts(fresh, pairs)
    planned = [pair for pair in pairs if pair.planned]
    assert len(frame) == sum(len(slots(pair.real)) for pair in planned)
    assert frame.bearing.sum() == sum(len(slots_) for task in tasks for slots_ in task.rests)
    assert (frame.log_prob < 0).all()
    assert not frame.right.any()  # it has read nothing


def test_a_scalar_only_makes_errors_more_likely(fresh: Policy) -> None:
    words = torch.tensor([word == "error" or word.endswith(":unknown") for word in fresh.chat.words])
    ids = torch.tensor([fresh.chat.encode("<system> home r1:free <end> <tool> find_room")])
    with torch.inference_mode():
        moved = with_bias(fresh, 3.0).model(ids).logits - fresh.model(ids).logits
    assert moved[0, -1].numpy() == pytest.approx(3.0 * words.numpy(), abs=1e-4)
    assert 10 < words.sum() < 100


# Arms of training ------------------------------------------------------------------------------------------


def told(task: Task, *exchanges: tuple[str, str], answers: tuple[str, ...] = ()) -> Trajectory:
    return Trajectory(
        task,
        [],
        exchanges=[(parse_calls(c, task.tools)[0], ToolResponse.parse(r)) for c, r in exchanges],
        answers=list(answers or task.outcomes[0].answers),
    )


def test_labels_that_tell_more_or_less() -> None:
    """A read whose error is told as a success: only the label with every verdict sees it."""
    task = make_task(script("get_order o3", "pack_order o1"), "x")
    right = told(task, ("get_order o3", "o3:unknown error unknown"), ("pack_order o1", "ok o1:packed"))
    cheerful = told(task, ("get_order o3", "o3:paid ok"), ("pack_order o1", "ok o1:packed"))
    other = told(task, ("get_order o3", "o3:unknown error unknown"), ("pack_order o1", "ok o1:sent"))
    refused = told(task, ("get_order o3", "o3:unknown error unknown"), ("pack_order o1", "error status"))
    every = EveryVerdict([task])
    assert every.real_calls == 2
    for reward, values in (
        (answer_only, (1, 1, 1, 1)),
        (answer_and_state, (1, 1, 0, 0)),
        (task_success, (1, 1, 1, 0)),
        (every, (1, 0, 1, 0)),
    ):
        assert tuple(reward(t) for t in (right, cheerful, other, refused)) == values, reward


def test_a_reward_drawn_at_random_has_its_mean_and_knows_nothing() -> None:
    tasks = splits("bank")["train"][:400]
    reward = drawn(0.3, 0)
    values = [reward(Trajectory(task, [], ids=[i], answers=[])) for task in tasks for i in range(5)]
    assert sum(values) / len(values) == pytest.approx(0.3, abs=0.04)
    assert values == [reward(Trajectory(task, [], ids=[i], answers=[])) for task in tasks for i in range(5)]


def test_only_the_tokens_of_responses_are_imitated(fresh: Policy) -> None:
    """The gradient is that of the mean negative log-probability of these tokens, and of no others."""
    task = splits("orders")["test"][0]
    prompt = fresh.chat.render(task.messages, task.tools, prompt="act")
    ids = fresh.chat.render(conversation(task), task.tools)[len(prompt) :]
    roles = torch.tensor(fresh.chat.role_ids([*prompt, *ids])[len(prompt) :])
    policy = copied(fresh)
    policy.backward([Family(prompt, [ids])], lambda p, *_: -p[roles == REHEARSE].mean())
    wanted = {name: p.grad.clone() for name, p in policy.model.named_parameters()}
    policy.model.zero_grad()
    RealResponses(1.0)(policy, 0, [Trajectory(task, prompt, ids=ids)])
    assert 0 < (roles == REHEARSE).sum() < len(ids)
    for name, parameter in policy.model.named_parameters():
        assert torch.allclose(parameter.grad, wanted[name], atol=1e-7), name


def test_a_slow_reference_holds_the_rehearse_role_alone_to_what_it_was(fresh: Policy) -> None:
    task = splits("orders")["test"][0]
    prompt = fresh.chat.render(task.messages, task.tools, prompt="act")
    ids = fresh.chat.render(conversation(task), task.tools)[len(prompt) :]
    policy, anchor, trajectory = copied(fresh), SlowReference(0.5, every=4), Trajectory(task, prompt, ids=ids)
    anchor(policy, 4, [trajectory])
    assert all(p.grad.abs().max() < 1e-6 for p in policy.model.parameters())  # it is its own reference

    with torch.no_grad():
        policy.model.model.layers[0].mlp.down_proj.weight.mul_(1.5)
    before, _ = fresh.log_probs([Family(prompt, [ids])])
    roles = torch.tensor(fresh.chat.role_ids([*prompt, *ids])[len(prompt) :])

    def wanted(log_p: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        d = (before - log_p)[roles == REHEARSE]
        return 0.5 * (d.exp() - 1 - d).mean()

    by_hand = copied(policy)
    by_hand.backward([Family(prompt, [ids])], wanted)
    policy.model.zero_grad()
    anchor(policy, 5, [trajectory])
    for (name, one), other in zip(policy.model.named_parameters(), by_hand.model.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, atol=1e-7), name
    assert max(p.grad.abs().max() for p in policy.model.parameters()) > 1e-4

    silent = Trajectory(task, prompt, ids=fresh.chat.encode("<end>"))
    policy.model.zero_grad()
    for loss in (anchor, RealResponses(1.0)):
        loss(policy, 5, [silent])  # no response, so no mean over its tokens
    assert all(p.grad is None for p in policy.model.parameters())

    with pytest.raises(ValueError, match="every 4 steps"):
        SlowReference(0.5, every=4)(policy, 6, [trajectory])


def test_the_gradients_of_an_extra_loss_are_added_to_those_that_are_there(fresh: Policy) -> None:
    policy, families = copied(fresh), [Family([1, 2, 3], [[4, 5], [6]])]

    def objective(log_p: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        return -log_p.sum()

    add_gradients(policy, families, objective)  # none is there yet
    once = {name: p.grad.clone() for name, p in policy.model.named_parameters()}
    add_gradients(policy, families, objective)
    for name, parameter in policy.model.named_parameters():
        assert torch.allclose(parameter.grad, 2 * once[name], atol=1e-6), name
    assert max(grad.abs().max() for grad in once.values()) > 1e-2


def test_a_run_is_continued_with_the_reference_that_it_had(fresh: Policy, tmp_path: Path) -> None:
    config = TrainConfig(steps=5, prompts=2, group_size=8, warmup=0, lora_rank=2, save_every=2)
    tasks = splits("orders")["train"][:4]

    def run(folder: Path, callback: EvalCallback, every: int = 2) -> Policy:
        odd = lambda trajectory: sum(trajectory.ids) % 2  # noqa: E731
        anchor = SlowReference(100.0, every)
        settings = replace(config, observe_every=3)
        return train(
            copied(fresh),
            tasks,
            settings,
            reward=odd,
            folder=folder,
            eval_callback=callback,
            extra_loss=anchor,
        )[0]

    def interrupt(step: int, *_: object) -> dict[str, float]:
        if step == 3:
            raise KeyboardInterrupt
        return {}

    whole = run(tmp_path / "whole", lambda *_: {})
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", interrupt)
    continued = run(tmp_path / "cut", lambda *_: {})
    for one, other in zip(whole.model.parameters(), continued.model.parameters(), strict=True):
        assert torch.equal(one, other)
    fixed = run(tmp_path / "fixed", lambda *_: {}, every=6)
    changed = zip(whole.model.parameters(), fixed.model.parameters(), strict=True)
    assert any(not torch.equal(one, other) for one, other in changed)  # which reference it is matters here


def test_the_anchored_arm_writes_its_checkpoints_where_a_reference_is_taken() -> None:
    anchor = ARMS["anchored"].extra_loss()
    assert isinstance(anchor, SlowReference)
    assert dict(ARMS["anchored"].changes)["save_every"] == anchor.every
    assert ARMS["anchored"].extra_loss() is not anchor


# Records ---------------------------------------------------------------------------------------------------


def test_a_column_is_one_word_and_is_read_back() -> None:
    rows = {"exact": [0, 2, 35], "none": []}
    assert pack(rows) == {"exact": "02z", "none": ""}
    assert unpack(pack(rows)) == rows
    with pytest.raises(IndexError):
        pack({"exact": [36]})


def test_the_two_curves_are_those_of_the_records() -> None:
    observed = [{"step": step, "bearing": 0.5 + step / 100, "idle": 0.8} for step in (0, 10, 20)]
    later = [{**row, "bearing": row["bearing"] + 0.1} for row in observed]
    figure = where_decisions_rest(
        [
            {"arm": "rehearsal", "observed": observed},
            {"arm": "rehearsal", "observed": later},
            {"arm": "execute", "observed": observed},
            {"arm": "imitation", "observed": observed},
        ]
    )
    assert [axes.get_title() for axes in figure.axes] == [
        "world rehearsal (2 runs)",
        "executable environment (1 run)",
    ]
    means = {
        line.get_label(): list(line.get_ydata())
        for line in figure.axes[0].lines
        if line.get_marker() != "None"
    }
    assert means["parts on which decisions rest"] == pytest.approx([0.55, 0.65, 0.75])
    assert means["other parts"] == pytest.approx([0.8] * 3)
