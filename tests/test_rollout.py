"""The rollout engine and its four responders.

Bugs that others shipped, and what keeps each of them out here:

| bug | here |
|---|---|
| rollouts are tokenised again and drift from what was sampled (TRL #5224, verl #6719) | `test_ids_are_those_of_the_conversation`, `test_log_probs_are_those_of_the_policy` |
| a mask that is longer than the ids (TRL #5144) | `test_roles_and_log_probs_are_as_long_as_the_ids` |
| prefixes of earlier turns are lost (TRL #4543) | `test_chat.py`: `test_a_conversation_is_a_prefix_of_a_longer_one`; here `test_later_turns_are_given` |
| pad == eos masks the ending (TRL #4974) | `test_chat.py`: `test_pad_is_not_the_ending`, `test_role_ids` |
| a turn separator is dropped (verl #6921) | `test_ids_are_those_of_the_conversation`: the engine's ids equal the template's |
| assistant turns of the history are masked wrongly (NeMo-RL #2176) | `test_ids_are_those_of_the_conversation`: the roles equal those of the whole conversation |
| the mask is ignored by the loss (unsloth #5673) | `test_train.py`: `test_each_role_has_its_own_gradient`, `test_injected_responses_get_no_gradient` |
| N x G x G rows from double repetition | `test_rows_of_a_task_are_next_to_each_other` |
| LoRA in another precision than the sampler (TRL #6688) | `test_policy.py`: `test_adapters_have_the_precision_of_the_sampler`; here `test_log_probs_are_those_of_the_policy` with adapters |
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from envace_lite.model.compact import Compact
from envace_lite.model.decoding import complete
from envace_lite.model.language import ACT, GIVEN, REHEARSE
from envace_lite.model.policy import CONTEXT, Family, Policy, with_lora
from envace_lite.rollout import (
    HORIZON,
    Execute,
    Rehearse,
    Responder,
    Simulate,
    Trajectory,
    rollout,
)
from envace_lite.world import Task
from envace_lite.world.tools import ToolCall, ToolResponse
from helpers import CHAT, copied, find_task, planned_calls, real_exchanges, scripted, splits

Lessons = list[tuple[Task, list[dict[str, Any]]]]
TASK = find_task("bank", "reach", "calls:2")


class Replay(Responder):
    """A responder of one's own: a recorded call brings its response, any other the error `unrecorded`."""

    role = GIVEN

    def __init__(self, traces: Mapping[str, Mapping[str, ToolResponse]]):
        self.traces = traces

    def open(self, task: Task) -> Callable[[ToolCall], ToolResponse]:
        known = self.traces.get(task.id, {})
        return lambda call: known.get(call.text, ToolResponse({}, "unrecorded", {}))


def recorded(tasks: list[Task]) -> Replay:
    """A responder with the real responses to the planned calls."""
    return Replay({t.id: {call: ToolResponse.parse(text) for call, text in real_exchanges(t)} for t in tasks})


RESPONDERS: dict[str, Callable[[Policy, list[Task]], Responder]] = {
    "rehearse": lambda policy, tasks: Rehearse(),
    "execute": lambda policy, tasks: Execute(),
    "simulate": lambda policy, tasks: Simulate(policy),
    "replay": lambda policy, tasks: recorded(tasks),
}
every_responder = pytest.mark.parametrize("responder", RESPONDERS)


def run(policy: Policy, tasks: list[Task], responder: str, seed: int = 0, **options: Any) -> list[Trajectory]:
    generator = torch.Generator().manual_seed(seed)
    return rollout(policy, tasks, RESPONDERS[responder](policy, tasks), generator=generator, **options)


def turned(call: str, answer: str = "blocked") -> list[dict[str, Any]]:
    """A conversation about `TASK` with one call of somebody's own and no response."""
    name, *values = call.split()
    message = ToolCall(name, dict(enumerate(values))).to_message()  # type: ignore[arg-type]
    return [
        *TASK.messages,
        {"role": "assistant", "tool_calls": [message]},
        {"role": "assistant", "content": answer},
    ]


