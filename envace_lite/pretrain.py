"""The base model: imitation of traces in which right and wrong occur side by side.

What is simplified against the paper: its base is a released language model; this one is made in half an hour from
the traces of `traces.py`. Both roles' tokens are imitated, prompts and headers are not. Nothing tells the model which
trace is right.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from envace_lite.chat import GIVEN
from envace_lite.checkpoint import load_state, save_state
from envace_lite.policy import Policy, new_policy
from envace_lite.traces import RECIPES, Corpus, make_corpus


@dataclass(frozen=True)
class PretrainConfig:
    """How the base is made."""

    recipe: str = "uncertain"
    """Name of a recipe of `traces.RECIPES`."""
    seed: int = 0
    """Of the weights, the traces and their order."""
    requests: int = 40_000
    """Number of different requests."""
    per_request: int = 4
    """Traces a request: several agents, several retellings."""
    steps: int = 3_000
    """Optimiser steps."""
    batch: int = 24
    """Requests a step."""
    lr: float = 2e-3
    """Highest learning rate; 100 steps of warm-up, then a cosine to a tenth."""
    width: int = 128
    """Hidden size of the model."""
    layers: int = 6
    """Number of layers."""
    save_every: int = 500
    """Steps between two checkpoints."""


def learning_rate(config: PretrainConfig, step: int) -> float:
    """Warm-up, then a cosine to a tenth of the highest rate."""
    progress = step / max(config.steps, 1)
    return config.lr * min(1.0, (step + 1) / 100) * (0.55 + 0.45 * math.cos(math.pi * progress))


def pretrain(
    config: PretrainConfig, folder: Path | str, *, workers: int = 2, corpus: Corpus | None = None
) -> tuple[Policy, dict[str, Any]]:
    """Make a base model. Continues from `folder/state.pt` when an earlier run was interrupted.

    Returns:
        The policy, and the record of the run (loss curve, seconds, tokens).
    """
    state_file = Path(folder) / "state.pt"
    policy = new_policy(seed=config.seed, width=config.width, layers=config.layers)
    if corpus is None:
        corpus = make_corpus(
            policy.chat, RECIPES[config.recipe], config.requests, config.per_request, config.seed
        )
    optimizer = torch.optim.AdamW(
        policy.model.parameters(), lr=config.lr, betas=(0.9, 0.98), weight_decay=0.01
    )
    generator = torch.Generator().manual_seed(config.seed)
    record: dict[str, Any] = {"curve": [], "seconds": 0.0, "tokens": 0}
    first = 0
    if state_file.is_file():
        state = load_state(state_file)
        policy.model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        generator.set_state(state["generator"])
        record, first = state["record"], state["step"]

    lengths = corpus.prompt_starts[1:] - corpus.prompt_starts[:-1]
    begin = time.perf_counter() - record["seconds"]
    losses: list[float] = []
    bar = tqdm(range(first, config.steps), desc="pretrain", unit="step")
    for step in bar:
        if step % 8 == 0:  # eight batches of similar length are drawn at a time, to pad little
            rows = torch.randint(len(corpus), (8, config.batch), generator=generator).flatten()
            batches = rows[lengths[rows].argsort()].view(8, -1)[torch.randperm(8, generator=generator)]
        families, roles = zip(*(corpus.family(row) for row in batches[step % 8].tolist()), strict=True)
        imitated = torch.cat(roles) != GIVEN
        count = int(imitated.sum())

        def loss(log_p: Tensor, _: Tensor, where: Tensor) -> list[Tensor]:
            return [-log_p[imitated[where]].sum() / count]  # noqa: B023 (called within this step)

        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, step)
        log_p, _, _ = policy.backward(families, loss, workers=workers)
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        optimizer.step()
        losses.append(-log_p[imitated].mean().item())
        record["tokens"] += count
        if (step + 1) % 50 == 0:
            record["curve"].append([step + 1, round(sum(losses) / len(losses), 4)])
            record["seconds"] = time.perf_counter() - begin
            bar.set_postfix(loss=record["curve"][-1][1])
            losses = []
        if (
            step + 1
        ) % config.save_every == 0:  # a multiple of eight, so that a resumed run draws the same batches
            save_state(
                state_file,
                {
                    "model": policy.model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "generator": generator.get_state(),
                    "record": record,
                    "step": step + 1,
                },
            )
    return policy, record
