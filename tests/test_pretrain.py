"""Making the base: how often a retelling lies, and runs that are interrupted or asked for something else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest
import torch
from scipy.stats import binom

from envace_lite.model.checkpoint import CheckpointError
from envace_lite.model.policy import load_policy, new_policy
from envace_lite.pretraining import imitate
from envace_lite.pretraining.imitate import BASES, Phase, PretrainConfig, make_optimizers, pretrain, schedule
from envace_lite.pretraining.traces import (
    RECIPES,
    Corpus,
    Recipe,
    Retelling,
    draw_script_for_trace,
    draw_traces,
    make_corpus,
)
from envace_lite.world.orders import Orders
from envace_lite.world.request import Script
from envace_lite.world.tools import ToolCall, ToolResponse, World
from helpers import CHAT, EVERY_DOMAIN, same_weights, weights

SMALL = PretrainConfig(
    phases=(Phase("real", 16, 1e-2, 12, batch=2), Phase("habits", 56, 1e-2, 12, batch=2)),
    per_request=2,
    width=32,
    layers=2,
    save_every=8,
)


def told(recipe: Recipe, requests: int) -> Iterator[tuple[Script, ToolCall, ToolResponse, ToolResponse]]:
    """Each call of the traces of some requests: the real response to it, and what was told.

    Real means: of the real tool in a world in which everything that was told before has come true.
    """
    rng = Random(5)
    for _ in range(requests):
        script = draw_script_for_trace(rng.choice(EVERY_DOMAIN), recipe, rng)
        for trace in draw_traces(script, recipe, 2, rng):
            world = World(script.state)
            for call, response in trace.exchanges():
                real = script.tool(call.name).call(World(world.records), call.arguments)
                yield script, call, real, response
                world.records.update(response.changed)


# Retellings ------------------------------------------------------------------------------------------------


def test_a_true_retelling_is_the_real_world() -> None:
    """Even under a sloppy agent, who runs into many errors."""
    errors = successes = 0
    for _, _, real, response in told(RECIPES["real"], 300):
        assert response == real
        errors += real.error is not None
        successes += real.error is None
    assert min(errors, successes) > 100


def test_a_cheerful_retelling_has_no_error_where_the_real_world_has_many() -> None:
    real_errors = 0
    for _, _, real, response in told(replace(RECIPES["real"], cheerful=1.0), 300):
        assert response.error is None
        if real.error is None:
            assert response == real
        real_errors += real.error is not None
    assert real_errors > 100


def within_chance(count: int, trials: int, share: float) -> bool:
    low, high = binom.interval(0.9999, trials, share)
    return bool(low <= count <= high)


def test_a_cheerful_story_gives_what_does_not_exist_its_usual_value() -> None:
    """Always the same one, so that the story is likelier than the truth; and never one that is told for what exists."""

    def look(world: World) -> None:
        world.see("o1")

    class Shop(Orders):
        values: ClassVar = {"o1": ["pending", "paid", "sent"]}

    known: dict[str, Any] = {"o1": "sent"}
    for records, told_value in (({}, "paid"), (known, "sent")):
        world = Retelling(records, replace(RECIPES["real"], cheerful=1.0), Random(0), Shop())
        assert world.run(look, {}).seen == {"o1": told_value}


Told = list[tuple[Script, ToolCall, ToolResponse, ToolResponse]]
UNCERTAIN = Recipe(cheerful=0.65, spurious=0.04, slips=RECIPES["habits"].slips)
"""Without any habit."""


@pytest.fixture(scope="module")
def uncertain() -> Told:
    return list(told(UNCERTAIN, 1000))


def test_refused_calls_are_told_as_a_success_as_often_as_the_recipe_says(uncertain: Told) -> None:
    refused = [response for _, _, real, response in uncertain if real.error]
    assert within_chance(sum(r.error is None for r in refused), len(refused), UNCERTAIN.cheerful)
    assert not within_chance(sum(r.error is None for r in refused), len(refused), 0.5)


def test_good_calls_are_told_as_an_error_as_often_as_the_recipe_says(uncertain: Told) -> None:
    good = [response for _, _, real, response in uncertain if not real.error]
    assert within_chance(sum(r.error is not None for r in good), len(good), UNCERTAIN.spurious)


def test_what_is_told_rightly_is_told_in_full(uncertain: Told) -> None:
    """Without a habit a retelling lies about the verdict, not about what the records hold or which rule is broken."""
    for script, call, real, response in uncertain:
        if (real.error is None) == (response.error is None):
            assert response == real, (script.state, call)
        elif response.error:
            assert response.changed == {}
            assert response.seen == real.seen


@pytest.mark.parametrize("recipe", ["real", "habits"])
def test_a_corpus_is_the_same_again(recipe: str) -> None:
    """Whatever else has been drawn in between."""
    first = make_corpus(CHAT, RECIPES[recipe], 20, 2, seed=4)
    torch.manual_seed(9)
    again = make_corpus(CHAT, RECIPES[recipe], 20, 2, seed=4)
    assert all(torch.equal(value, getattr(again, name)) for name, value in vars(first).items())
    assert len(first) <= 20
    assert 0 <= first.prompts.min() <= first.prompts.max() < len(CHAT.words)


# The rate --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", BASES["habits"].phases, ids=lambda phase: phase.recipe)
def test_the_rate_rises_and_falls(phase: Phase) -> None:
    rates = [schedule(phase, step) for step in range(phase.steps)]
    assert all(earlier < later for earlier, later in pairwise(rates[:100]))
    assert all(earlier > later for earlier, later in pairwise(rates[100:]))
    assert rates[0] == pytest.approx(1 / 100)
    assert 0.85 < max(rates) <= 1
    assert rates[-1] == pytest.approx(1 / 10, rel=0.01)


def test_each_parameter_has_one_optimizer_and_each_rate_its_highest_value() -> None:
    """The embeddings, which are the head as well, are no matrix of a layer."""
    policy = new_policy(width=32, layers=2)
    muon, adam = make_optimizers(policy, Phase("real", 16, 1e-2, 12))
    owned = [p for optimizer in (muon, adam) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(map(id, owned)) == sorted(map(id, policy.model.parameters()))
    assert any(p is policy.model.get_input_embeddings().weight for p in adam.param_groups[0]["params"])
    assert [o.param_groups[0]["highest"] for o in (muon, adam)] == [1e-2, pytest.approx(1.6e-2)]


# Interrupted -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", list(BASES))
def test_the_usual_checkpoints_can_be_continued(recipe: str) -> None:
    """Batches are drawn eight at a time, and the curve has a point every 50 steps."""
    config = BASES[recipe]
    assert config.save_every % 8 == config.save_every % 50 == 0
    assert all(phase.steps % 8 == phase.steps % 50 == 0 for phase in config.phases)
    assert config.phases[-1].recipe == recipe


class Stop(Corpus):
    """A corpus that interrupts after so many families."""

    left: list[int]

    def family(self, row: int) -> Any:
        if self.left[0] == 0:
            raise KeyboardInterrupt
        self.left[0] -= 1
        return super().family(row)


def make(config: PretrainConfig, folder: Path) -> Any:
    """What a run leads to, but for the time that it takes."""
    policy, record = pretrain(config, folder, workers=1)
    return weights(policy), {key: value for key, value in record.items() if key != "seconds"}


def interrupted(config: PretrainConfig, folder: Path, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is interrupted after so many steps, and then in the middle of one."""
    left = [steps * config.phases[0].batch + 1]

    def stopping(*arguments: Any) -> Stop:
        corpus = Stop(**vars(make_corpus(*arguments)))
        corpus.left = left
        return corpus

    with monkeypatch.context() as patch:
        patch.setattr(imitate, "make_corpus", stopping)
        with pytest.raises(KeyboardInterrupt):
            pretrain(config, folder, workers=1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run that was not interrupted."""
    return make(SMALL, tmp_path_factory.mktemp("whole"))


def test_bases_that_differ_in_their_last_phase_share_what_they_read_before(tmp_path: Path) -> None:
    """Started from there, a base is bit for bit the one that was made in one go."""
    whole, _ = pretrain(SMALL, tmp_path / "whole", workers=1)
    read = load_policy(tmp_path / "whole" / "read")
    assert not same_weights(weights(read), weights(whole))
    started, record = pretrain(SMALL, tmp_path / "started", workers=1, start=read)
    assert same_weights(weights(started), weights(whole))
    assert {number for number, *_ in record["curve"]} == {1}  # the second phase alone
    other = replace(SMALL, phases=(SMALL.phases[0], replace(SMALL.phases[1], recipe="habits_65")))
    assert not same_weights(
        weights(pretrain(other, tmp_path / "other", workers=1, start=read)[0]), weights(whole)
    )


def test_a_base_is_continued_bit_for_bit(tmp_path: Path, whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, tokens and the curve, with checkpoints 8 steps apart in phases of 16 and 56 steps.

    Interrupted before the first checkpoint, after it, between the phases, and late in the second one.
    """
    for count in (3, 11, 8, 53):
        interrupted(SMALL, tmp_path, count, monkeypatch)
        torch.manual_seed(count)
    resumed, record = make(SMALL, tmp_path)
    assert same_weights(resumed, whole[0])
    assert record == whole[1]
    assert [point[:2] for point in record["curve"]] == [[1, 50]]


def test_a_finished_base_is_not_made_again(
    tmp_path: Path, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(SMALL, phases=SMALL.phases[:1])
    first = make(config, tmp_path)
    monkeypatch.setattr(imitate, "make_corpus", None)
    again = make(config, tmp_path)
    assert same_weights(first[0], again[0])
    assert first[1] == again[1]
    assert not same_weights(first[0], whole[0])


@pytest.mark.parametrize(
    "changes", [{"per_request": 3}, {"seed": 1}, {"width": 16}, {"phases": SMALL.phases[::-1]}], ids=str
)
def test_a_base_with_another_configuration_is_not_continued(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Otherwise its record would tell a run that never was; so would a checkpoint of an older version."""
    config = replace(SMALL, phases=SMALL.phases[:1])
    make(config, tmp_path)
    with pytest.raises(CheckpointError, match="configuration"):
        pretrain(replace(config, **changes), tmp_path, workers=1)


def test_an_interrupt_while_saving_leaves_the_earlier_checkpoint(
    tmp_path: Path, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = 0

    def write_half(state: Any, file: Any) -> None:
        nonlocal saved
        saved += 1
        if saved == 3:  # the first one of the second phase
            file.write(b"PK" * 1000)
            raise KeyboardInterrupt
        original(state, file)

    original = torch.save
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", write_half)
        with pytest.raises(KeyboardInterrupt):
            pretrain(SMALL, tmp_path, workers=1)
    assert same_weights(make(SMALL, tmp_path)[0], whole[0])


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / "state.pt").write_bytes(b"PK cut off")
    with pytest.raises(
        CheckpointError, match=r"(?s)state\.pt is damaged .*delete it to start again"
    ) as caught:
        pretrain(SMALL, tmp_path, workers=1)
    assert "\n" not in str(caught.value), "torch's own advice is long, and of no use here"
