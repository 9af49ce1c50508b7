"""Fidelity: rehearsed responses next to real ones on the same history and call."""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

import pandas as pd
import pytest

from envace_lite.evaluate import Report
from envace_lite.fidelity import (
    MUTATIONS,
    ProbePair,
    beside,
    compare,
    groundings,
    missing_rules,
    open_loop,
    probe,
    probe_pairs,
    rehearse,
    reliability,
    same_decisions,
)
from envace_lite.fidelity import report as fidelity_report
from envace_lite.fidelity.measures import counts, ratio
from envace_lite.model.policy import Policy
from envace_lite.world import Domain, Task
from envace_lite.world.families import MONTH_LENGTHS
from envace_lite.world.tools import ToolResponse
from helpers import (
    CHAT,
    EVERY_DOMAIN,
    carried_out,
    conversation,
    find_task,
    planned_calls,
    scripted,
    some_tasks,
    splits,
)

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
    task = next(t for t in splits("errands")["test"] if len(t.plan[0]) > 2)
    whole = CHAT.render(conversation(task), task.tools)
    for pair in probe_pairs([task]):
        if pair.planned:
            beginning = prefix(pair)
            assert whole[: len(beginning)] == beginning


@every_domain
def test_mutated_calls_are_what_they_are_called(domain: Domain) -> None:
    pairs = probe_pairs(splits(domain.name)["test"][:100], 0, 4, list(MUTATIONS))
    assert sum(pair.real.error is not None for pair in pairs) == pytest.approx(len(pairs) / 2, abs=1)
    planned = {(p.task.id, len(p.history)): p for p in pairs if p.planned}
    seen = set()
    for pair in pairs:
        if pair.planned:
            continue
        seen.add(pair.mutation)
        own = planned[pair.task.id, len(pair.history)].call
        same_tool, arguments = pair.call.name == own.name, dict(pair.call.arguments)
        differing = {n for n, v in own.arguments.items() if arguments.get(n) != v}
        kinds = domain.tools[own.name].kinds
        if pair.mutation == "drop":
            assert same_tool
            assert len(arguments) == len(own.arguments) - 1
            assert pair.real.error == "type"
        elif pair.mutation in ("value", "type", "enum"):
            assert same_tool
            assert len(differing) == 1
            (name,) = differing
            if pair.mutation == "type":
                assert isinstance(arguments[name], int) != isinstance(own.arguments[name], int)
                assert pair.real.error == "type"
            else:
                assert (arguments[name] in domain.pools[kinds[name]]) == (pair.mutation == "value")
        elif pair.mutation == "order":
            later = [text for turn in pair.task.plan for text in turn]
            assert pair.call.text in later
        else:
            assert pair.call.name in {tool["function"]["name"] for tool in pair.task.tools}
    assert seen >= {"value", "tool", "order", "drop", "type"}


@every_domain
def test_every_state_of_every_turn_is_probed(domain: Domain) -> None:
    for task in some_tasks(domain, 60):
        planned = [pair for pair in probe_pairs([task]) if pair.planned]
        assert [pair.call for pair in planned] == planned_calls(task)
        assert [pair.turn for pair in planned] == [
            turn for turn, calls in enumerate(task.plan) for _ in calls
        ]


# Leaves ----------------------------------------------------------------------------------------------------


def test_the_parts_of_a_response() -> None:
    assert ToolResponse.parse("o1:sent needs:paid error status").parts() == {
        "seen o1": "sent",
        "seen needs": "paid",
        "verdict": "error status",
    }
    assert ToolResponse.parse("o1:paid ok o1:sent").parts() == {
        "seen o1": "paid",
        "verdict": "ok",
        "changed o1": "sent",
    }


def test_a_leaf_is_grounded_in_the_response_that_changed_it() -> None:
    task = find_task("orders", "reach", "calls:2")
    first, second = planned_calls(task)
    record = str(second.arguments["target"])
    changed = ToolResponse({}, None, {record: "paid"})
    real = ToolResponse({record: "paid"}, None, {record: "sent"})
    told = groundings(ProbePair(task, ((first, changed),), second, real))
    assert told[f"seen {record}"] == told["verdict"] == told[f"changed {record}"] == "history"
    elsewhere = ToolResponse({}, None, {"o9": "paid"})
    real = carried_out(task, []).call(second)
    assert set(groundings(ProbePair(task, ((first, elsewhere),), second, real)).values()) == {"initial"}


def test_only_the_calendar_and_secrets_are_hidden() -> None:
    """A record that is there or not, what a tool demands and what was changed can all be read in the conversation."""
    hidden = {
        slot
        for domain in EVERY_DOMAIN
        for pair in probe_pairs(splits(domain.name)["test"])
        for slot, grounding in groundings(pair).items()
        if grounding == "hidden" and slot.startswith("seen")
    }
    assert hidden == {f"seen {key}" for key in (*MONTH_LENGTHS, "weather")}


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
    task = splits("errands")["test"][0]
    real = ToolResponse.parse("wallet:5 time:4 ok wallet:3 time:3")
    pair = ProbePair(task, (), planned_calls(task)[0], real)
    row = compare([pair], [ToolResponse.parse(rehearsed)]).iloc[0]
    assert (row.exact, row.rehearsed_error, row.real_error) == (exact, error, False)


