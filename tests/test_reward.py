"""Rewards: judged from the task's label and the trajectory's own account, never from an environment."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from envace_lite.experiments.rewards import REWARDS, self_judged
from envace_lite.reward import answer_only, believed_writes, end_at_error, task_success
from envace_lite.world import Domain, Task, ToyDomain
from envace_lite.world.tools import ToolCall
from helpers import EVERY_DOMAIN, find_task, planned_calls, real_exchanges, some_tasks, splits, trajectory

every_domain = pytest.mark.parametrize("domain", EVERY_DOMAIN, ids=lambda domain: domain.name)
ERROR_TASK = find_task("orders", "instructions", "calls:2", "rule:status", without=["turns:2", "policy"])


@every_domain
def test_the_real_course_of_events_succeeds(domain: Domain) -> None:
    for task in some_tasks(domain, 300):
        good = trajectory(task, real_exchanges(task), *task.outcomes[0].answers)
        assert task_success(good) == answer_only(good) == 1.0
        assert end_at_error(good) == float("error" not in task.tags)
        assert believed_writes(good) == task.outcomes[0].writes


@every_domain
def test_the_real_course_of_events_is_what_was_asked_for(domain: Domain) -> None:
    """Judged by the responses alone: every request carried out in the real world counts as carried out."""
    for task in some_tasks(domain, 300):
        assert self_judged(trajectory(task, real_exchanges(task), *task.outcomes[0].answers)) == 1.0, task.id


def test_one_who_believes_a_refused_call_judges_himself_successful() -> None:
    """The rehearsed world judges itself: a cheerful lie told consistently is worth as much as the truth."""
    task = find_task("orders", "instructions", "calls:1", "rule:status", without=["turns:2", "policy"])
    (call,) = planned_calls(task)
    order = str(call.arguments["target"])
    asked = task.messages[-1]["content"].split()[-1]
    told = [(call.text, f"{order}:pending needs:pending ok {order}:cancelled")]
    lie = trajectory(task, told, "cancelled")
    assert (call.name, asked) == ("cancel_order", order)
    assert (self_judged(lie), task_success(lie)) == (1.0, 0.0)
    for broken in (
        trajectory(task, [], "cancelled"),  # nothing was done
        trajectory(task, told, "pending"),  # not what was told
        trajectory(task, told),  # no answer
    ):
        assert self_judged(broken) == 0.0


def _one_step_with_an_alternative(task: Task) -> bool:
    text = task.messages[-1]["content"]
    single = " else " in text and " then " not in text and " policy " not in task.messages[0]["content"]
    return single and {"error", "calls:2"} <= set(task.tags) and not task.later_turns


def test_an_alternative_is_for_a_step_that_failed() -> None:
    task = next(t for t in splits("orders")["train"] if _one_step_with_an_alternative(t))
    first, second = real_exchanges(task)
    answer = task.outcomes[0].answers[0]
    assert self_judged(trajectory(task, [first, second], answer)) == 1.0
    assert self_judged(trajectory(task, [first], answer)) == 0.0  # the alternative is left out
    cheerful = (first[0], re.sub(r"error \w+", "ok", first[1]))
    assert self_judged(trajectory(task, [cheerful, second], answer)) == 0.0  # nothing failed


@every_domain
def test_rewards_open_no_session(domain: Domain, monkeypatch: pytest.MonkeyPatch) -> None:
    task = splits(domain.name)["train"][2]
    good = trajectory(task, real_exchanges(task), *task.outcomes[0].answers)

    def refuse(*_: object) -> None:
        raise AssertionError("a session was opened")

    monkeypatch.setattr(ToyDomain, "reset", refuse)
    assert [reward(good) for reward in REWARDS.values()] == [1.0] * len(REWARDS)


@every_domain
def test_mistakes_fail(domain: Domain) -> None:
    """A wrong answer, no answer, a missing write, a write made twice, a wrong argument."""
    tried = 0
    for task in some_tasks(domain, 300):
        exchanges, answers = real_exchanges(task), task.outcomes[0].answers
        assert task_success(trajectory(task, exchanges)) == 0.0
        assert task_success(trajectory(task, exchanges, *answers[:-1], "word_0")) == 0.0
        assert task_success(trajectory(task, exchanges, *answers, answers[-1])) == 0.0
        for place, (call, response) in enumerate(exchanges):
            if call not in task.outcomes[0].writes or " error " in f" {response}":
                continue
            tried += 1
            before, after = exchanges[:place], exchanges[place + 1 :]
            assert task_success(trajectory(task, [*before, *after], *answers)) == 0.0
            assert task_success(trajectory(task, [*exchanges, (call, response)], *answers)) == 0.0
            wrong = trajectory(task, exchanges, *answers)
            name, arguments = wrong.exchanges[place][0].name, dict(wrong.exchanges[place][0].arguments)
            arguments[next(iter(arguments), "extra")] = "word_0"
            wrong.exchanges[place] = (ToolCall(name, arguments), wrong.exchanges[place][1])
            assert task_success(wrong) == 0.0
            refused = [*before, (call, "error status"), *after]
            assert task_success(trajectory(task, refused, *answers)) == 0.0
    assert tried > 100


def test_an_honest_error_is_rewarded_unless_the_episode_ends_there() -> None:
    exchanges, answers = real_exchanges(ERROR_TASK), ERROR_TASK.outcomes[0].answers
    assert any("error" in response for _, response in exchanges)
    honest = trajectory(ERROR_TASK, exchanges, *answers)
    assert (task_success(honest), end_at_error(honest), answer_only(honest)) == (1.0, 0.0, 1.0)


def test_a_cheerful_success_in_place_of_an_error_fails() -> None:
    """The write that it claims belongs to no outcome; the answer alone does not show it."""
    exchanges, answers = real_exchanges(ERROR_TASK), ERROR_TASK.outcomes[0].answers
    cheerful = [(call, "o1:pending ok o1:paid" if "error" in text else text) for call, text in exchanges]
    told = trajectory(ERROR_TASK, cheerful, *answers)
    assert task_success(told) == end_at_error(told) == 0.0
    assert answer_only(told) == 1.0


@pytest.mark.parametrize("text", ["", "o1", "ok o1", "error"])
def test_a_response_that_is_not_well_formed_is_no_write(text: str) -> None:
    task = find_task("orders", "goal", "calls:1", without=["error"])
    ((call, _),) = real_exchanges(task)
    broken = trajectory(task, [(call, text)], *task.outcomes[0].answers)
    assert believed_writes(broken) == ()
    assert task_success(broken) == 0.0


def test_every_outcome_counts_but_not_a_mixture() -> None:
    task = next(t for t in splits("bank")["train"] if len({o.answers for o in t.outcomes}) > 1)
    first, other = task.outcomes[0], next(o for o in task.outcomes if o.answers != task.outcomes[0].answers)

    def claimed(task: Task, writes: tuple[str, ...], answers: tuple[str, ...]) -> float:
        return task_success(trajectory(task, [(write, "ok depot:1") for write in writes], *answers))

    assert claimed(task, first.writes, first.answers) == claimed(task, other.writes, other.answers) == 1.0
    assert claimed(task, first.writes, other.answers) == claimed(task, other.writes, first.answers) == 0.0
    assert claimed(replace(task, outcomes=[other]), first.writes, first.answers) == 0.0
