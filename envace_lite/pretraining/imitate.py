"""The base model: imitation of traces in which right and wrong occur side by side.

What is simplified against the paper: its base is a released language model; this one is made within the hour from
the traces of `traces.py`. Both roles' tokens are imitated, prompts and headers are not. Nothing tells the model which
trace is right.

The traces come in two phases. On unreliable retellings alone the model learns to look things up, but hardly to compare
what it has looked up with what a tool demands: the signal is drowned. So it first reads what sloppy agents really met,
and then unreliable retellings, after which it is as unsure as they are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from envace_lite.model.checkpoint import claimed, load_state, save_state
from envace_lite.model.compact import build_tokenizer, vocabulary
from envace_lite.model.language import GIVEN
from envace_lite.model.policy import Policy, new_policy
from envace_lite.pretraining.traces import RECIPES, Corpus, make_corpus
from envace_lite.world import DOMAINS, get_toy_domain

BATCHES_AT_ONCE = 8
"""So many batches of similar length are drawn at a time, to pad little."""


@dataclass(frozen=True)
class Phase:
    """A stretch of imitation.

    Args:
        recipe: name of a recipe of `traces.RECIPES`.
        steps: optimiser steps, a multiple of eight.
        lr: highest learning rate of the layers' matrices; 100 steps of warm-up, then a cosine to a tenth.
        requests: number of different requests, each with `PretrainConfig.per_request` traces.
        batch: requests a step.
    """

    recipe: str
    steps: int
    lr: float
    requests: int
    batch: int = 36


@dataclass(frozen=True)
class PretrainConfig:
    """How a base is made."""

    phases: tuple[Phase, ...]
    """What is read, in order; each phase has an optimiser of its own."""
    seed: int = 0
    """Of the weights, the traces and their order."""
    per_request: int = 2
    """Traces a request: several agents, several retellings."""
    width: int = 128
    """Hidden size of the model."""
    layers: int = 6
    """Number of layers."""
    domains: tuple[str, ...] = tuple(DOMAINS)
    """Names of the domains that the traces are about."""
    save_every: int = 200
    """Steps between two checkpoints, a multiple of eight."""

    def __post_init__(self) -> None:
        if self.save_every % BATCHES_AT_ONCE:
            raise ValueError(f"save_every has to be a multiple of {BATCHES_AT_ONCE}")


def _base(last: str) -> PretrainConfig:
    """A base that reads true accounts of many different tools, and then retellings of one recipe."""
    return PretrainConfig((Phase("real", 6000, 2.5e-3, 180_000), Phase(last, 600, 6e-4, 21_600)))


BASES = {name: _base(name) for name in RECIPES if name.startswith("habits")}
"""The shipped base is `habits`."""


def schedule(phase: Phase, step: int) -> float:
    """The share of the highest rate: warm-up, then a cosine to a tenth."""
    progress = step / max(phase.steps, 1)
    return min(1.0, (step + 1) / 100) * (0.55 + 0.45 * math.cos(math.pi * progress))


def make_optimizers(policy: Policy, phase: Phase) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for the embeddings and norms.

    With AdamW alone the same loss takes about half as many steps again. The embeddings learn at 1.6 times
    the matrices' rate.
    """
    matrices = [p for name, p in policy.model.named_parameters() if p.ndim == 2 and "layers" in name]
    others = [p for p in policy.model.parameters() if all(p is not matrix for matrix in matrices)]
    lr = phase.lr
    optimizers = [
        torch.optim.Muon(matrices, lr=lr, momentum=0.95, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=1.6 * lr, betas=(0.9, 0.98), weight_decay=0.01),
    ]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["highest"] = group["lr"]
    return optimizers


def pretrain(
    config: PretrainConfig, folder: Path | str, *, workers: int = 2, start: Policy | None = None
) -> tuple[Policy, dict[str, Any]]:
    """Make a base model. Continues from `folder/state.pt` when an earlier run was interrupted.

    Args:
        folder: where the checkpoint goes. One run at a time has it.
        workers: threads that share a step; set torch to one thread each.
        start: a policy that has read all phases but the last, as `folder/read` of an earlier run holds it. Bases that
            differ in their last phase alone are made from it in minutes.

    Returns:
        The policy, and the record of the run (loss curve, seconds, tokens imitated).

    Raises:
        CheckpointError: the checkpoint cannot be written, is damaged, or of another configuration; or the folder is
            in use.
    """
    domains = [get_toy_domain(name) for name in config.domains]
    tokenizer = build_tokenizer(vocabulary(domains))
    policy = new_policy(seed=config.seed, width=config.width, layers=config.layers, tokenizer=tokenizer)

    def corpus(number: int, phase: Phase) -> Corpus:
        recipe, seed = RECIPES[phase.recipe], config.seed + number
        return make_corpus(policy.compact, recipe, phase.requests, config.per_request, seed, domains)

    return policy, read_phases(policy, config, folder, corpus, workers=workers, start=start)


