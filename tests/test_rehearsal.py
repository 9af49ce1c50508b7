"""Private rehearsal and its controls: nothing imagined reaches the world, and every token is paid for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from envace_lite.evaluate import deploy
from envace_lite.experiments.deliberate import how_it_went
from envace_lite.experiments.harm import can_be_undone, harm, irreversible_writes, wrong_writes
from envace_lite.experiments.self_evaluation import SelfEvaluation, fit_self_evaluation
from envace_lite.experiments.thinking import Refine, Scratchpad, ThinkingRehearse
from envace_lite.model.compact import Compact
from envace_lite.model.language import ACT, GIVEN
from envace_lite.model.policy import Policy
from envace_lite.rehearsal import Entry, ImaginedCall, Ledger, imagining
from envace_lite.rehearsal import episode as episodes_module
from envace_lite.rehearsal.choice import Choice, Written, parsed
from envace_lite.rehearsal.controls import SelfConsistency
from envace_lite.rehearsal.episode import Deliberation, Episode, Plain
from envace_lite.rehearsal.private import PrivateRehearsal
from envace_lite.rehearsal.scorers import agreement, carried_out, likelihood, no_errors
from envace_lite.reward import task_success
from envace_lite.rollout import Execute, Rehearse, Trajectory, rollout
from envace_lite.world import DOMAINS, Outcome, Session, Task, get_domain
from envace_lite.world.tools import ToolCall
from helpers import (
    CHAT,
    Scripted,
    conversation,
    find_task,
    open_session,
    planned_calls,
    real_exchanges,
    same_weights,
    scripted,
    splits,
    trajectory,
    weights,
)

Lessons = list[tuple[Task, list[dict[str, Any]]]]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tasks_of(lessons: Lessons) -> list[Task]:
    return [task for task, _ in lessons] * 2


def by_hand_task(state: dict[str, Any], tools: Sequence[str], outcome: Outcome, plan: Sequence[str]) -> Task:
    """A task by hand."""
    domain = get_domain("orders")
    return Task(
        id="orders-hand",
        domain="orders",
        messages=[
            {"role": "system", "content": "orders " + " ".join(f"{k}:{v}" for k, v in state.items())},
            {"role": "user", "content": "reach o2:packed report o2"},
        ],
        later_turns=[],
        tools=[domain.tools[name].schema for name in tools],
        state=state,
        outcomes=[outcome],
        plan=[list(plan)],
        tags=["goal"],
    )


HAND = by_hand_task(
    {"o1": "pending", "o2": "paid"},
    ["cancel_order", "pack_order", "get_order"],
    Outcome(("packed",), ("pack_order o2",), {"o2": "packed"}),
    ["pack_order o2"],
)


def drawn(session: Session, *calls: str) -> Ledger:
    """A ledger of committed calls."""
    ledger = Ledger()
    for number, text in enumerate(calls):
        name, order = text.split()
        before = session.digest()
        response = session.call(ToolCall(name, {"target": order}))
        entry = Entry(
            number, "committed", "real", response.text, 0, before, session.digest(), text, response.error
        )
        ledger.add(entry)
    return ledger


# Plain execution is what it was ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "way",
    [
        Plain,
        lambda policy, **o: PrivateRehearsal(policy, 0, **o),
        lambda policy, **o: PrivateRehearsal(policy, 0, "sequential", memory=True, when="write", **o),
        lambda policy, **o: SelfConsistency(policy, 0, **o),
        lambda policy, **o: Refine(policy, 0, **o),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_without_a_budget_it_is_plain_execution(
    apt: Policy, lessons: Lessons, way: Callable[..., Plain], temperature: float
) -> None:
    tasks = tasks_of(lessons)
    responder = Execute()
    trajectories = rollout(apt, tasks, responder, temperature=temperature, generator=seeded(3))
    episodes = way(apt, temperature=temperature, seed=3).run(tasks)
    for one, other, session in zip(episodes, trajectories, responder.sessions, strict=True):
        assert (one.exchanges, one.answers, one.stop_reason) == (
            other.exchanges,
            other.answers,
            other.stop_reason,
        )
        assert one.conversation == other.messages()
        assert one.session.digest() == session.digest()
        written = [text for who, text in other.segments(CHAT) if who == "act"]
        assert [e.text for e in one.ledger if e.role == "act"] == [
            text.removesuffix("<end>").rstrip() for text in written
        ]
        assert one.ledger.total == len(other.prompt) + len(other.ids)
        assert one.ledger.tokens["committed"] == other.roles.count(ACT)
        assert one.ledger.tokens["prefill"] == len(other.prompt) + other.roles.count(GIVEN)
        real = one.ledger.responses("committed")
        assert [e.before for e in real[1:]] == [e.after for e in real[:-1]]  # the states follow each other
        assert not real or real[-1].after == session.digest()


def test_greedy_plain_execution_is_the_evaluation(apt: Policy, lessons: Lessons) -> None:
    tasks = tasks_of(lessons)
    frame = deploy(apt, tasks)[1]
    rows = [how_it_went(episode) for episode in Plain(apt, temperature=0.0).run(tasks)]
    for name in ("task", "kind", "real_success", "wrong_writes", "committed_calls"):
        assert [line[name] for line in rows] == list(frame[name]), name


# Nothing imagined reaches the world --------------------------------------------------------------------------


def by_its_call(session: Session) -> None:
    session.call(planned_calls(session.task)[0])


def by_a_tool(session: Session) -> None:
    call = planned_calls(session.task)[0]
    session.tools[call.name].call(session.world, call.arguments)


def by_hand(session: Session) -> None:
    session.world.records["o1"] = "refunded"


def by_another_world(session: Session) -> None:
    session.restore({})


def by_taking_off_the_guard(session: Session) -> None:
    session.rehearsals = 0
    by_its_call(session)


LEAKS = [by_its_call, by_a_tool, by_hand, by_another_world, by_taking_off_the_guard]


def treacherous(leak: Callable[[Session], None], session: Session) -> Callable[..., list[float]]:
    def scorer(continuations: Sequence[Trajectory]) -> list[float]:
        leak(session)
        return [0.0] * len(continuations)

    return scorer


@pytest.mark.parametrize("leak", LEAKS)
def test_no_imagined_call_reaches_the_environment(apt: Policy, leak: Callable[[Session], None]) -> None:
    episode = Episode(find_task("bank", "reach", "calls:2"))
    before = episode.session.digest()
    way = PrivateRehearsal(apt, 2, scorer=treacherous(leak, episode.session))
    with pytest.raises(ImaginedCall, match=r"reached for the real|bank-train"):
        way.deliberate([episode], seeded())
    assert episode.session.digest() == before
    assert episode.session.log == []
    by_its_call(episode.session)  # and it can be called again
    assert episode.session.digest() != before


@pytest.mark.parametrize("leak", LEAKS[:4])
def test_without_the_guard_they_would(apt: Policy, leak: Callable[[Session], None]) -> None:
    episode = Episode(find_task("bank", "reach", "calls:2"))
    before = episode.session.digest()
    PrivateRehearsal(apt, 2, scorer=treacherous(leak, episode.session)).decide([episode], seeded())
    assert episode.session.digest() != before


def test_an_exception_in_the_middle_leaves_the_session_as_it_was(apt: Policy, lessons: Lessons) -> None:
    opened: list[Session] = []

    def scorer(continuations: Sequence[Trajectory]) -> list[float]:
        opened.append(continuations[0])  # type: ignore[arg-type]
        raise ZeroDivisionError

    episodes = [Episode(task) for task, _ in lessons]
    before = [(episode.session.digest(), list(episode.conversation)) for episode in episodes]
    with pytest.raises(ZeroDivisionError):
        PrivateRehearsal(apt, 2, scorer=scorer).deliberate(episodes, seeded())
    assert [(e.session.digest(), e.conversation) for e in episodes] == before
    assert all(episode.session.rehearsals == 0 and episode.ledger.entries == [] for episode in episodes)


def test_guards_may_be_nested() -> None:
    session = open_session(HAND)
    with imagining(session):
        with imagining(session):
            pass
        with pytest.raises(ImaginedCall):
            session.call(ToolCall("get_order", {"target": "o1"}))
    assert session.call(ToolCall("get_order", {"target": "o1"})).error is None


def test_the_ledger_proves_it(apt: Policy, lessons: Lessons) -> None:
    for episode in PrivateRehearsal(apt, 3, temperature=1.3).run(tasks_of(lessons)):
        assert all(entry.before == entry.after for entry in episode.ledger if entry.kind == "imagined")
        assert len(episode.session.log) == len(episode.ledger.responses("committed"))


# Every token is paid for -------------------------------------------------------------------------------------

WAYS: dict[str, Callable[[Policy], Plain]] = {
    "plain": lambda policy: Plain(policy, temperature=1.3),
    "scratch": lambda policy: Scratchpad(policy, 2),
    "parallel": lambda policy: PrivateRehearsal(policy, 3, temperature=1.3),
    "memory": lambda policy: PrivateRehearsal(policy, 3, memory=True, temperature=1.3),
    "sequential": lambda policy: PrivateRehearsal(policy, 3, "sequential", memory=True, temperature=1.3),
    "write": lambda policy: PrivateRehearsal(policy, 2, when="write", temperature=1.3),
    "fewest errors": lambda policy: PrivateRehearsal(policy, 2, scorer="no_errors"),
    "vote": lambda policy: SelfConsistency(policy, 40, temperature=1.3),
    "refine": lambda policy: Refine(policy, 40, temperature=1.3),
}


@pytest.mark.parametrize("name", WAYS)
def test_the_ledger_counts_what_the_engine_computes(
    apt: Policy, lessons: Lessons, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    computed = []

    def counted(policy: Policy, tasks: Sequence[Task], *arguments: Any, **options: Any) -> list[Trajectory]:
        made = rollout(policy, tasks, *arguments, **options)
        each = len(made) // len(tasks)
        computed.append(sum(len(t.prompt) for t in made[::each]) + sum(len(t.ids) for t in made))
        return made

    monkeypatch.setattr(episodes_module, "rollout", counted)
    monkeypatch.setattr(
        SelfConsistency, "affordable", lambda _, drawn: list(drawn)
    )  # as much as the engine draws
    episodes = WAYS[name](apt).run(tasks_of(lessons))
    assert sum(episode.ledger.total for episode in episodes) == sum(computed)
    assert all(sum(e.ledger.tokens.values()) == e.ledger.total for e in episodes)
    assert sum(e.ledger.tokens["memory"] for e in episodes) > 0 or name != "sequential"


def overspent(way: Deliberation, tasks: Sequence[Task], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of each decision, above what was allowed."""
    above: list[int] = []
    commit = Episode.commit

    def watched(episode: Episode, choice: Choice, policy: Policy) -> None:
        above.append(choice.spent - len(choice.drawn[0].prompt) - way.budget)
        commit(episode, choice, policy)

    monkeypatch.setattr(Episode, "commit", watched)
    way.run(tasks)
    return above


