"""Evaluation on the real environment: success, calls, wrong writes, tool names, and intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from envace_lite.evaluate import METRICS, Report, deploy, evaluate, rehearsed_alone
from envace_lite.experiments.ranks import rank_agreement
from envace_lite.fidelity import by_depth
from envace_lite.fidelity.grounding import GROUNDINGS
from envace_lite.fidelity.measures import interval
from envace_lite.model.policy import Policy
from envace_lite.rollout import rollout
from envace_lite.world import Task
from envace_lite.world.tools import parse_calls
from helpers import carried_out, find_task, planned_calls, scripted, splits

Lessons = list[tuple[Task, list[dict[str, Any]]]]


def repeatable_task() -> Task:
    """A task of two different writes, of which the first can be made three times."""
    for task in splits("bank")["train"]:
        calls = planned_calls(task)
        if "calls:2" in task.tags and len(set(task.outcomes[0].writes)) == 2:
            log = carried_out(task, [calls[0], calls[0], calls[0], calls[1]]).log
            if all(response.changed for _, response in log):
                return task
    raise LookupError


TASK = repeatable_task()


def acted(task: Task, calls: list[str], answer: str) -> pd.Series:
    """How it goes when a policy makes these calls on the real environment."""
    messages: list[dict[str, Any]] = [*task.messages]
    session = carried_out(task, [call for text in calls for call in parse_calls(text, task.tools)])
    for call, response in session.log:
        messages.append({"role": "assistant", "tool_calls": [call.to_message()]})
        messages.append({"role": "tool", "name": call.name, "content": response.text})
    messages.append({"role": "assistant", "content": answer})
    (row,) = deploy(scripted((task, messages)), [task])[1].itertuples(index=False)
    return row  # type: ignore[return-value]


def counted(*rows: tuple[int, int, int]) -> Report:
    """A report in which only tool names were counted: calls planned, made, and both."""
    columns = ["plan_calls", "committed_calls", "matched_calls"]
    frame = pd.DataFrame(rows, columns=columns)
    frame["task"], frame["domain"] = [str(i) for i in range(len(rows))], "bank"
    return Report(frame, pd.DataFrame())


# On the real environment -----------------------------------------------------------------------------------


def test_one_who_follows_the_plan_succeeds(lessons: Lessons) -> None:
    trajectories, rows = deploy(scripted(*lessons), [task for task, _ in lessons])
    assert rows.real_success.all()
    assert rows.right_answer.all()
    assert rows.right_state.all()
    assert (rows.wrong_writes == 0).all()
    assert rows.committed_calls.tolist() == [len(planned_calls(task)) for task, _ in lessons]
    assert rows.plan_calls.tolist() == rows.matched_calls.tolist() == rows.committed_calls.tolist()
    assert rows.kind.tolist() == [task.tags[0] for task, _ in lessons]
    assert [t.task for t in trajectories] == [task for task, _ in lessons]


def test_wrong_writes() -> None:
    """A repeated write, and one that was not asked for, are wrong; a write that was left out is not one."""
    first, second = (call.text for call in planned_calls(TASK))
    answer = TASK.outcomes[0].answers[0]
    good = acted(TASK, [first, second], answer)
    assert (good.real_success, good.wrong_writes) == (True, 0)
    for calls, wrong in [
        ([first], 0),
        ([], 0),
        ([first, second, first], 1),
        ([first, first, first, second], 2),
    ]:
        row = acted(TASK, calls, answer)
        assert not row.real_success
        assert row.wrong_writes == wrong, calls


def test_a_refused_call_is_no_wrong_write() -> None:
    task = find_task("orders", "reach", "calls:1")
    planned = planned_calls(task)[0].text
    row = acted(task, [planned, planned], task.outcomes[0].answers[0])
    assert (row.real_success, row.wrong_writes, row.committed_calls) == (True, 0, 2)


def test_any_acceptable_outcome_is_no_wrong_write() -> None:
    task = next(t for t in splits("bank")["train"] if len(t.outcomes) > 1 and len(t.outcomes[-1].writes) == 1)
    other = task.outcomes[-1]
    row = acted(task, list(other.writes), other.answers[0])
    assert (row.real_success, row.wrong_writes) == (True, 0)


def test_a_wrong_answer_alone() -> None:
    row = acted(TASK, [call.text for call in planned_calls(TASK)], "pizza")
    assert (row.real_success, row.right_state, row.right_answer, row.wrong_writes) == (False, True, False, 0)


@pytest.mark.any_tokens
def test_an_untrained_policy_fails(tiny: Policy, lessons: Lessons) -> None:
    report = evaluate(tiny, [task for task, _ in lessons])
    assert report.value("real_success") == report.value("fidelity") == 0.0
    assert repr(report) == "<Report: 7 tasks, real success 0.000>"


def test_a_report_of_one_who_knows(apt: Policy, lessons: Lessons) -> None:
    report = evaluate(apt, [task for task, _ in lessons])
    assert report.value("real_success") == report.value("tool_f1") == 1.0
    assert report.value("fidelity") > 0.25
    summary = report.summary(resamples=200)
    assert set(summary.index.get_level_values("metric")) == set(METRICS)
    assert set(summary.index.get_level_values("domain")) == {
        "all",
        "home",
        "orders",
        "errands",
        "bank",
        "instructions",
        "goal",
    }
    assert "real_success" in report._repr_html_()
    depth = by_depth(report.pairs)
    assert depth.pairs.sum() == len(report.pairs)
    assert depth.fidelity.between(0, 1).all()


def test_a_group_has_the_tasks_of_one_domain_or_kind_and_their_pairs(apt: Policy, lessons: Lessons) -> None:
    report = evaluate(apt, [task for task, _ in lessons])
    kinds, domains = (
        [report.only(name) for name in report.tasks[column].unique()] for column in ("kind", "domain")
    )
    for parts in (kinds, domains):
        assert sum(len(part.tasks) for part in parts) == len(report.tasks)
        assert sum(len(part.pairs) for part in parts) == len(report.pairs)
        assert all(set(part.pairs.task) <= set(part.tasks.task) for part in parts)
    tags = {task.id: task.tags[0] for task, _ in lessons}
    assert set(report.only("goal").tasks.task) == {task for task, kind in tags.items() if kind == "goal"}


# Known figures ---------------------------------------------------------------------------------------------


def test_tool_names() -> None:
    """Plans of 3 and 2 calls, 4 and 1 made, 2 and 1 of them with a planned name."""
    report = counted((3, 4, 2), (2, 1, 1))
    assert report.value("tool_precision") == pytest.approx(3 / 5)
    assert report.value("tool_recall") == pytest.approx(3 / 5)
    assert report.value("tool_f1") == pytest.approx(6 / 10)
    lopsided = counted((1, 4, 1), (1, 0, 0))
    assert lopsided.value("tool_precision") == pytest.approx(1 / 4)
    assert lopsided.value("tool_recall") == pytest.approx(1 / 2)
    assert lopsided.value("tool_f1") == pytest.approx(1 / 3)


def test_names_are_counted_as_often_as_they_are_called() -> None:
    calls = [call.text for call in planned_calls(TASK)]
    row = acted(TASK, [calls[0]] * 3, TASK.outcomes[0].answers[0])
    names = [text.split()[0] for text in calls]
    assert (row.plan_calls, row.committed_calls) == (2, 3)
    assert row.matched_calls == min(names.count(names[0]), 3)


PAIRS = pd.DataFrame(
    [
        # task, depth, exact, real_error, rehearsed_error, rehearsed_success
        ("a", 0, True, True, True, False),
        ("a", 0, False, True, False, True),
        ("a", 1, True, False, False, True),
        ("b", 0, False, True, False, False),  # not well formed
        ("b", 1, False, False, True, False),
        ("b", 1, True, False, False, True),
        ("b", 2, False, False, False, True),
        ("b", 2, False, True, True, False),
    ],
    columns=["task", "depth", "exact", "real_error", "rehearsed_error", "rehearsed_success"],
).assign(
    valid=True,
    **dict.fromkeys((f"{what}_{g}" for g in GROUNDINGS for what in ("leaves", "right", "wrong")), 1),
    **dict.fromkeys(("changed_real", "changed_rehearsed", "changed_both"), 1),
)


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("fidelity", 3 / 8),
        ("fidelity_success", 2 / 4),
        ("fidelity_error", 1 / 4),
        ("error_recall", 2 / 4),
        ("error_precision", 2 / 3),
        ("optimism", 1 / 4),
        ("pessimism", 1 / 4),
    ],
)
def test_known_fidelity(metric: str, value: float) -> None:
    report = Report(pd.DataFrame({"task": ["a", "b"], "domain": "orders"}), PAIRS)
    assert report.value(metric) == pytest.approx(value)


def test_known_depths() -> None:
    table = by_depth(PAIRS)
    assert table.pairs.tolist() == [3, 3, 2]
    assert table.fidelity.tolist() == pytest.approx([1 / 3, 2 / 3, 0])
    assert table.optimism.tolist()[::2] == pytest.approx([1 / 3, 0])


def test_known_gap_and_consistency() -> None:
    """Three of four solved really, two in rehearsal, one by the rehearsed calls."""
    tasks = pd.DataFrame({"task": list("abcd"), "real_success": [1, 1, 1, 0]})
    tasks["rehearsed_success"], tasks["wm2real"] = [1, 0, 0, 1], [1, 0, 0, 0]
    report = Report(tasks.assign(domain="orders", kind="goal"), PAIRS)
    assert report.value("deployment_gap") == pytest.approx(-1 / 4)
    assert report.value("consistency") == pytest.approx(1 / 3)


def test_an_episode_of_ones_own_is_made_again_on_the_real_environment(lessons: Lessons) -> None:
    """Who rehearses the real conversations succeeds in both worlds; who believes a refused call does so in neither."""
    single = [lesson for lesson in lessons if not lesson[0].later_turns]
    tasks = [task for task, _ in single]
    alone = rehearsed_alone(scripted(*single), tasks)
    assert alone.rehearsed_success.all()
    assert alone.wm2real.all()
    task = find_task("orders", "error", "instructions", "rule:status")
    call = next(c for c in planned_calls(task) if carried_out(task, []).call(c).error)
    told = [
        *task.messages,
        {"role": "assistant", "tool_calls": [call.to_message()]},
        {"role": "tool", "name": call.name, "content": "o1:pending ok o1:sent"},
        {"role": "assistant", "content": "sent"},
    ]
    (row,) = rehearsed_alone(scripted((task, told)), [task]).itertuples()
    assert not row.rehearsed_success
    assert not row.wm2real


@pytest.mark.any_tokens
def test_the_probe_of_an_evaluation_has_a_seed(tiny: Policy, lessons: Lessons) -> None:
    """The same one for everyone who names none, so that two evaluations can be set side by side."""
    tasks = [task for task, _ in lessons]
    usual, same, other = (evaluate(tiny, tasks, **seed).pairs.call for seed in ({}, {"seed": 0}, {"seed": 1}))
    assert list(usual) == list(same) != list(other)


@pytest.mark.any_tokens
def test_both_worlds_are_decoded_greedily(
    tiny: Policy, lessons: Lessons, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the gap between them would be one of luck."""
    asked = []

    def watched(*arguments: Any, **options: Any) -> Any:
        asked.append(options.get("temperature"))
        return rollout(*arguments, **options)

    monkeypatch.setattr("envace_lite.evaluate.rollout", watched)
    evaluate(tiny, [task for task, _ in lessons])
    assert asked == [0.0, 0.0]


