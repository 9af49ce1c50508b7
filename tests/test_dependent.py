"""Worlds whose responses matter: what rests on a response is found out, told, and held against the real world."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from envace_lite.experiments.anchor import SlowReference
from envace_lite.experiments.controls import with_bias
from envace_lite.experiments.evidence import WAYS
from envace_lite.experiments.evidence_tables import gain, value_and_interval, worst
from envace_lite.experiments.gradients import add_gradients
from envace_lite.experiments.grounding import RealResponses
from envace_lite.experiments.plots import where_decisions_rest
from envace_lite.experiments.rewards import EveryVerdict, answer_and_state, drawn
from envace_lite.experiments.rows import pack, unpack
from envace_lite.fidelity import probe_pairs
from envace_lite.fidelity.pairs import MUTATIONS
from envace_lite.fidelity.parts import parts, slots
from envace_lite.model.chat import REHEARSE, build_tokenizer, vocabulary
from envace_lite.model.policy import Family, Policy, new_policy
from envace_lite.pretraining.traces import HABITS, RECIPES, Retelling, draw_script_for_trace, habit
from envace_lite.reward import answer_only, end_at_error, task_success
from envace_lite.rollout import Trajectory
from envace_lite.train import EvalCallback, TrainConfig, train
from envace_lite.world import DEPENDENT, Domain, Task, get_domain
from envace_lite.world.bearing import bearing
from envace_lite.world.draw import make_task
from envace_lite.world.families import (
    add_up,
    convert,
    copy,
    count,
    empty,
    find,
    least,
    left_after,
    look_from,
    pay,
    send,
    transition_with,
)
from envace_lite.world.language import Instruction, Request
from envace_lite.world.orders import GIVES_BACK, ORDERS, TAKES
from envace_lite.world.request import Script, ScriptStep, Turn
from envace_lite.world.task import NEWS
from envace_lite.world.tools import RULES, ToolCall, ToolResponse, Value, World, parse_calls
from envace_lite.world.verifier import BROKEN, DONE, OPEN, request_status
from helpers import DEPENDENT_CHAT, conversation, copied, planned_calls, splits

every_dependent = pytest.mark.parametrize("domain", DEPENDENT.values(), ids=lambda domain: domain.name)
STATE: dict[str, Value] = {"o1": "paid", "o2": "sent", "o4": "paid", "courier": "busy"}


# Tools -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "state", "arguments", "response"),
    [
        (find("order", ORDERS), STATE, {"status": "paid"}, "o1:paid found:o1 ok"),
        (find("order", ORDERS), STATE, {"status": "packed"}, "error none"),
        (find("order", ORDERS), STATE, {"status": "busy"}, "error none"),  # the courier is no order
        (count("order", ORDERS), STATE, {"status": "paid"}, "o1:paid o4:paid count:2 ok"),
        (count("order", ORDERS), STATE, {"status": "packed"}, "count:0 ok"),
        (add_up("account"), {"a": 9, "b": 4}, {"one": "a", "other": "b"}, "a:9 b:4 total:13 ok"),
        (add_up("account"), {"a": 9}, {"one": "a", "other": "b"}, "a:9 b:unknown error unknown"),
        (least("share", ("a", "b")), {"a": 5, "b": 3}, {"one": "a", "other": "b"}, "a:5 b:3 found:b ok"),
        (least("share", ("a", "b")), {"a": 3, "b": 3}, {"one": "b", "other": "a"}, "b:3 a:3 found:b ok"),
        (left_after("wallet", 4), {"wallet": 6}, {}, "wallet:6 amount:4 left:2 ok"),
        (left_after("wallet", 4), {"wallet": 3}, {}, "wallet:3 amount:4 error wallet"),
        (look_from("points", 0), {"points": 2}, {}, "points:2 ok"),
        (
            pay("dish", 3, 1),
            {"tea": 2, "wallet": 4},
            {"target": "tea"},
            "tea:2 wallet:4 price:3 tip:1 cost:4 ok tea:1 wallet:0",
        ),
        (
            pay("dish", 3, 1),
            {"tea": 2, "wallet": 3},
            {"target": "tea"},
            "tea:2 wallet:3 price:3 tip:1 cost:4 error wallet",
        ),
        (pay("dish", 3, 1), {"tea": 0, "wallet": 9}, {"target": "tea"}, "tea:0 error stock"),
        (
            send("account", 1, "wires"),
            {"a": 5, "b": 2, "wires": 0},
            {"source": "a", "target": "b", "amount": 4},
            "a:5 fee:1 cost:5 b:2 wires:0 ok a:0 b:6 wires:1",
        ),
        (
            send("account", 1, "wires"),
            {"a": 4, "b": 2, "wires": 0},
            {"source": "a", "target": "b", "amount": 4},
            "a:4 fee:1 cost:5 error funds",
        ),
        (empty("account"), {"a": 5, "b": 2}, {"source": "a", "target": "b"}, "a:5 b:2 ok a:0 b:7"),
        (copy("order", ORDERS), STATE, {"source": "o2", "target": "o1"}, "o2:sent o1:paid ok o1:sent"),
        (copy("order", ORDERS), STATE, {"source": "courier", "target": "o1"}, "error type"),
        (least("share", ("a",)), {"a": 5, "cash": 3}, {"one": "a", "other": "cash"}, "error type"),
        (
            convert("wallet", "time", 2),
            {"wallet": 1, "time": 3},
            {},
            "wallet:1 time:3 amount:2 ok wallet:0 time:5",
        ),
        (
            transition_with("order", "sent", "delivered", *GIVES_BACK),
            STATE,
            {"target": "o2"},
            "o2:sent needs:sent courier:busy ok o2:delivered courier:free",
        ),
        (
            transition_with("order", "paid", "sent", *TAKES),
            STATE,
            {"target": "o1"},
            "o1:paid needs:paid courier:busy error busy",
        ),
    ],
)
def test_what_a_tool_answers(
    function: Any, state: dict[str, Value], arguments: dict[str, Value], response: str
) -> None:
    world = World(state)
    assert world.run(function, arguments).text == response
    if " error " in f" {response}":
        assert world.records == state


# The user's language ---------------------------------------------------------------------------------------

CALLS = st.sampled_from(["pack_order o1", "pack_order found", "check_wallet", "bank.wire cash savings 3"])
STEPS = st.builds(
    Instruction,
    call=CALLS,
    otherwise=st.sampled_from(["", "send_order o2", "get_points"]),
    condition=st.sampled_from(["", "weather:rain", "least count:2"]),
    rule=st.sampled_from(["", *RULES]),
).map(lambda step: step if step.otherwise else replace(step, rule=""))


@given(st.lists(STEPS, min_size=1, max_size=4))
def test_a_request_is_read_as_it_was_written(steps: list[Instruction]) -> None:
    request = Request("o1", tuple(steps))
    assert Request.read(request.text) == request


@pytest.mark.parametrize(
    ("condition", "told", "holds"),
    [
        ("", {}, True),
        ("weather:rain", {"weather": "rain"}, True),
        ("weather:rain", {"weather": "sun"}, False),
        ("weather:rain", {}, False),
        ("least count:2", {"count": 2}, True),
        ("least count:2", {"count": 1}, False),
        ("least total:10", {"total": 9}, False),  # numbers, not words
        ("least count:2", {}, False),
        ("least count:2", {"count": "o1"}, False),
    ],
)
def test_a_condition_holds_by_what_was_told(condition: str, told: dict[str, Value], holds: bool) -> None:
    assert Instruction("x", condition=condition).holds(told) == holds


# Following a request ---------------------------------------------------------------------------------------


def script(*steps: str, report: str = "o1", **state: Value) -> Script:
    """A request to `orders` with these steps."""
    domain = DEPENDENT["orders"]
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


@every_dependent
def test_hidden_records_are_not_in_the_prompt(domain: Domain) -> None:
    for task in splits(domain.name)["test"]:
        shown = {word.split(":")[0] for word in task.messages[0]["content"].split()}
        assert not shown & domain.hidden
        assert set(task.state) <= shown | domain.hidden


@every_dependent
def test_only_tasks_that_rest_on_a_secret_are_marked_so(domain: Domain) -> None:
    for task in splits(domain.name)["train"]:
        read = {slot.split(" ")[-1] for slots in task.rests for slot in slots}
        assert ("secret" in task.tags) == bool(read & domain.secret)
        assert len(task.rests) == len(planned_calls(task))


@every_dependent
def test_what_is_new_about_a_held_out_tool(domain: Domain) -> None:
    """A new name has a seen tool's documentation; a new combination no new word in it; new words are new."""
    seen = {tool.documentation for tool in domain.seen_tools()}
    words = {word for tool in domain.seen_tools() for word in tool.documentation.split()}
    assert set(domain.news) == domain.held_out
    assert set(domain.news.values()) == set(NEWS)
    for name, what in domain.news.items():
        documentation = domain.tools[name].documentation
        assert (documentation in seen) == (what == "name"), name
        if what == "words":
            assert not set(documentation.split()) <= words, name