def record(trajectory: Trajectory) -> tuple[Any, ...]:
    """Everything in a trajectory that can be compared."""
    t = trajectory
    return t.task.id, t.prompt, t.ids, t.roles, t.log_probs, t.exchanges, t.answers, t.stop_reason, t.outputs


# Ids, roles and log-probabilities --------------------------------------------------------------------------


@every_responder
def test_ids_are_those_of_the_conversation(lessons: Lessons, responder: str) -> None:
    """What the engine appends is what the template would have written, and so are its role ids."""
    policy = scripted(*lessons)
    for trajectory, (task, messages) in zip(
        run(policy, [task for task, _ in lessons], responder), lessons, strict=True
    ):
        whole = CHAT.render(messages, task.tools)
        assert trajectory.prompt + trajectory.ids == whole
        roles = CHAT.role_ids(whole)[len(trajectory.prompt) :]
        if responder != "rehearse":
            roles = [GIVEN if role == REHEARSE else role for role in roles]
        assert trajectory.roles == roles
        assert trajectory.stop_reason == "answer"
        assert tuple(trajectory.answers) == task.outcomes[0].answers
        assert [(call.text, response.text) for call, response in trajectory.exchanges] == real_exchanges(task)
        said = [message["role"] for message in messages]
        assert trajectory.outputs[ACT] == said.count("assistant")
        if responder in ("rehearse", "execute"):
            assert trajectory.outputs[REHEARSE] == (said.count("tool") if responder == "rehearse" else 0)


@pytest.mark.same_bits
@every_responder
@pytest.mark.parametrize("temperature", [1.0, 1.4])
@pytest.mark.parametrize("lora", [False, True])
def test_log_probs_are_those_of_the_policy(
    apt: Policy, lessons: Lessons, responder: str, temperature: float, lora: bool
) -> None:
    policy = copied(apt)
    if lora:
        policy = with_lora(policy, rank=4)
        with torch.no_grad():
            for name, parameter in policy.model.named_parameters():
                if "lora_B" in name:
                    parameter.fill_(0.02)
    trajectories = run(
        policy, [task for task, _ in lessons], responder, group_size=4, temperature=temperature
    )
    families = [Family(t.prompt, [t.ids]) for t in trajectories]
    again = policy.log_probs(families, temperature)[0]
    mine = torch.tensor([value for t in trajectories for value in t.log_probs])
    sampled = torch.tensor([role for t in trajectories for role in t.roles]) != GIVEN
    torch.testing.assert_close(mine[sampled], again[sampled], atol=1e-5, rtol=1e-5)
    assert (mine[~sampled] == 0).all()
    assert mine.min() < -1  # not all of it was nearly certain


@every_responder
def test_roles_and_log_probs_are_as_long_as_the_ids(apt: Policy, lessons: Lessons, responder: str) -> None:
    for t in run(apt, [task for task, _ in lessons], responder, group_size=4, temperature=1.5):
        assert len(t.ids) == len(t.roles) == len(t.log_probs) > 0
        assert set(t.roles) <= ({GIVEN, ACT, REHEARSE} if responder == "rehearse" else {GIVEN, ACT})
        assert t.stop_reason in ("answer", "malformed", "overlong", "horizon")
        assert t.ids[-1] == CHAT.end or t.stop_reason == "overlong"
        assert (len(t.answers) == 1 + len(t.task.later_turns)) == (t.stop_reason == "answer")


def test_an_untrained_policy_ends_with_a_reason(tiny: Policy, lessons: Lessons) -> None:
    trajectories = run(tiny, [task for task, _ in lessons], "rehearse", group_size=8)
    assert {t.stop_reason for t in trajectories} <= {"malformed", "overlong", "answer"}
    assert all(len(t.ids) <= Compact.longest_message for t in trajectories if not t.exchanges)


