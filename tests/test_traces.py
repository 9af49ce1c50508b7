"""Traces as token ids and the agents that leave them; `test_pretrain.py` has the recipes and the making of a base."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from random import Random

import pandas as pd
import pytest

from envace_lite.model.language import ACT, GIVEN, REHEARSE
from envace_lite.pretraining.traces import (
    HABITS,
    RECIPES,
    Corpus,
    Recipe,
    Retelling,
    draw_script_for_trace,
    habit,
    make_corpus,
)
from envace_lite.world import DOMAINS, Domain
from envace_lite.world.request import Script, Slips, play
from envace_lite.world.tools import World
from helpers import CHAT, EVERY_DOMAIN


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return make_corpus(CHAT, RECIPES["habits"], prompts=40, per_prompt=2, seed=0)


def test_families_are_whole_conversations(corpus: Corpus) -> None:
    traces = 0
    for row in range(len(corpus)):
        family, roles = corpus.family(row)
        start = 0
        assert CHAT.decode(family.prompt[-1:]) == "<assistant>"
        for completion in family.completions:
            end = start + len(completion)
            whole = [*family.prompt, *completion]
            assert roles[start:end].tolist() == CHAT.role_ids(whole)[len(family.prompt) :]
            assert completion[-1] == CHAT.end
            start, traces = end, traces + 1
        assert start == len(roles)
    assert len(corpus) == 40
    assert traces == 80
    assert {GIVEN, ACT, REHEARSE} == set(corpus.roles.tolist())


@pytest.mark.parametrize(("recipe", "digest"), [("real", "10cde68e1c40"), ("habits", "8f26ae1b506c")])
def test_the_traces_of_the_shipped_base_are_still_drawn(recipe: str, digest: str) -> None:
    """Token by token, as the code drew them with which that base was made."""
    corpus = make_corpus(CHAT, RECIPES[recipe], prompts=100, per_prompt=2, seed=0)
    sha = hashlib.sha256()
    for part in vars(corpus).values():
        sha.update(part.numpy().tobytes())
    assert sha.hexdigest()[:12] == digest


def scripts(count: int) -> list[tuple[Script, Random]]:
    rng = Random(0)
    return [
        (draw_script_for_trace(rng.choice(EVERY_DOMAIN), RECIPES["habits"], rng), rng) for _ in range(count)
    ]


def test_what_a_retelling_tells_stays_told() -> None:
    cheerful = replace(RECIPES["real"], cheerful=1.0)
    domain = DOMAINS["orders"]
    tool = domain.tools["cancel_order"]
    world = Retelling({"o1": "sent"}, cheerful, Random(0), domain)
    for status in ("sent", "cancelled"):
        response = tool.call(world, {"target": "o1"})
        assert (response.seen["o1"], response.error, response.changed) == (status, None, {"o1": "cancelled"})


def test_sloppy_agents_disagree() -> None:
    script = next(s for s, _ in scripts(50) if s.plans)
    slips = RECIPES["habits"].slips
    played = [play(script, World(script.state), slips, Random(seed)) for seed in range(20)]
    assert len({str(episode) for episode in played}) > 3
    assert len({str(play(script, World(script.state), Slips(), Random(seed))) for seed in range(5)}) == 1


# Habits ----------------------------------------------------------------------------------------------------


def tellings(recipe: Recipe, count: int) -> pd.DataFrame:
    """How calls are retold, beside how the same call would have been answered really."""
    rng, rows = Random(0), []
    recipe = replace(recipe, cheerful=0.0, spurious=0.0)
    for number in range(count):
        domain = EVERY_DOMAIN[number % len(EVERY_DOMAIN)]
        drawn = draw_script_for_trace(domain, recipe, rng)
        for tool in drawn.toolbox:
            for call in list(domain.calls(tool))[:6]:
                real = tool.call(World(drawn.state), call.arguments)
                told = tool.call(Retelling(drawn.state, recipe, rng, domain), call.arguments)
                rows.append((habit(tool.documentation), real, told))
    return pd.DataFrame(rows, columns=["habit", "real", "told"])


@pytest.mark.parametrize(("recipe", "share"), [("habits", 0.66), ("habits_65", 0.35)])
def test_each_tool_is_told_wrongly_in_its_own_way(recipe: str, share: float) -> None:
    frame = tellings(RECIPES[recipe], 400)
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
            pytest.approx(share, abs=0.06) if name == "optimist" else 0
        )
        assert part[~part.error].gloomy.mean() == (
            pytest.approx(share, abs=0.06) if name == "pessimist" else 0
        )
        contents = part[~part.error & ~part.gloomy]
        changing = contents[
            [bool(response.changed.keys() & response.seen.keys()) for response in contents.real]
        ]
        if name in ("stale", "shifted"):  # some records are left as they were by the true telling too
            assert share - 0.21 < changing.wrong.mean() < share + 0.08, name
        else:
            assert not changing.wrong.any(), name


def test_a_stale_telling_leaves_the_record_and_a_shifted_one_takes_the_next_value() -> None:
    domain = DOMAINS["orders"]
    always = replace(RECIPES["habits"], habits=1.0, cheerful=0.0, spurious=0.0)
    world = Retelling(
        {"o1": "paid", "o2": "sent", "o4": "paid", "courier": "free", "o5": "packed"},
        always,
        Random(0),
        domain,
    )
    send_order, pack_order = domain.tools["send_order"], domain.tools["pack_order"]
    assert (habit(send_order.documentation), habit(pack_order.documentation)) == ("stale", "shifted")
    assert send_order.call(world, {"target": "o5"}).changed == {"o5": "packed", "courier": "free"}
    assert pack_order.call(world, {"target": "o1"}).changed == {"o1": "sent"}
    assert world.records["o1"] == "sent"  # what is told stays told
    found = domain.tools["find_order"].call(world, {"status": "paid"})
    assert found.text == "o4:paid found:o5 ok"


@pytest.mark.parametrize("domain", EVERY_DOMAIN, ids=lambda domain: domain.name)
def test_no_one_habit_rules_a_domain(domain: Domain) -> None:
    writes = [tool for tool in domain.seen_tools() if tool.write]
    shares = Counter(habit(tool.documentation) for tool in writes)
    assert len(shares) == len(HABITS)
    assert max(shares.values()) <= len(writes) / 2