def read_phases(
    policy: Policy,
    config: PretrainConfig,
    folder: Path | str,
    corpus: Callable[[int, Phase], Corpus],
    *,
    workers: int = 2,
    start: Policy | None = None,
) -> dict[str, Any]:
    """Let a model read the phases of `config`, and return the record of the run; see `pretrain`.

    Args:
        policy: is changed.
        corpus: makes what is read in a phase, from its number.
    """
    path = Path(folder) / "state.pt"
    last = len(config.phases) - 1
    if start:
        policy.model.load_state_dict(start.model.state_dict())
    with claimed(folder):
        state: dict[str, Any] = load_state(path, asdict(config)) if path.is_file() else {}
        record: dict[str, Any] = state.get("record", {"curve": [], "seconds": 0.0, "tokens": 0})
        if state:
            policy.model.load_state_dict(state["model"])
        for number, phase in enumerate(config.phases):
            if number < state.get("phase", last if start else 0):
                continue
            inside = state if state.get("phase") == number and "optimizers" in state else {}
            if number == last > 0 and not inside and not start:
                policy.save(Path(folder) / "read")
            imitate(policy, phase, corpus(number, phase), config, record, path, number, inside, workers)
            state = {}
    return record


def imitate(
    policy: Policy,
    phase: Phase,
    corpus: Corpus,
    config: PretrainConfig,
    record: dict[str, Any],
    path: Path,
    number: int,
    state: dict[str, Any],
    workers: int,
) -> None:
    """One phase; `state` is the checkpoint in it to continue from, or empty. Fills `record`."""
    optimizers = make_optimizers(policy, phase)
    # The order is drawn from a generator of its own, so that it can be kept in a checkpoint and taken up again.
    generator = torch.Generator().manual_seed(config.seed + number)
    if state:
        for optimizer, kept in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        generator.set_state(state["generator"])
    lengths = corpus.prompt_starts[1:] - corpus.prompt_starts[:-1]
    begin = time.perf_counter() - record["seconds"]
    losses: list[float] = state.get("losses", [])
    bar = tqdm(range(state.get("step", 0), phase.steps), desc=f"imitate {phase.recipe}", unit="step")
    for step in bar:
        if step % BATCHES_AT_ONCE == 0:
            # Draw several batches, sort the requests by length, cut, and shuffle: a batch holds what is about equally
            # long, so little is padded, and short batches do not always come first.
            rows = torch.randint(len(corpus), (BATCHES_AT_ONCE, phase.batch), generator=generator).flatten()
            order = torch.randperm(BATCHES_AT_ONCE, generator=generator)
            batches = rows[lengths[rows].argsort()].view(BATCHES_AT_ONCE, -1)[order]
        batch = batches[step % BATCHES_AT_ONCE].tolist()
        families, roles = zip(*(corpus.family(row) for row in batch), strict=True)
        imitated = torch.cat(roles) != GIVEN
        count = int(imitated.sum())

        def loss(log_p: Tensor, _: Tensor, where: Tensor) -> Tensor:
            return -log_p[imitated[where]].sum() / count  # noqa: B023 (called within this step)

        log_p, _ = policy.backward(families, loss, workers=workers)
        # One update by both optimisers, at the rate of this step.
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["highest"] * schedule(phase, step)
            optimizer.step()
        losses.append(-log_p[imitated].mean().item())
        record["tokens"] += count
        if (step + 1) % 50 == 0:
            record["curve"].append([number, step + 1, round(sum(losses) / len(losses), 4)])
            record["seconds"] = time.perf_counter() - begin
            bar.set_postfix(loss=record["curve"][-1][-1])
            losses = []
        if (step + 1) % config.save_every == 0 or step + 1 == phase.steps:
            ended = step + 1 == phase.steps
            within = {  # the next phase starts with an optimiser and an order of its own
                "optimizers": [optimizer.state_dict() for optimizer in optimizers],
                "generator": generator.get_state(),
                "step": step + 1,
                "losses": losses,
            }
            state = {"model": policy.model.state_dict(), "record": record, "phase": number + ended}
            save_state(path, asdict(config), **state, **({} if ended else within))