def test_rehearsed_responses_are_those_that_were_sampled(apt: Policy, lessons: Lessons) -> None:
    """What an exchange says is what stands in the ids under role 2."""
    for t in run(apt, [task for task, _ in lessons], "rehearse", group_size=4, temperature=1.4):
        written = CHAT.decode(token for token, role in zip(t.ids, t.roles, strict=True) if role == REHEARSE)
        closed = written.split("<end>")[: len(t.exchanges)]
        assert [ToolResponse.parse(text) for text in closed] == [response for _, response in t.exchanges]


# Grouping and batching -------------------------------------------------------------------------------------


def test_rows_of_a_task_are_next_to_each_other(apt: Policy, lessons: Lessons) -> None:
    tasks = [task for task, _ in lessons]
    trajectories = run(apt, tasks, "rehearse", group_size=3)
    assert [t.task.id for t in trajectories] == [task.id for task in tasks for _ in range(3)]
    assert len({id(t.ids) for t in trajectories}) == len(trajectories)
    twice = run(apt, [tasks[0], tasks[0]], "rehearse", group_size=2)
    assert len(twice) == 4


@every_responder
def test_a_row_is_the_same_alone_and_in_a_batch(apt: Policy, lessons: Lessons, responder: str) -> None:
    """Prompts have different lengths and rows are finished at different times."""
    tasks = [task for task, _ in lessons]
    together = run(apt, tasks, responder, group_size=2, temperature=0.0)
    assert len({len(t.ids) for t in together}) > 2
    for number, task in enumerate(tasks):
        (alone,) = run(apt, [task], responder, temperature=0.0)
        for row in (2 * number, 2 * number + 1):
            assert together[row].ids == alone.ids
            assert together[row].exchanges == alone.exchanges
            torch.testing.assert_close(together[row].log_probs, alone.log_probs, atol=1e-5, rtol=0)


@pytest.mark.same_bits
@every_responder
def test_all_randomness_comes_from_the_generator(apt: Policy, lessons: Lessons, responder: str) -> None:
    tasks = [task for task, _ in lessons]
    torch.manual_seed(1)
    first = run(apt, tasks, responder, group_size=4, temperature=1.4)
    state = torch.random.get_rng_state()
    torch.manual_seed(2)
    second = run(apt, tasks, responder, group_size=4, temperature=1.4)
    other = run(apt, tasks, responder, seed=1, group_size=4, temperature=1.4)
    assert [record(t) for t in first] == [record(t) for t in second]
    assert [t.ids for t in first] != [t.ids for t in other]
    assert len({tuple(t.ids) for t in first[:4]}) > 1
    torch.manual_seed(1)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_no_tasks_no_trajectories(apt: Policy) -> None:
    assert rollout(apt, []) == []


# Turns, calls and endings ----------------------------------------------------------------------------------


def test_later_turns_are_given(lessons: Lessons) -> None:
    task, messages = next((task, messages) for task, messages in lessons if task.later_turns)
    (t,) = run(scripted((task, messages)), [task], "rehearse")
    given = CHAT.decode(token for token, role in zip(t.ids, t.roles, strict=True) if role == GIVEN)
    assert f"<user> {task.later_turns[0]} <end> <assistant>" in given
    assert len(t.answers) == 2


def test_messages_are_the_conversation(lessons: Lessons) -> None:
    """In the standard form, with every turn in its place; rendered they are the ids that were sampled."""
    for task, messages in lessons:
        (t,) = run(scripted((task, messages)), [task], "rehearse")
        assert CHAT.render(t.messages(), task.tools) == t.prompt + t.ids


def test_parallel_calls_are_answered_one_by_one(lessons: Lessons) -> None:
    task, messages = lessons[0]
    assert "parallel" in task.tags
    for responder in ("rehearse", "execute"):
        (t,) = run(scripted((task, messages)), [task], responder)
        assert t.outputs[ACT] == 2
        assert [call for call, _ in t.exchanges] == planned_calls(task)