def test_ranks_agree_in_a_world_that_is_real(lessons: Lessons) -> None:
    """A world that answers as the environment does ranks the knowing above the ignorant."""
    single = [lesson for lesson in lessons if not lesson[0].later_turns][:4]
    tasks = [task for task, _ in single]
    some = [
        (t, m if i < 2 else [*t.messages, {"role": "assistant", "content": "word_0"}])
        for i, (t, m) in enumerate(single)
    ]
    none = [(t, [*t.messages, {"role": "assistant", "content": "word_0"}]) for t in tasks]
    policies = {"all": scripted(*single), "some": scripted(*some), "none": scripted(*none)}
    table, tau = rank_agreement(policies, scripted(*single), tasks)
    assert table.real.tolist() == [1.0, 0.5, 0.0]
    assert table.rehearsed.tolist() == [1.0, 0.5, 0.0]
    assert tau == 1.0


# Intervals -------------------------------------------------------------------------------------------------


def measured(successes: np.ndarray) -> pd.Series:
    """The summary of real success for tasks that went like this."""
    tasks = pd.DataFrame(
        {"task": [str(i) for i in range(len(successes))], "domain": "orders", "kind": "goal"}
    )
    tasks["real_success"] = successes
    others = "rehearsed_success wm2real committed_calls wrong_writes plan_calls matched_calls".split()
    for column in others:
        tasks[column] = 1
    pairs = PAIRS.assign(domain="orders")
    return Report(tasks, pairs).summary().loc[("all", "real_success")]


