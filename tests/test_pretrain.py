"""Traces, and the base that is made of them."""

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
from envace_lite.pretrain import PretrainConfig, learning_rate, pretrain
from envace_lite.tools import World
from envace_lite.traces import RECIPES, Corpus, Retelling, draw_script_for_trace, draw_traces, make_corpus
from helpers import CHAT, EVERY_DOMAIN, same_weights, weights

SMALL = PretrainConfig(requests=40, per_request=2, steps=20, batch=4, width=32, layers=1, save_every=8)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return make_corpus(CHAT, RECIPES["uncertain"], prompts=40, per_prompt=2, seed=0)


# Traces ----------------------------------------------------------------------------------------------------


def test_a_corpus_depends_on_its_seed_alone(corpus: Corpus) -> None:
    again, other = (make_corpus(CHAT, RECIPES["uncertain"], prompts=40, per_prompt=2, seed=seed) for seed in (0, 1))
    assert all(torch.equal(value, getattr(again, name)) for name, value in vars(corpus).items())
    assert not torch.equal(other.prompts, corpus.prompts)


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
    return [(draw_script_for_trace(rng.choice(EVERY_DOMAIN), RECIPES["uncertain"], rng), rng) for _ in range(count)]


def test_faithful_traces_are_the_real_world() -> None:
    for script, rng in scripts(100):
        (trace,) = draw_traces(script, RECIPES["faithful"], 1, rng)
        assert trace.exchanges() == play(script, World(script.state), Slips()).exchanges()


def test_happy_traces_know_no_error() -> None:
    told = [trace for script, rng in scripts(100) for trace in draw_traces(script, RECIPES["happy"], 2, rng)]
    assert len(told) > 50
    assert not any(response.error for trace in told for _, response in trace.exchanges())


def test_uncertain_traces_hold_right_and_wrong() -> None:
    """Calls that fail are told as a success in about 60 % of the cases, good ones as an error in about 4 %."""
    told: dict[bool, list[bool]] = {True: [], False: []}
    for script, rng in scripts(400):
        for call, response in draw_traces(script, RECIPES["uncertain"], 1, rng)[0].exchanges()[:1]:
            tool = script.tool(call.name)
            assert tool
            real = tool.call(World(script.state), call.arguments)
            told[real.error is not None].append(response.error is not None)
            if real.error is None and response.error is None:
                assert response == real
    assert sum(told[True]) / len(told[True]) == pytest.approx(0.4, abs=0.1)
    assert sum(told[False]) / len(told[False]) == pytest.approx(0.04, abs=0.04)
    assert min(map(len, told.values())) > 80


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


@pytest.mark.parametrize("save_every", [8, 5])
def test_a_resumed_base_is_the_uninterrupted_one(corpus: Corpus, tmp_path: Path, save_every: int) -> None:
    config = replace(SMALL, save_every=save_every)
    whole = result(pretrain(config, tmp_path / "whole", workers=1, corpus=corpus))
    stop = Stop(**vars(corpus))
    stop.left = 11 * config.batch
    with pytest.raises(KeyboardInterrupt):
        pretrain(config, tmp_path / "parts", workers=1, corpus=stop)
    resumed = result(pretrain(config, tmp_path / "parts", workers=1, corpus=corpus))
    assert same_weights(resumed[0], whole[0])
    assert resumed[1:] == whole[1:]


def test_imitation_lowers_the_loss(corpus: Corpus, tmp_path: Path) -> None:
    _, record = pretrain(replace(SMALL, steps=200, lr=1e-2, save_every=400), tmp_path, workers=1, corpus=corpus)
    losses = [loss for _, loss in record["curve"]]
    assert [step for step, _ in record["curve"]] == [50, 100, 150, 200]
    assert losses[-1] < 0.5 * losses[0]


def test_rates() -> None:
    config = PretrainConfig(steps=1000, lr=1.0)
    assert learning_rate(config, 0) == pytest.approx(0.01)
    assert max(learning_rate(config, step) for step in range(1000)) == pytest.approx(0.98, abs=0.02)
    assert learning_rate(config, 999) == pytest.approx(0.1, abs=0.01)