@every_dependent
def test_the_held_out_tasks_say_what_is_new(domain: Domain) -> None:
    tasks = splits(domain.name)["held_out"]
    tally = Counter(tag for task in tasks for tag in task.tags if tag.startswith("new:"))
    assert all(tally[f"new:{what}"] >= 20 for what in NEWS)
    for task in tasks:
        called = {domain.news.get(call.name) for call in planned_calls(task)} - {None}
        assert {tag.removeprefix("new:") for tag in task.tags if tag.startswith("new:")} == called


# The base's reading ----------------------------------------------------------------------------------------


def tellings(count_: int) -> pd.DataFrame:
    """How calls are retold, beside how the same call would have been answered really."""
    rng, rows = Random(0), []
    recipe = replace(RECIPES["habits"], cheerful=0.0, spurious=0.0)
    for number in range(count_):
        domain = list(DEPENDENT.values())[number % len(DEPENDENT)]
        drawn = draw_script_for_trace(domain, recipe, rng)
        for tool in drawn.toolbox:
            for call in list(domain.calls(tool))[:6]:
                real = tool.call(World(drawn.state), call.arguments)
                told = tool.call(Retelling(drawn.state, recipe, rng, domain), call.arguments)
                rows.append((habit(tool.documentation), real, told))
    return pd.DataFrame(rows, columns=["habit", "real", "told"])


