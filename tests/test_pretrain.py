"""Traces as token ids, and the base that is made of them; `test_base.py` has the recipes and the interrupts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from envace_lite.chat import ACT, GIVEN, REHEARSE
from envace_lite.domains.script import Script, Slips, play
from envace_lite.policy import Policy
from envace_lite.pretrain import PretrainConfig, pretrain
from envace_lite.tools import World
from envace_lite.traces import RECIPES, Corpus, Retelling, draw_script_for_trace, make_corpus
from helpers import CHAT, EVERY_DOMAIN, same_weights, weights

SMALL = PretrainConfig(requests=40, per_request=2, steps=20, batch=4, width=32, layers=1, save_every=8)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return make_corpus(CHAT, RECIPES["uncertain"], prompts=40, per_prompt=2, seed=0)


# Traces ----------------------------------------------------------------------------------------------------


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
        (draw_script_for_trace(rng.choice(EVERY_DOMAIN), RECIPES["uncertain"], rng), rng)
        for _ in range(count)
    ]


def test_what_a_retelling_tells_stays_told() -> None:
    cheerful = replace(RECIPES["uncertain"], cheerful=1.0)
    tool = EVERY_DOMAIN[1].tools["cancel_order"]
    world = Retelling({"o1": "sent"}, cheerful, Random(0))
    assert tool.call(world, {"target": "o1"}).text == "o1 sent ok o1 cancelled"
    assert tool.call(world, {"target": "o1"}).text == "o1 cancelled ok o1 cancelled"


def test_sloppy_agents_disagree() -> None:
    script = next(s for s, _ in scripts(50) if s.plans)
    slips = RECIPES["uncertain"].slips
    played = [play(script, World(script.state), slips, Random(seed)) for seed in range(20)]
    assert len({str(episode) for episode in played}) > 3
    assert len({str(play(script, World(script.state), Slips(), Random(seed))) for seed in range(5)}) == 1


# The base --------------------------------------------------------------------------------------------------


def result(made: tuple[Policy, dict[str, Any]]) -> tuple[dict[str, torch.Tensor], int, Any]:
    policy, record = made
    return weights(policy), record["tokens"], record["curve"]


class Stop(Corpus):
    """A corpus that interrupts after so many families."""

    left: int

    def family(self, row: int) -> Any:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return super().family(row)


def test_a_base_is_continued_from_any_step(corpus: Corpus, tmp_path: Path) -> None:
    """Also from one between two draws of eight batches."""
    config = replace(SMALL, save_every=5)
    whole = result(pretrain(config, tmp_path / "whole", workers=1, corpus=corpus))
    stop = Stop(**vars(corpus))
    stop.left = 11 * config.batch
    with pytest.raises(KeyboardInterrupt):
        pretrain(config, tmp_path / "parts", workers=1, corpus=stop)
    resumed = result(pretrain(config, tmp_path / "parts", workers=1, corpus=corpus))
    assert same_weights(resumed[0], whole[0])
    assert resumed[1:] == whole[1:]


def test_imitation_lowers_the_loss(corpus: Corpus, tmp_path: Path) -> None:
    _, record = pretrain(
        replace(SMALL, steps=200, lr=1e-2, save_every=400), tmp_path, workers=1, corpus=corpus
    )
    losses = [loss for _, loss in record["curve"]]
    assert [step for step, _ in record["curve"]] == [50, 100, 150, 200]
    assert losses[-1] < 0.5 * losses[0]
