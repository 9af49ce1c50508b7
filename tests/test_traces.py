"""Traces as token ids and the agents that leave them; `test_pretrain.py` has the recipes and the making of a base."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from envace_lite.model.chat import ACT, GIVEN, REHEARSE
from envace_lite.pretraining.traces import RECIPES, Corpus, Retelling, draw_script_for_trace, make_corpus
from envace_lite.world.request import Script, Slips, play
from envace_lite.world.tools import World
from helpers import CHAT, WITH_BASE


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return make_corpus(CHAT, RECIPES["uncertain"], prompts=40, per_prompt=2, seed=0)


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


def scripts(count: int) -> list[tuple[Script, Random]]:
    rng = Random(0)
    return [
        (draw_script_for_trace(rng.choice(WITH_BASE), RECIPES["uncertain"], rng), rng) for _ in range(count)
    ]


def test_what_a_retelling_tells_stays_told() -> None:
    cheerful = replace(RECIPES["uncertain"], cheerful=1.0)
    tool = WITH_BASE[1].tools["cancel_order"]
    world = Retelling({"o1": "sent"}, cheerful, Random(0), WITH_BASE[1])
    for status in ("sent", "cancelled"):
        response = tool.call(world, {"target": "o1"})
        assert (response.seen["o1"], response.error, response.changed) == (status, None, {"o1": "cancelled"})


def test_sloppy_agents_disagree() -> None:
    script = next(s for s, _ in scripts(50) if s.plans)
    slips = RECIPES["uncertain"].slips
    played = [play(script, World(script.state), slips, Random(seed)) for seed in range(20)]
    assert len({str(episode) for episode in played}) > 3
    assert len({str(play(script, World(script.state), Slips(), Random(seed))) for seed in range(5)}) == 1
