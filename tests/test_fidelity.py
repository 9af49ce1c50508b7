"""Fidelity: rehearsed responses next to real ones on the same history and call."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from envace_lite.domains import Domain, Task
from envace_lite.evaluate import Report
from envace_lite.fidelity import ProbePair, compare, probe, probe_pairs, rehearse
from envace_lite.policy import Policy
from envace_lite.tools import ToolResponse
from helpers import CHAT, EVERY_DOMAIN, carried_out, conversation, planned_calls, scripted, some_tasks, splits

Lessons = list[tuple[Task, list[dict[str, Any]]]]
every_domain = pytest.mark.parametrize("domain", EVERY_DOMAIN, ids=lambda domain: domain.name)


def pairs_of(domain: Domain) -> list[ProbePair]:
    return probe_pairs(splits(domain.name)["test"][:150], seed=0)


def prefix(pair: ProbePair) -> list[int]:
    """Token ids of the conversation up to the header of the response."""
    return CHAT.render(pair.messages, pair.task.tools, prompt=pair.call.name)


def report(pairs: list[ProbePair], responses: list[ToolResponse]) -> Report:
    frame = compare(pairs, responses)
    return Report(frame[["task", "domain"]].drop_duplicates().assign(kind="goal"), frame)


# Pairs -----------------------------------------------------------------------------------------------------


@every_domain
def test_half_of_the_pairs_are_errors(domain: Domain) -> None:
    pairs = pairs_of(domain)
    errors = [pair for pair in pairs if pair.real.error]
    assert len(pairs) > 300
    assert len(errors) == pytest.approx(len(pairs) / 2, rel=0.05)
    assert 0.3 < sum(pair.planned for pair in pairs) / len(pairs) < 0.7


@every_domain
def test_pairs_hold_what_the_real_environment_says(domain: Domain) -> None:
    for pair in pairs_of(domain):
        session = carried_out(pair.task, [call for call, _ in pair.history])
        assert [response for _, response in session.log] == [response for _, response in pair.history]
        assert session.call(pair.call) == pair.real
        planned = planned_calls(pair.task)
        assert [call for call, _ in pair.history] == planned[: len(pair.history)]
        assert not pair.planned or pair.call == planned[len(pair.history)]


@every_domain
def test_pairs_depend_on_the_seed_alone(domain: Domain) -> None:
    tasks = splits(domain.name)["test"][:20]
    assert probe_pairs(tasks, 3) == probe_pairs(tasks, 3)
    assert probe_pairs(tasks, 3) != probe_pairs(tasks, 4)


@every_domain
def test_every_pair_can_be_shown_to_a_policy(domain: Domain) -> None:
    for task in some_tasks(domain, 90):
        for pair in probe_pairs([task]):
            text = CHAT.decode(prefix(pair))
            assert text.endswith(f"<assistant> {pair.call.text} <end> <tool> {pair.call.name}")
            assert text.count("<tool>") == len(pair.history) + 1
            CHAT.encode(pair.real.text)


def test_a_prefix_is_the_beginning_of_the_conversation() -> None:
    task = next(t for t in splits("delivery")["test"] if len(t.plan[0]) > 2)
    whole = CHAT.render(conversation(task), task.tools)
    for pair in probe_pairs([task]):
        if pair.planned:
            beginning = prefix(pair)
            assert whole[: len(beginning)] == beginning


# Comparison ------------------------------------------------------------------------------------------------


@every_domain
def test_the_real_responses_are_perfect(domain: Domain) -> None:
    pairs = pairs_of(domain)
    perfect = report(pairs, [pair.real for pair in pairs])
    for metric in ("fidelity", "fidelity_success", "fidelity_error", "error_recall", "error_precision"):
        assert perfect.value(metric) == 1.0
    assert perfect.value("optimism") == perfect.value("pessimism") == 0.0


@every_domain
def test_one_who_always_reports_success_is_an_optimist(domain: Domain) -> None:
    pairs = pairs_of(domain)
    cheerful = report(pairs, [ToolResponse({}, None, {})] * len(pairs))
    assert cheerful.value("optimism") == 1.0
    assert (
        cheerful.value("error_recall")
        == cheerful.value("pessimism")
        == cheerful.value("fidelity_error")
        == 0.0
    )


@every_domain
def test_one_who_always_reports_an_error_is_a_pessimist(domain: Domain) -> None:
    pairs = pairs_of(domain)
    gloomy = report(pairs, [ToolResponse({}, "status", {})] * len(pairs))
    assert gloomy.value("pessimism") == gloomy.value("error_recall") == 1.0
    assert gloomy.value("optimism") == gloomy.value("fidelity_success") == 0.0


@every_domain
def test_responses_to_other_calls_are_unlike(domain: Domain) -> None:
    pairs = pairs_of(domain)
    responses = [pair.real for pair in pairs]
    Random(0).shuffle(responses)
    shuffled = report(pairs, responses)
    assert shuffled.value("fidelity") < 0.15
    assert 0.3 < shuffled.value("optimism") < 0.7


def test_what_is_not_well_formed_is_neither_error_nor_success() -> None:
    pairs = pairs_of(EVERY_DOMAIN[0])
    broken = report(pairs, [ToolResponse.parse("o3:sent")] * len(pairs))
    for metric in ("fidelity", "error_recall", "optimism", "pessimism"):
        assert broken.value(metric) == 0.0


@pytest.mark.parametrize(
    ("rehearsed", "exact", "error"),
    [
        ("wallet:5 time:4 ok wallet:3 time:3", True, False),
        ("wallet:5 time:4 ok wallet:2 time:3", False, False),  # a wrong sum
        ("wallet:5 ok wallet:3 time:3", False, False),  # a record that is not shown
        ("wallet:5 time:4 ok wallet:3 time:3 tea:1", False, False),  # one change too many
        ("time:4 wallet:5 ok wallet:3 time:3", False, False),  # other words are another sentence
        ("wallet:5 time:4 error funds", False, True),
        ("wallet:5 time:4", False, False),
    ],
)
def test_known_comparisons(rehearsed: str, exact: bool, error: bool) -> None:
    task = splits("delivery")["test"][0]
    real = ToolResponse.parse("wallet:5 time:4 ok wallet:3 time:3")
    pair = ProbePair(task, (), planned_calls(task)[0], real)
    row = compare([pair], [ToolResponse.parse(rehearsed)]).iloc[0]
    assert (row.exact, row.rehearsed_error, row.real_error) == (exact, error, False)


# Rehearsing ------------------------------------------------------------------------------------------------


def test_responses_are_those_of_the_rehearse_role(lessons: Lessons) -> None:
    """A policy that writes the real conversations word for word is right about the planned calls."""
    single = [(task, conversation(task)) for task, _ in lessons]
    tasks = [task for task, _ in single]
    pairs = [pair for pair in probe_pairs(tasks) if pair.planned]
    assert rehearse(scripted(*single), pairs) == [pair.real for pair in pairs]
    frame = probe(scripted(*single), tasks)
    assert frame[frame.planned].exact.all()
    assert not frame[~frame.planned].exact.any()


def test_a_policy_that_knows_the_conversations(apt: Policy, lessons: Lessons) -> None:
    frame = probe(apt, [task for task, _ in lessons[1:]])
    assert frame[frame.planned].exact.all()
    assert len(frame) > 8