def test_intervals_hold_the_value_and_shrink() -> None:
    rng = np.random.default_rng(0)
    few, many = (measured(rng.random(count) < 0.7) for count in (40, 640))
    for row in (few, many):
        assert 0 <= row.low < row.value < row.high <= 1
    assert many.high - many.low < 0.4 * (few.high - few.low)
    assert many.high - many.low == pytest.approx(2 * 1.96 * (0.7 * 0.3 / 640) ** 0.5, rel=0.2)


def test_a_ratio_is_resampled_task_by_task() -> None:
    """Numerator and denominator of a task belong together: where they rise together the ratio hardly varies."""
    denominator = np.array([1.0, 50.0] * 20)
    numerator = denominator / 2
    numerator[0] = 0.0
    told = interval((numerator, denominator))
    assert told["high"] - told["low"] < 0.01
    shuffled = interval((np.roll(numerator, 1), denominator))
    assert shuffled["high"] - shuffled["low"] > 0.1


def test_intervals_are_repeatable() -> None:
    successes = np.arange(60) % 3 == 0
    assert measured(successes).equals(measured(successes))


def test_without_a_difference_the_interval_is_the_value() -> None:
    row = measured(np.ones(20, dtype=bool))
    assert (row.value, row.low, row.high) == (1, 1, 1)