@pytest.mark.parametrize("call", ["card.freeze", "card.freeze amex visa", "cancel_order amex", "amex", "and"])
def test_a_call_that_cannot_be_read_ends_the_episode(call: str) -> None:
    (t,) = run(scripted((TASK, turned(call))), [TASK], "execute")
    assert (t.stop_reason, t.answers, t.exchanges) == ("malformed", [], [])
    assert t.roles == [ACT] * len(t.ids)


def test_a_call_with_wrong_types_is_for_the_environment_to_refuse() -> None:
    task = next(
        t for t in splits("home")["train"] if any(s["function"]["name"] == "set_alarm" for s in t.tools)
    )
    call = ToolCall("set_alarm", {"number": "lamp"})
    messages = [*task.messages, {"role": "assistant", "tool_calls": [call.to_message()]}]
    (t,) = run(scripted((task, messages)), [task], "execute")
    assert t.exchanges == [(call, ToolResponse({}, "type", {}))]


def test_too_many_calls_end_the_episode() -> None:
    call = planned_calls(TASK)[0]
    messages = [*TASK.messages]
    for _ in range(HORIZON + 1):
        messages.append({"role": "assistant", "tool_calls": [call.to_message()]})  # type: ignore[dict-item]
        messages.append({"role": "tool", "name": call.name, "content": "ok"})
    for responder in ("rehearse", "replay"):
        policy = scripted((TASK, messages))
        answers = Replay({TASK.id: {call.text: ToolResponse({}, None, {})}})
        (t,) = rollout(policy, [TASK], Rehearse() if responder == "rehearse" else answers)
        assert (t.stop_reason, len(t.exchanges), t.answers) == ("horizon", HORIZON, [])


def test_an_endless_message_ends_the_episode() -> None:
    (t,) = run(scripted((TASK, turned("card.freeze " + "amex " * 60))), [TASK], "rehearse")
    assert t.stop_reason == "overlong"
    assert len(t.ids) == Compact.longest_message


def test_the_number_of_tokens_is_limited(lessons: Lessons) -> None:
    task, messages = lessons[0]
    whole = CHAT.render(messages, task.tools)[len(CHAT.render(task.messages, task.tools, prompt="act")) :]
    for most in range(1, len(whole)):
        (t,) = run(scripted((task, messages)), [task], "rehearse", max_tokens=most)
        assert (t.stop_reason, t.ids) == ("overlong", whole[:most])
    (t,) = run(scripted((task, messages)), [task], "rehearse", max_tokens=len(whole))
    assert (t.stop_reason, t.ids) == ("answer", whole)


def test_a_message_that_is_cut_off_is_counted(lessons: Lessons) -> None:
    """By the number of tokens or by the longest message: it was written, so its role's baseline counts it."""
    task, messages = next(lesson for lesson in lessons if "reach" in lesson[0].tags)
    free = run(scripted((task, messages)), [task], "rehearse")[0]
    for most in range(1, len(free.ids)):
        (t,) = run(scripted((task, messages)), [task], "rehearse", max_tokens=most)
        for role in (ACT, REHEARSE):
            starts = [i for i in range(most) if t.roles[i] == role and (i == 0 or t.roles[i - 1] != role)]
            assert t.outputs[role] == len(starts), most
    (t,) = run(scripted((TASK, turned("card.freeze " + "amex " * 60))), [TASK], "rehearse")
    assert t.outputs == {ACT: 1, REHEARSE: 0}


def test_the_room_of_an_episode_is_its_own(tiny: Policy, lessons: Lessons) -> None:
    """A longer prompt in the same batch takes nothing from it."""
    task = lessons[0][0]
    system, user = task.messages
    long = replace(task, messages=[system, {**user, "content": " ".join(["say"] * (CONTEXT - 60))}])
    endless = scripted((task, [*task.messages]))
    endless.conversations = [[*CHAT.render(task.messages, task.tools, prompt="act"), *[CHAT.say] * 400]]
    for tasks in ([task], [task, long]):
        t = rollout(endless, tasks, temperature=0)[0]
        assert len(t.ids) == Compact.longest_message
    for t in rollout(tiny, [task, long], group_size=4, generator=torch.Generator().manual_seed(0)):
        assert len(t.prompt) + len(t.ids) <= CONTEXT


