"""The baselines, and the diagnosis of what a rehearsed world lacks: known worlds, and what must not be named."""

from __future__ import annotations

from collections import Counter
from functools import cache
from random import Random

import pandas as pd
import pytest

from envace_lite.fidelity import (
    MUTATIONS,
    ProbePair,
    always_success,
    beside,
    compare,
    copy_arguments,
    missing_rules,
    most_frequent,
    oracle,
    probe_pairs,
    rules,
)
from envace_lite.world import TRAP, Domain
from envace_lite.world.tools import ToolResponse
from helpers import EVERY_DOMAIN, splits

every_domain = pytest.mark.parametrize("domain", EVERY_DOMAIN, ids=lambda domain: domain.name)


@cache
def pairs_of(name: str) -> list[ProbePair]:
    return probe_pairs(splits(name)["test"][:80], 0, 4, list(MUTATIONS))


# Baselines -------------------------------------------------------------------------------------------------


@every_domain
def test_always_success_is_a_perfect_optimist(domain: Domain) -> None:
    pairs = pairs_of(domain.name)
    table = beside({"it": compare(pairs, always_success(pairs))}).it
    assert (table.optimism, table.error_recall, table.fidelity_error) == (1.0, 0.0, 0.0)


@every_domain
def test_the_oracle_knows_what_can_be_known_and_abstains_on_the_rest(domain: Domain) -> None:
    pairs = pairs_of(domain.name)
    frame = compare(pairs, oracle(pairs))
    for grounding in ("initial", "history"):
        assert (frame[f"right_{grounding}"] == frame[f"leaves_{grounding}"]).all()
    assert frame.leaves_initial.sum() > frame.leaves_history.sum() > 0
    assert frame.right_hidden.sum() == frame.wrong_hidden.sum() == 0
    hides = domain.name == "home"  # the calendar and the weather are not in a prompt
    assert (frame.leaves_hidden.sum() > 0) == hides
    assert frame.exact.all() == (not hides)
    verdicts = frame[frame.leaves_hidden > 0]
    assert not (verdicts.rehearsed_error | verdicts.rehearsed_success).any()


@every_domain
def test_copying_the_arguments_is_right_about_what_the_prompt_says_of_them(domain: Domain) -> None:
    pairs = pairs_of(domain.name)
    table = beside({"it": compare(pairs, copy_arguments(pairs))}).it
    assert table.optimism == 1.0
    assert 0.2 < table.leaf_initial < 0.8
    assert table.state_f1 == 0.0
    pair = next(
        p for p in pairs if p.call.name.endswith(("get_order", "balance", "check_stock", "find_contact"))
    )
    name = str(next(iter(pair.call.arguments.values())))
    if name in pair.task.state:
        assert copy_arguments([pair])[0].text == f"{name}:{pair.task.state[name]} ok"


def test_the_most_frequent_response_is_that_of_the_tool() -> None:
    pairs = pairs_of("orders")
    answers = most_frequent(pairs)(pairs)
    by_tool = {
        name: Counter(p.real.text for p in pairs if p.call.name == name)
        for name in {p.call.name for p in pairs}
    }
    for pair, answer in zip(pairs, answers, strict=True):
        counts = by_tool[pair.call.name]
        assert counts[answer.text] == max(counts.values())
    stranger = pairs_of("bank")[:1]
    overall = Counter(p.real.text for p in pairs).most_common(1)[0][1]
    assert sum(p.real.text == most_frequent(pairs)(stranger)[0].text for p in pairs) == overall


@every_domain
def test_shuffled_responses_score_at_chance(domain: Domain) -> None:
    """Chance: the probability that two pairs drawn at random have the same response."""
    pairs = pairs_of(domain.name)
    counts = Counter(pair.real.text for pair in pairs)
    chance = sum(n * (n - 1) for n in counts.values()) / (len(pairs) * (len(pairs) - 1))
    hits = []
    for seed in range(20):
        responses = [pair.real for pair in pairs]
        Random(seed).shuffle(responses)
        frame = compare(pairs, responses)
        hits.append(frame.exact.mean())
        assert frame[frame.real_error].rehearsed_success.mean() == pytest.approx(0.5, abs=0.15)
    assert sum(hits) / len(hits) == pytest.approx(chance, rel=0.25)


# Missing rules ---------------------------------------------------------------------------------------------


@cache
def trap_pairs(seed: int) -> list[ProbePair]:
    return probe_pairs(TRAP.tasks("test", 0.5, 200, seed), seed)


def world(pairs: list[ProbePair], lacks: str | None, rng: Random, noise: float = 0.08) -> pd.DataFrame:
    """What a world tells that never applies one rule, and now and then errs in either direction."""

    def tell(pair: ProbePair) -> ToolResponse:
        real = pair.real
        if real.error is not None and (real.error == lacks or rng.random() < noise):
            return ToolResponse(real.seen, None, {})
        if real.error is None and rng.random() < noise:
            return ToolResponse(real.seen, "status", {})
        return real

    return compare(pairs, [tell(pair) for pair in pairs])


def test_the_missing_rule_is_named_and_no_other_in_twenty_worlds() -> None:
    right = 0
    for seed in range(20):
        rng = Random(seed)
        lacks = rng.choice(["full", "funds", "stock", "unknown"])
        right += missing_rules(world(trap_pairs(seed % 5), lacks, rng)) == [lacks]
    assert right >= 19


def test_no_rule_is_named_in_twenty_complete_worlds() -> None:
    named = [missing_rules(world(trap_pairs(seed % 5), None, Random(100 + seed))) for seed in range(20)]
    assert sum(names == [] for names in named) >= 19


def test_a_world_of_successes_lacks_every_rule_that_is_common() -> None:
    pairs = trap_pairs(0)
    frame = compare(pairs, always_success(pairs))
    common = rules(frame).query("tasks >= 10").index
    assert {"full", "funds", "stock", "unknown"} <= set(common) <= set(missing_rules(frame))


def test_a_rule_that_is_seen_too_seldom_is_not_named() -> None:
    """Three failures in a row are no proof."""
    pairs = [pair for pair in trap_pairs(0) if pair.real.error == "stock"]
    tasks = list(dict.fromkeys(pair.task.id for pair in pairs))
    for count, named in ((3, []), (20, ["stock"])):
        few = [pair for pair in pairs if pair.task.id in tasks[:count]]
        assert missing_rules(compare(few, always_success(few))) == named


def test_rules_are_counted() -> None:
    """By hand: two errors of `status`, one told as such, one as `unknown`; one of `unknown` told as a success."""
    pairs = [p for p in pairs_of("orders") if p.real.error in ("status", "unknown")]
    first = next(p for p in pairs if p.real.error == "status")
    second = next(p for p in pairs if p.real.error == "status" and p.task.id != first.task.id)
    third = next(p for p in pairs if p.real.error == "unknown")
    told = [ToolResponse({}, "status", {}), ToolResponse({}, "unknown", {}), ToolResponse({}, None, {})]
    table = rules(compare([first, second, third], told))
    assert table.loc["status", ["errors", "recall", "named", "precision", "lacking"]].tolist() == [
        2,
        1,
        0.5,
        1,
        0,
    ]
    assert table.loc["unknown", ["errors", "recall", "named", "precision", "lacking"]].tolist() == [
        1,
        0,
        0,
        0,
        1,
    ]
    assert table.loc["unknown", "p_value"] == pytest.approx(0.5)


def test_nothing_to_diagnose() -> None:
    assert missing_rules(compare([], [])) == []