def test_each_tool_is_told_wrongly_in_its_own_way() -> None:
    frame = tellings(400)
    frame["error"] = [response.error is not None for response in frame.real]
    frame["cheerful"] = [
        t.error is None and r.error is not None for r, t in zip(frame.real, frame.told, strict=True)
    ]
    frame["gloomy"] = [
        t.error is not None and r.error is None for r, t in zip(frame.real, frame.told, strict=True)
    ]
    frame["wrong"] = frame.real != frame.told
    for name in HABITS:
        part = frame[frame.habit == name]
        assert len(part) > 300
        assert part[part.error].cheerful.mean() == (
            pytest.approx(0.66, abs=0.06) if name == "optimist" else 0
        )
        assert part[~part.error].gloomy.mean() == (
            pytest.approx(0.66, abs=0.06) if name == "pessimist" else 0
        )
        contents = part[~part.error & ~part.gloomy]
        changing = contents[
            [bool(response.changed.keys() & response.seen.keys()) for response in contents.real]
        ]
        if name in ("stale", "shifted"):  # some records are left as they were by the true telling too
            assert 0.45 < changing.wrong.mean() < 0.74, name
        else:
            assert not changing.wrong.any(), name


def test_a_stale_telling_leaves_the_record_and_a_shifted_one_takes_the_next_value() -> None:
    domain = DEPENDENT["orders"]
    always = replace(RECIPES["habits"], habits=1.0, cheerful=0.0, spurious=0.0)
    world = Retelling({**STATE, "courier": "free", "o5": "packed"}, always, Random(0), domain)
    send_order, pack_order = domain.tools["send_order"], domain.tools["pack_order"]
    assert (habit(send_order.documentation), habit(pack_order.documentation)) == ("stale", "shifted")
    assert send_order.call(world, {"target": "o5"}).changed == {"o5": "packed", "courier": "free"}
    assert pack_order.call(world, {"target": "o1"}).changed == {"o1": "sent"}
    assert world.records["o1"] == "sent"  # what is told stays told
    found = domain.tools["find_order"].call(world, {"status": "paid"})
    assert found.text == "o4:paid found:o5 ok"


@every_dependent
def test_no_one_habit_rules_a_domain(domain: Domain) -> None:
    writes = [tool for tool in domain.seen_tools() if tool.write]
    shares = Counter(habit(tool.documentation) for tool in writes)
    assert len(shares) == len(HABITS)
    assert max(shares.values()) <= len(writes) / 2


# Parts and controls ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fresh() -> Policy:
    return new_policy(tokenizer=build_tokenizer(vocabulary(DEPENDENT.values())), width=32, layers=1)


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


def test_nothing_planned_has_no_parts(fresh: Policy) -> None:
    """A task that no tool fits: what watches a training on such tasks alone must not fail."""
    assert parts(fresh, []).empty


@every_dependent
def test_each_real_response_can_be_said(domain: Domain) -> None:
    """Also to calls that name a record of another kind: a tool must not answer in words that no policy knows."""
    for pair in probe_pairs(splits(domain.name)["test"], 0, 4, list(MUTATIONS)):
        DEPENDENT_CHAT.encode(pair.real.text)


