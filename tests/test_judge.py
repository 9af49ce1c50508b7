"""The judge: what the conversation itself tells, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from envace_lite.world import Domain, Task, ToyDomain
from envace_lite.world.tools import ToolCall
from envace_lite.world.verifier import BROKEN, DONE, OPEN, request_status
from helpers import EVERY_DOMAIN, conversation, find_task, some_tasks, splits

every_domain = pytest.mark.parametrize("domain", EVERY_DOMAIN, ids=lambda domain: domain.name)


@pytest.mark.parametrize("together", [False, True])
@every_domain
def test_the_real_course_of_events_is_open_to_its_end(domain: Domain, together: bool) -> None:
    """Every part of it is open, also between a call and its response; the whole is done."""
    for task in some_tasks(domain, 150):
        if together and " and " not in f"{task.messages[-1]['content']} {task.later_turns}":
            continue
        if together and "calls:2" not in task.tags:
            continue
        messages = conversation(task, together=together)
        said = messages[len(task.messages) :]
        words = [request_status(task, said[:end]) for end in range(len(said) + 1)]
        assert words == [OPEN] * len(said) + [DONE], (task.id, words)


@every_domain
def test_a_conversation_may_have_gone_on_for_a_while(domain: Domain) -> None:
    """Split anywhere into what the task holds and what follows, it is the same conversation."""
    for task in some_tasks(domain, 60):
        messages = conversation(task)
        for end in range(len(task.messages), len(messages)):
            later = [m["content"] for m in messages[end:] if m["role"] == "user"]
            situation = replace(task, messages=messages[:end], later_turns=later)
            assert request_status(situation, messages[end:]) == DONE


@every_domain
def test_what_was_not_asked_for_breaks_it(domain: Domain) -> None:
    """A wrong answer, one too many, a call that no step names."""
    for task in some_tasks(domain, 150):
        messages = conversation(task)
        said = messages[len(task.messages) :]
        assert request_status(task, [*said[:-1], {**said[-1], "content": "word_0"}]) == BROKEN
        assert request_status(task, [*said, said[-1]]) == BROKEN
        if "instructions" in task.tags:
            if task.plan[0]:
                assert request_status(task, said[-1:]) == BROKEN
            odd = ToolCall(task.tools[0]["function"]["name"], {"target": "word_0"})
            call = {"role": "assistant", "tool_calls": [odd.to_message()]}
            assert request_status(task, [call]) == BROKEN
            assert request_status(task, [*said[:-1], call]) == BROKEN


def refused_task() -> Task:
    """A task `A else B report X` in which A is refused."""
    for task in splits("orders")["train"]:
        if {"error", "calls:2", "instructions"} <= set(task.tags) and not task.later_turns:
            first, second = task.plan[0]
            if task.messages[-1]["content"].startswith(f"{first} else {second} report "):
                return task
    raise AssertionError("there is none")


def test_it_believes_what_it_reads() -> None:
    """Told that the first step went well, it breaks with the alternative; nobody asks the world."""
    task = refused_task()
    said = conversation(task)[len(task.messages) :]
    assert request_status(task, said) == DONE
    cheerful = {**said[1], "content": "o5:sent needs:sent ok o5:delivered"}
    assert request_status(task, [said[0], cheerful, *said[2:]]) == BROKEN
    assert request_status(task, [said[0], cheerful, said[-1]]) == BROKEN  # the answer is not what was told
    assert request_status(task, [said[0], cheerful]) == OPEN
    early = {"role": "assistant", "content": "returned"}  # what `o4` is as long as nothing has been done
    assert request_status(task, [early]) == BROKEN
    assert request_status(task, [said[0], early]) == BROKEN  # the response is not known yet


def test_a_goal_is_reached_by_whatever_way() -> None:
    task = find_task("orders", "goal", "reach", "calls:2")
    said = conversation(task)[len(task.messages) :]
    assert request_status(task, said) == DONE
    assert request_status(task, said[:2]) == OPEN  # half of the way
    assert request_status(task, [*said[:2], said[-1]]) == BROKEN  # an answer too early
    assert request_status(task, [*said[:2], *said]) == DONE  # a call too many is no harm that it could read


def test_a_request_in_other_words_is_not_understood() -> None:
    task = refused_task()
    other = replace(task, messages=[task.messages[0], {"role": "user", "content": "do something"}])
    assert request_status(other) == OPEN
    said = conversation(task)[len(task.messages) :]
    assert request_status(other, said) == BROKEN


def test_it_opens_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    task = refused_task()
    said = conversation(task)[len(task.messages) :]

    def refuse(*_: object) -> None:
        raise AssertionError("a session was opened")

    monkeypatch.setattr(ToyDomain, "reset", refuse)
    assert request_status(task, said) == DONE
    assert request_status(replace(task, outcomes=[]), said) == DONE  # and there is no label