def test_known_parts() -> None:
    """Three parts right, one wrong, one left out; one of two changes agrees."""
    task = splits("errands")["test"][0]
    soup, wallet = next(iter(task.state.items())), ("wallet", task.state["wallet"])
    real = ToolResponse({soup[0]: soup[1], "wallet": wallet[1]}, None, {soup[0]: 1, "wallet": 2})
    mine = ToolResponse({soup[0]: soup[1]}, None, {soup[0]: 1, "wallet": 3})
    row = compare([ProbePair(task, (), planned_calls(task)[0], real)], [mine], [math.log(0.25)]).iloc[0]
    assert (row.leaves_initial, row.right_initial, row.wrong_initial) == (5, 3, 1)
    assert (row.changed_real, row.changed_rehearsed, row.changed_both) == (2, 2, 1)
    assert row.confidence == pytest.approx(0.25)
    frame = pd.DataFrame([row])
    table = beside({"it": frame}).it
    assert (table.leaf_initial, table.state_f1) == (pytest.approx(3 / 5), pytest.approx(1 / 2))


def test_a_record_that_cannot_be_is_not_valid() -> None:
    task = splits("orders")["test"][0]
    pair = ProbePair(task, (), planned_calls(task)[0], ToolResponse({}, None, {}))
    told = ["o1:paid ok", "o1:7 ok", "wallet:7 ok", "o1:unknown error unknown", "o1 o2"]
    frame = compare([pair] * 5, [ToolResponse.parse(text) for text in told])
    assert frame.valid.tolist() == [True, False, False, True, False]


def test_reliability_of_one_who_is_too_sure() -> None:
    frame = pd.DataFrame({"confidence": [0.95] * 4 + [0.15] * 4, "exact": [True, False] * 2 + [False] * 4})
    told = reliability(frame)
    assert told.table.pairs.tolist() == [4, 4]
    assert told.table.right.tolist() == [0.0, 0.5]
    assert told.error == pytest.approx((0.15 + 0.45) / 2)
    assert (
        reliability(frame.assign(exact=[True] * 4 + [False] * 4, confidence=[1.0] * 4 + [0.0] * 4)).error == 0
    )


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


def test_in_an_open_loop_a_mistake_stays(lessons: Lessons) -> None:
    """One who tells the first response wrong is then asked after that, not after the real one."""
    task = next(task for task, _ in lessons if len(task.plan[0]) >= 2 and not task.later_turns)
    messages = conversation(task)
    place = next(i for i, message in enumerate(messages) if message["role"] == "tool")
    wrong = [*messages]
    wrong[place] = {**messages[place], "content": "amex:frozen ok"}
    pairs = probe_pairs([task])
    asked, told = open_loop(scripted((task, messages)), pairs)
    assert [pair.history for pair in asked] == [pair.history for pair in pairs if pair.planned]
    assert [r.response for r in told] == [pair.real for pair in pairs if pair.planned]
    asked, told = open_loop(scripted((task, wrong)), pairs)
    assert told[0].response.text == "amex:frozen ok"
    assert asked[1].history[0][1].text == "amex:frozen ok"


def test_decisions_agree_when_the_next_message_is_the_same(lessons: Lessons) -> None:
    """The act role of a script goes on after the real response, and is lost after another one."""
    task = next(task for task, _ in lessons if task.plan[0] and not task.later_turns)
    pairs = [pair for pair in probe_pairs([task]) if pair.planned]
    real = [pair.real for pair in pairs]
    assert same_decisions(scripted((task, conversation(task))), pairs, real) == [True] * len(pairs)
    other = [ToolResponse.parse("amex:frozen ok"), *real[1:]]
    assert same_decisions(scripted((task, conversation(task))), pairs, other) == [False] + [True] * (
        len(pairs) - 1
    )


def test_the_whole_report(apt: Policy, lessons: Lessons) -> None:
    tasks = [task for task, _ in lessons if not task.later_turns]
    told = fidelity_report(apt, tasks)
    record = json.loads(json.dumps(told.to_record()))
    assert record["pairs"] == len(told.pairs) == sum(row[0] for row in _bins(record))
    assert set(record["baselines"]) == {"always_success", "copy_arguments", "most_frequent", "oracle"}
    assert record["by_depth"][0][:2] == [0, int((told.pairs.planned & (told.pairs.depth == 0)).sum())]
    assert record["missing_rules"] == missing_rules(told.pairs)
    assert "optimism" in told._repr_html_()
    assert f"{len(told.pairs)} pairs" in repr(told)


def _bins(record: dict[str, Any]) -> list[list[float]]:
    return record["reliability"]


def test_the_agreement_of_changed_records() -> None:
    """Twice the common ones over all: 2 * 2 / (2 + 3)."""
    frame = pd.DataFrame({"task": ["a"], "changed_real": [2], "changed_rehearsed": [3], "changed_both": [2]})
    assert ratio(counts(frame, "state_f1")) == pytest.approx(4 / 5)


def test_the_rules_of_a_pair_are_told_side_by_side() -> None:
    pairs = probe_pairs([find_task("orders", "error", "instructions")])
    (error,) = [i for i, pair in enumerate(pairs) if pair.real.error][:1]
    (success,) = [i for i, pair in enumerate(pairs) if not pair.real.error][:1]
    for answer in ("funds", None):
        frame = compare(pairs, [ToolResponse({}, answer, {})] * len(pairs))
        assert (frame.rule[error], frame.rule[success]) == (pairs[error].real.error, "")
        assert set(frame.rehearsed_rule) == {answer or ""}