TIGHT: dict[str, Callable[[Policy, int], Deliberation]] = {
    "vote": lambda policy, tokens: SelfConsistency(policy, tokens, temperature=1.5),
    "refine": lambda policy, tokens: Refine(policy, tokens, temperature=1.5),
}


@pytest.mark.parametrize("tokens", [Compact.longest_message, 61, 120])
@pytest.mark.parametrize("name", TIGHT)
def test_a_budget_is_never_exceeded(
    apt: Policy, lessons: Lessons, monkeypatch: pytest.MonkeyPatch, name: str, tokens: int
) -> None:
    above = overspent(TIGHT[name](apt, tokens), tasks_of(lessons), monkeypatch)
    assert max(above) == 0  # somewhere the last token was spent: the comparison is at equal tokens


@pytest.mark.parametrize("name", TIGHT)
def test_a_budget_that_is_ignored_is_found(
    apt: Policy, lessons: Lessons, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    draw = Deliberation.draw
    monkeypatch.setattr(Deliberation, "draw", lambda *arguments, **_: draw(*arguments))
    monkeypatch.setattr(SelfConsistency, "affordable", lambda _, drawn: list(drawn))
    assert max(overspent(TIGHT[name](apt, Compact.longest_message), tasks_of(lessons), monkeypatch)) > 0


def test_a_budget_of_continuations_is_used(apt: Policy, lessons: Lessons) -> None:
    episodes = [Episode(task) for task, _ in lessons]
    for mode in ("parallel", "sequential"):
        choices = PrivateRehearsal(apt, 3, mode).deliberate(episodes, seeded())
        assert [len(choice.drawn) for choice in choices] == [3] * len(episodes)


# What is imagined --------------------------------------------------------------------------------------------


def test_the_imagination_does_not_know_what_the_user_will_say(lessons: Lessons) -> None:
    task, messages = next(lesson for lesson in lessons if lesson[0].later_turns)
    (episode,) = PrivateRehearsal(scripted((task, messages)), 1, temperature=0.0).run([task])
    assert episode.session.verify(episode.answers).success
    assert len(episode.answers) == 2
    way = PrivateRehearsal(scripted((task, messages)), 1, temperature=0.0)
    (choice,) = way.deliberate([Episode(task)], seeded())
    assert all(len(t.answers) == 1 and t.stop_reason == "answer" for t in choice.drawn)


def test_calls_made_together_are_committed_together(lessons: Lessons) -> None:
    task, messages = lessons[0]
    (episode,) = PrivateRehearsal(scripted((task, messages)), 1, temperature=0.0).run([task])
    assert episode.conversation == [*map(dict, messages)]
    assert episode.ledger.decisions[0].real.count(" and ") == 1
    assert episode.session.verify(episode.answers).success


def refused_first() -> tuple[Task, list[dict[str, Any]]]:
    """A task whose first call the world refuses, and what comes then."""
    for task in splits("orders")["train"]:
        verdicts = ["error" in response for _, response in real_exchanges(task)]
        if verdicts == [True, False] and not task.later_turns:
            return task, conversation(task)
    raise AssertionError("no such task")


def test_a_sequential_rehearsal_sees_what_was_refused() -> None:
    """The second continuation begins where the first one was refused: the refusal never happens in the world."""
    task, messages = refused_first()
    first, second = planned_calls(task)
    policy = scripted((task, messages))
    options: dict[str, Any] = {"temperature": 0.0, "memory": True}
    (choice,) = PrivateRehearsal(policy, 2, "sequential", "no_errors", **options).deliberate(
        [Episode(task)], seeded()
    )
    assert [t.exchanges[0][0].text for t in choice.drawn] == [first.text, second.text]
    assert [(step.action, step.candidate) for step in choice.steps] == [
        ("revise", first.text),
        ("commit", second.text),
    ]
    (episode,) = PrivateRehearsal(policy, 2, "sequential", "no_errors", **options).run([task])
    assert [call.text for call, _ in episode.exchanges] == [second.text]
    assert (episode.ledger.world_errors, episode.ledger.imagined_errors) == (0, 1)
    assert episode.conversation == [*map(dict, messages)]  # what was remembered is true of the world
    assert episode.memory > 0
    assert episode.ledger.tokens["memory"] == 3 * episode.memory  # in every prompt but the very first
    (other,) = PrivateRehearsal(policy, 1, "parallel", "no_errors", **options).run([task])
    assert [call.text for call, _ in other.exchanges] == [first.text, second.text]


def test_a_success_is_not_remembered(lessons: Lessons) -> None:
    task, messages = next(lesson for lesson in lessons if "reach" in lesson[0].tags)
    way = PrivateRehearsal(scripted((task, messages)), 2, "sequential", memory=True, temperature=0.0)
    (episode,) = way.run([task])
    assert episode.memory == 0
    assert episode.session.verify(episode.answers).success


@pytest.mark.parametrize(("when", "rehearsed", "drafts"), [("always", 2, False), ("write", 2, True)])
def test_when(lessons: Lessons, when: str, rehearsed: int, drafts: bool) -> None:
    """Two writes and an answer, by a policy that is sure of each."""
    task, messages = next(lesson for lesson in lessons if "reach" in lesson[0].tags)
    (episode,) = PrivateRehearsal(scripted((task, messages)), 1, when=when, temperature=0.0).run([task])
    imagined = {entry.decision for entry in episode.ledger if entry.role == "rehearse"}
    assert (episode.number, len(imagined)) == (3, rehearsed)
    assert (episode.ledger.tokens["discarded"] > 0) == drafts


def test_a_message_that_is_none_ends_the_episode(tiny: Policy) -> None:
    for way in (PrivateRehearsal(tiny, 2), SelfConsistency(tiny, 40), Refine(tiny, 40)):
        (episode,) = way.run([HAND])
        assert episode.stop_reason in ("malformed", "overlong")
        assert episode.ledger.total > 0


def test_a_word_that_the_language_lacks() -> None:
    """A real response may name a record that is no word; the episode goes on."""
    messages: list[dict[str, Any]] = [
        *HAND.messages,
        {"role": "assistant", "tool_calls": [ToolCall("get_order", {"target": "pending"}).to_message()]},
        {"role": "tool", "name": "get_order", "content": "<unk> error unknown"},
        {"role": "assistant", "content": "packed"},
    ]
    (episode,) = PrivateRehearsal(scripted((HAND, messages)), 1, temperature=0.0).run([HAND])
    assert (episode.stop_reason, episode.answers) == ("answer", ["packed"])
    assert episode.ledger.decisions[0].real == "pending:unknown error unknown"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"mode": "both"}, "parallel, sequential"),
        ({"when": "never"}, "always, write"),
        ({"scorer": "luck"}, "agreement, likelihood, no_errors"),
        ({"budget": -1}, "not negative"),
    ],
)
def test_options_that_are_none(tiny: Policy, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        PrivateRehearsal(tiny, **options)


def test_a_scorer_scores_each(apt: Policy) -> None:
    way = PrivateRehearsal(apt, 2, scorer=lambda continuations: [1.0])
    with pytest.raises(ValueError, match="a number for each"):
        way.run([find_task("bank", "reach", "calls:2")])


# Scorers -----------------------------------------------------------------------------------------------------

OK, REFUSED = "o2:paid needs:paid ok o2:packed", "o2:sent needs:paid error status"
GOOD = trajectory(HAND, [("pack_order o2", OK)], "packed")
DETOUR = trajectory(HAND, [("get_order o2", "o2:paid ok"), ("pack_order o2", OK)], "packed")
BAD = trajectory(HAND, [("pack_order o2", REFUSED)], "sent")
BROKEN = replace(trajectory(HAND, [("pack_order o2", OK)]), stop_reason="overlong")


def test_agreement() -> None:
    assert agreement([BAD, GOOD, DETOUR, BROKEN]) == [0.25, 0.5, 0.5, 0.0]


def test_no_errors() -> None:
    assert no_errors([BAD, GOOD, DETOUR, BROKEN]) == [-1.0, 0.0, 0.0, -1.0]


def test_carried_out(apt: Policy) -> None:
    """Done before unfinished before broken; between equals the more probable one."""
    task = find_task("orders", "error", "instructions", "calls:1", without=["turns:2", "policy"])
    done = replace(
        trajectory(task, real_exchanges(task), *task.outcomes[0].answers),
        ids=[0, 0],
        roles=[ACT, ACT],
        log_probs=[math.log(0.5)] * 2,
    )
    likely = replace(done, log_probs=[math.log(0.9)] * 2)
    unfinished = replace(done, said=done.said[:-1])
    broken = replace(done, said=[*done.said[:-1], {"role": "assistant", "content": "word_0"}])
    assert carried_out([done, likely, unfinished, broken]) == pytest.approx([2.5, 2.9, 1.5, 0.5])


def test_a_sequential_rehearsal_may_be_content(apt: Policy, lessons: Lessons) -> None:
    """With a score that is always reached one continuation is enough; with one that never is, all are drawn."""
    episodes = [Episode(task) for task, _ in lessons]
    for enough, count in ((-1.0, 1), (1e9, 3), (None, 3)):
        choices = PrivateRehearsal(apt, 3, "sequential", enough=enough).deliberate(episodes, seeded())
        assert [len(choice.drawn) for choice in choices] == [count] * len(episodes)


def test_being_content_needs_turns_and_a_free_scorer(apt: Policy, lessons: Lessons) -> None:
    with pytest.raises(ValueError, match="`enough` is for the mode `sequential`"):
        PrivateRehearsal(apt, 2, enough=1.0)
    verdict = fit_self_evaluation(apt, tasks_of(lessons), steps=1)
    with pytest.raises(ValueError, match="does not read continuations again"):
        PrivateRehearsal(apt, 2, "sequential", verdict, enough=1.0)


def test_a_broken_promise_is_counted() -> None:
    """A policy whose world cannot say no promises what the world refuses."""
    task = find_task("orders", "error", "instructions", "calls:1", without=["turns:2", "policy"])
    (call,) = planned_calls(task)
    order = call.arguments["target"]
    real = conversation(task)
    told = {**real[-2], "content": f"{order}:paid needs:paid ok {order}:packed"}
    cheerful = [*real[:-2], told, {"role": "assistant", "content": "packed"}]
    for messages, promised, misled in ((cheerful, True, True), (real, True, False)):
        (episode,) = PrivateRehearsal(scripted((task, messages)), 1).run([task])
        line = how_it_went(episode)
        assert (line["promised"], line["misled"]) == (promised, misled)
    (plain,) = Plain(scripted((task, real))).run([task])
    assert not how_it_went(plain)["promised"]


def test_without_imagination_nothing_is_promised() -> None:
    """A right answer to a request that no tool fits, which the judge can tell without any response."""
    task = find_task("home", "no_tool", without=["turns:2"])
    (voted,) = SelfConsistency(scripted((task, conversation(task))), 3).run([task])
    line = how_it_went(voted)
    assert (line["real_success"], line["promised"]) == (True, False)


def test_the_steps_of_plain_execution_hold_the_real_responses(apt: Policy, lessons: Lessons) -> None:
    for episode in Plain(apt).run(tasks_of(lessons)):
        told = [step.real for step in episode.ledger.decisions]
        assert " and ".join(filter(None, told)) == " and ".join(r.text for _, r in episode.exchanges)
        assert [step.candidate for step in episode.ledger.decisions] == [
            entry.text for entry in episode.ledger if entry.role == "act"
        ]


def test_likelihood() -> None:
    """The mean over what was written: a forced token does not count, and length is no fault."""
    short = Trajectory(HAND, [], [1, 2, 3], [ACT, GIVEN, ACT], [-1.0, 0.0, -2.0])
    long = Trajectory(HAND, [], [1] * 4, [ACT] * 4, [-1.0] * 4)
    assert likelihood([short, long]) == [-1.5, -1.0]


def test_a_verdict_is_the_probability_of_a_word(apt: Policy, lessons: Lessons) -> None:
    made = rollout(apt, [task for task, _ in lessons[1:3]], group_size=2, temperature=1.5, generator=seeded())
    wanted = []
    for t in made:
        with torch.no_grad():
            logits = apt.model(torch.tensor([[*t.prompt, *t.ids, CHAT.user]])).logits[0, -1]
        wanted.append(float(logits.softmax(-1)[CHAT.index["ok"]]))
    verdict = SelfEvaluation(apt)
    assert verdict(made) == pytest.approx(wanted, rel=1e-3)
    assert verdict([made[3], made[0]]) == pytest.approx([wanted[3], wanted[0]], rel=1e-3)
    read = sum(len(t.prompt) for t in made[::2]) + sum(len(t.ids) + 2 for t in made)
    assert verdict.reads(made) == read


def test_a_verdict_is_learned_from_task_success(
    apt: Policy, lessons: Lessons, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And from nothing else: no environment is opened. The policy itself stays as it is."""
    for domain in DOMAINS.values():
        monkeypatch.setattr(type(domain), "reset", lambda *_: pytest.fail("an environment was opened"))
    before = weights(apt)
    for task, _ in lessons:
        made = rollout(apt, [task], group_size=16, generator=seeded())  # as `fit_self_evaluation` draws them
        success = torch.tensor([task_success(t) for t in made])
        if 0 < success.sum() < 16:
            break
    assert 0 < success.sum() < 16
    gaps = []
    for steps in (0, 30):
        verdict = fit_self_evaluation(apt, [task], group_size=16, steps=steps, families=1, lr=1e-2)
        probabilities = torch.tensor(verdict(made))
        gaps.append(probabilities[success == 1].mean() - probabilities[success == 0].mean())
    assert abs(gaps[0]) < 0.05
    assert gaps[1] > 0.3
    assert same_weights(before, weights(apt))


def test_a_verdict_is_paid_for(apt: Policy, lessons: Lessons) -> None:
    """It reads every continuation again."""
    task = lessons[1][0]
    (free,) = PrivateRehearsal(apt, 2, scorer=lambda c: [0.0] * len(c)).deliberate([Episode(task)], seeded())
    (paid,) = PrivateRehearsal(apt, 2, scorer=SelfEvaluation(apt)).deliberate([Episode(task)], seeded())
    assert [t.ids for t in free.drawn] == [t.ids for t in paid.drawn]
    assert paid.spent - free.spent == SelfEvaluation(apt).reads([t for t in paid.drawn if t.said])


# Harm, against known answers ---------------------------------------------------------------------------------


def test_harm_by_hand() -> None:
    ledger = drawn(open_session(HAND), "cancel_order o1", "pack_order o2", "pack_order o2", "get_order o1")
    ledger.add(Entry(4, "imagined", "rehearse", REFUSED, 5, call="pack_order o2", error="status"))
    assert harm(HAND, ledger) == {
        "wrong_writes": 1,  # o1 was to stay
        "irreversible_writes": 1,  # and nothing makes it pending again
        "world_errors": 1,  # o2 was packed already
        "head_errors": 1,
        "committed_calls": 4,
        "extra_calls": 3,
    }


def test_a_right_write_twice_is_wrong_once() -> None:
    task = find_task("errands", "choose")
    call = planned_calls(task)[0]
    session = open_session(task)
    entries = []
    for _ in range(2):
        response = session.call(call)
        entries.append(Entry(0, "committed", "real", response.text, call=call.text))
    effective = sum(bool(entry.response.changed) for entry in entries)
    assert len(wrong_writes(task, entries)) == effective - 1


@pytest.mark.parametrize(
    ("tools", "undone"),
    [
        (["bank.deposit", "bank.withdraw"], True),
        (["bank.deposit", "bank.balance"], False),
        (["bank.deposit", "bank.transfer"], True),  # the rest of it lands elsewhere
    ],
)
def test_what_can_be_undone(tools: list[str], undone: bool) -> None:
    domain = get_domain("bank")
    state = {"savings": 2, "cash": 3, "limit": 5}
    task = replace(HAND, domain="bank", state=state, tools=[domain.tools[name].schema for name in tools])
    assert can_be_undone(task, state, {**state, "savings": 6}) == undone
    entry = Entry(0, "committed", "real", "savings:2 ok savings:6", call="bank.deposit savings 4")
    assert irreversible_writes(task, [entry]) == ([] if undone else [0])


def test_the_ledger_by_hand() -> None:
    ledger = Ledger(
        [
            Entry(0, "imagined", "prompt", "", 20),
            Entry(0, "imagined", "memory", "", 7),
            Entry(0, "imagined", "rehearse", OK, 5, call="pack_order o2"),
            Entry(0, "imagined", "act", "cancel_order <o1>", 3, kept=False),
            Entry(0, "committed", "act", "pack_order o2", 3),
            Entry(0, "committed", "real", OK, 0, "a", "b", "pack_order o2"),
        ]
    )
    assert ledger.tokens == {"prefill": 20, "memory": 7, "committed": 3, "imagined": 5, "discarded": 3}
    assert ledger.total == 38
    assert repr(ledger) == (
        "<Ledger: 1 committed calls, 1 imagined, "
        "tokens 20 prefill, 7 memory, 3 committed, 5 imagined, 3 discarded>"
    )
    assert "cancel_order &lt;o1&gt;" in ledger._repr_html_()


@pytest.mark.same_bits
def test_the_same_seed_brings_the_same(apt: Policy, lessons: Lessons) -> None:
    one, same, other = (
        [
            (repr(e), e.ledger.entries, e.ledger.decisions)
            for e in PrivateRehearsal(apt, 2, temperature=1.3, seed=seed).run(tasks_of(lessons))
        ]
        for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other


# Controls ----------------------------------------------------------------------------------------------------


def test_a_vote_takes_the_majority(apt: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = ["get_order o1", "pack_order o2", "nonsense", "pack_order o2", "cancel_order o1"]

    def drawn(self: Any, situations: Any, responder: Any, count: int, *_: Any) -> Any:
        assert (count, responder.horizon) == (6, 0)
        yield [_candidate(text) for text in calls]

    monkeypatch.setattr(Deliberation, "draw", drawn)
    (choice,) = SelfConsistency(apt, 20).deliberate([Episode(HAND)], seeded())
    assert choice.chosen == 1
    assert [step.line for step in choice.steps] == [
        "revise `get_order o1`: 1 of 4 votes",
        "commit `pack_order o2`: 2 of 4 votes",
    ]


def test_candidates_are_paid_one_after_another(apt: Policy) -> None:
    """Whole ones only: if all were cut off together, the short ones alone would vote."""
    long, short = _candidate("book_room r3 apr 8"), _candidate("say no")
    drawn = [long, long, short, long]  # 5, 5, 3 and 5 tokens
    for allowance, count in ((4, 1), (5, 1), (9, 1), (10, 2), (12, 2), (13, 3), (17, 3), (18, 4), (99, 4)):
        assert SelfConsistency(apt, allowance).affordable(drawn) == drawn[:count]


def test_a_vote_after_the_judge(apt: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the judge calls broken has no vote, unless nothing else is there."""
    task = find_task("orders", "goal", "reach", "calls:2")
    said = conversation(task)[len(task.messages) :]
    first = ToolCall.from_message(said[0]["tool_calls"][0]).text
    early = {"role": "assistant", "content": said[-1]["content"]}
    texts = {"say": early, first: said[0]}

    def drawn(self: Any, *_: Any) -> Any:
        made = [_candidate(text) for text in ("say", "say", first)]
        for t, text in zip(made, ("say", "say", first), strict=True):
            t.task, t.said = task, [texts[text]]
        yield made

    monkeypatch.setattr(Deliberation, "draw", drawn)
    for judged, chosen in ((False, 0), (True, 2)):
        (choice,) = SelfConsistency(apt, 20, verified=judged).deliberate([Episode(task)], seeded())
        assert choice.chosen == chosen
    texts[first] = early  # all are broken: the first is committed
    (choice,) = SelfConsistency(apt, 20, verified=True).deliberate([Episode(task)], seeded())
    assert choice.chosen == 0


def _candidate(text: str) -> Trajectory:
    ids = [CHAT.index.get(word, CHAT.index["<unk>"]) for word in f"{text} <end>".split()]
    said = [] if text == "nonsense" else [{"role": "assistant", "tool_calls": []}]
    return Trajectory(HAND, [0], ids, [ACT] * len(ids), [0.0] * len(ids), said=said)


def test_refinement_commits_the_latest_version(apt: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = "get_order o1 <end> <assistant> pack_order o2 <end> <assistant> pack_order"
    ids = CHAT.encode(texts)
    roles = [GIVEN if word == "<assistant>" else ACT for word in texts.split()]
    written = Trajectory(HAND, [0], ids, roles, [0.0] * len(ids))
    monkeypatch.setattr(Deliberation, "draw", lambda *_, **__: iter([[written]]))
    episode = Episode(HAND)
    (choice,) = Refine(apt, 20).deliberate([episode], seeded())
    assert choice.place == 1
    episode.commit(choice, apt)
    assert [call.text for call, _ in episode.exchanges] == ["pack_order o2"]
    assert episode.ledger.tokens == {
        "prefill": 3,
        "memory": 0,
        "committed": 3,
        "imagined": 1,
        "discarded": 3,
    }


def test_scratch_sets_its_drafts_aside(lessons: Lessons) -> None:
    """Each message that counts follows two that nobody answers."""
    task, messages = next(lesson for lesson in lessons if "reach" in lesson[0].tags)
    thinking = []
    for message in messages:
        thinking += [{"role": "assistant", "content": "1"}] * 2 if message["role"] == "assistant" else []
        thinking.append(message)
    (episode,) = Scratchpad(scripted((task, thinking)), 2, temperature=0.0).run([task])
    assert episode.conversation == [*map(dict, messages)]
    assert episode.session.verify(episode.answers).success
    assert episode.ledger.tokens["discarded"] == 3 * 2 * 3


# What the engine lends for this ------------------------------------------------------------------------------


def test_drafts_are_trained_and_not_answered(lessons: Lessons) -> None:
    task, messages = next(lesson for lesson in lessons if "reach" in lesson[0].tags)
    prompt = CHAT.render(task.messages, task.tools, prompt="act")
    whole = CHAT.render(messages, task.tools)
    draft = CHAT.encode("say 1 <end> <assistant>")
    (made,) = rollout(
        Scripted([[*prompt, *draft, *whole[len(prompt) :]]]),
        [task],
        ThinkingRehearse(1, horizon=0),
        temperature=0,
    )
    assert made.ids[:4] == draft
    assert made.roles[:4] == [ACT, ACT, ACT, GIVEN]
    assert made.stop_reason == "horizon"
    assert [message["role"] for message in made.said] == ["assistant"]
    assert made.exchanges == []


def test_a_horizon_of_calls(lessons: Lessons) -> None:
    task, messages = next(lesson for lesson in lessons if "reach" in lesson[0].tags)
    for horizon in (0, 1):
        (made,) = rollout(scripted((task, messages)), [task], Rehearse(horizon=horizon), temperature=0)
        assert (len(made.exchanges), made.stop_reason) == (horizon, "horizon")


def test_a_message_that_was_cut_off_says_nothing(apt: Policy) -> None:
    """Even where its words would be a call."""
    ids = tuple(apt.chat.tokenizer.encode("get_order o1"))
    ended = (*ids, apt.compact.end)
    whole = parsed(Written("act", ended, "get_order o1", True), HAND, apt.chat)
    assert whole is not None
    assert whole["tool_calls"][0]["function"]["name"] == "get_order"
    assert parsed(Written("act", ids, "get_order o1", False), HAND, apt.chat) is None