def test_a_scalar_only_makes_errors_more_likely(fresh: Policy) -> None:
    words = torch.tensor([word == "error" or word.endswith(":unknown") for word in fresh.chat.words])
    ids = torch.tensor([fresh.chat.encode("<system> home r1:free <end> <tool> find_room")])
    with torch.inference_mode():
        moved = with_bias(fresh, 3.0).model(ids).logits - fresh.model(ids).logits
    assert moved[0, -1].numpy() == pytest.approx(3.0 * words.numpy(), abs=1e-4)
    assert 10 < words.sum() < 100


def test_every_domain_can_be_looked_up() -> None:
    assert all(get_domain(name) is domain for name, domain in DEPENDENT.items())


# Ways of training ------------------------------------------------------------------------------------------


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


def test_the_anchored_way_writes_its_checkpoints_where_a_reference_is_taken() -> None:
    anchor = WAYS["anchored"].extra_loss()
    assert isinstance(anchor, SlowReference)
    assert dict(WAYS["anchored"].changes)["save_every"] == anchor.every
    assert WAYS["anchored"].extra_loss() is not anchor


@pytest.mark.parametrize("name", ["execute", "grounded"])
def test_a_way_with_the_other_schedule_is_the_same_way(name: str) -> None:
    one, other = WAYS[name], WAYS[f"{name}_twice"]
    assert other.responder is one.responder
    assert other.reward([], 0) is one.reward([], 0) is task_success
    assert other.extra_loss() == one.extra_loss()
    assert (one.changes, dict(other.changes)["steps"]) == ((), 2 * TrainConfig().steps)


def test_the_negative_control_ends_the_episode_at_an_error() -> None:
    assert WAYS["end_at_error_twice"].reward([], 0) is end_at_error
    assert WAYS["end_at_error_twice"].changes == WAYS["twice"].changes


# Tables ----------------------------------------------------------------------------------------------------


def cell(exact: list[int]) -> dict[str, list[int]]:
    return {"exact": exact, "pairs": [2] * len(exact), "goal": [1, 0] * (len(exact) // 2)}


def test_a_value_is_that_of_all_cells_and_its_interval_covers_bases_seeds_and_tasks() -> None:
    one, other = cell([2, 0] * 50), cell([2, 2] * 50)
    assert value_and_interval({("a", 0): one}, "fidelity")[0] == 0.5
    value, low, high = value_and_interval({("a", 0): one, ("b", 0): other}, "fidelity")
    assert value == 0.75
    assert low == pytest.approx(0.5, abs=0.1)  # both bases drawn may be the first
    assert high == pytest.approx(1.0, abs=0.01)
    assert value_and_interval({("a", 0): one}, "fidelity", "goal") == (1.0, 1.0, 1.0)
    assert math.isnan(value_and_interval({("a", 0): one}, "bearing")[0])
    narrow = value_and_interval({("a", 0): one}, "fidelity")
    assert 0.3 < narrow[1] < 0.5 < narrow[2] < 0.7  # one cell: tasks alone


def test_a_column_is_one_word_and_is_read_back() -> None:
    rows = {"exact": [0, 2, 35], "none": []}
    assert pack(rows) == {"exact": "02z", "none": ""}
    assert unpack(pack(rows)) == rows
    with pytest.raises(IndexError):
        pack({"exact": [36]})


def test_the_gain_is_paired_by_base_and_seed() -> None:
    def record(way: str, base: str, seed: int, right: int) -> dict[str, Any]:
        rows = {"test": pack(cell([right] * 10))}
        return {"kind": "evidence", "way": way, "base": base, "seed": seed, "rows": rows}

    records = [
        {
            "kind": "controls",
            "base": "a",
            "rows": {"test": {"base": pack(cell([0] * 10)), "scalar": pack(cell([1] * 10))}},
        },
        record("execute", "a", 0, 2),
        record("rehearsal", "a", 0, 1),
        record("rehearsal", "a", 1, 0),  # its partner is not there yet
    ]
    assert gain(records, "rehearsal", "fidelity") == pytest.approx(0.5)
    assert gain(records, "scalar", "fidelity") == pytest.approx(0.5)
    assert worst(records, "rehearsal")["fidelity"] == 0.0


def test_the_two_curves_are_those_of_the_records() -> None:
    observed = [{"step": step, "bearing": 0.5 + step / 100, "idle": 0.8} for step in (0, 10, 20)]
    later = [{**row, "bearing": row["bearing"] + 0.1} for row in observed]
    figure = where_decisions_rest(
        [
            {"way": "rehearsal", "observed": observed},
            {"way": "rehearsal", "observed": later},
            {"way": "execute", "observed": observed},
            {"way": "imitation", "observed": observed},
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