def test_a_prompt_that_fills_the_context_is_refused(tiny: Policy, lessons: Lessons) -> None:
    task = lessons[0][0]
    system, user = task.messages
    long = replace(task, messages=[system, {**user, "content": " ".join(["say"] * CONTEXT)}])
    with pytest.raises(ValueError, match=rf"{task.id}: its prompt has \d+ tokens, and the context {CONTEXT}"):
        rollout(tiny, [task, long])


def test_an_unrecorded_call_is_a_typed_error(lessons: Lessons) -> None:
    for responder in (Replay({}), Replay({TASK.id: {"market.quote none": ToolResponse({}, None, {})}})):
        task, messages = next(lesson for lesson in lessons if lesson[0] == TASK)
        (t,) = rollout(scripted((task, messages)), [task], responder)
        assert t.exchanges[0][1].text == "error unrecorded"


# Who answers -----------------------------------------------------------------------------------------------


def test_only_execute_asks_the_environment(apt: Policy, lessons: Lessons) -> None:
    tasks = [task for task, _ in lessons]
    for name, make in RESPONDERS.items():
        responder = make(apt, tasks)
        trajectories = rollout(apt, tasks, responder, temperature=0.0)
        calls = sum(len(t.exchanges) for t in trajectories)
        assert calls > 5
        assert responder.environment_calls == (calls if name == "execute" else 0)


def test_execute_keeps_a_session_for_each_row(apt: Policy, lessons: Lessons) -> None:
    responder = Execute()
    trajectories = rollout(apt, [task for task, _ in lessons], responder, group_size=2, temperature=0.0)
    for t, session in zip(trajectories, responder.sessions, strict=True):
        assert session.task == t.task
        assert session.log == t.exchanges
        assert session.verify(t.answers).success


def test_a_simulator_answers_instead_of_the_policy(lessons: Lessons) -> None:
    """The act role speaks as one policy, the responses are those of the other."""
    task, messages = next(lesson for lesson in lessons if lesson[0] == TASK)
    cheerful = [{**m, "content": "amex:blocked ok"} if m["role"] == "tool" else m for m in messages]
    actor = scripted((task, messages), (task, cheerful))
    (t,) = rollout(actor, [task], Simulate(scripted((task, cheerful))))
    assert [response.text for _, response in t.exchanges] == ["amex:blocked ok"] * 2
    assert [call for call, _ in t.exchanges] == planned_calls(task)
    assert REHEARSE not in t.roles


# Completions -----------------------------------------------------------------------------------------------


def test_completions(apt: Policy, lessons: Lessons) -> None:
    """Messages after prefixes of different lengths, with the log-probability of the whole message."""
    prefixes, expected = [], []
    for task, messages in lessons:
        for place, message in enumerate(messages):
            if message["role"] == "tool" and messages[place - 1]["role"] == "assistant":
                prefixes.append(CHAT.render(messages[:place], task.tools, prompt=message["name"]))
                expected.append(message["content"])
    completions = complete(apt, prefixes, at_once=3)
    assert [text for text, _ in completions] == expected
    for prefix, (text, log_prob) in zip(prefixes, completions, strict=True):
        whole = apt.log_probs([Family(prefix, [CHAT.encode(f"{text} <end>")])])[0]
        assert log_prob == pytest.approx(whole.sum().item(), abs=1e-4)


def test_a_completion_that_does_not_end_is_cut(tiny: Policy) -> None:
    prefix = CHAT.render(TASK.messages, TASK.tools, prompt="act")
    endless = scripted((TASK, turned("card.freeze " + "amex " * 60)))
    ((text, _),) = complete(endless, [prefix])
    assert len(text.split()) == Compact.longest_message
    assert complete(tiny, []) == []
