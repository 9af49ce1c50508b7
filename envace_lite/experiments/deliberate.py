"""The study of private rehearsal: every way of deciding, at every budget, on the real environment.

The ways are compared by tokens: read and written, kept and discarded. A control gets, before each committed message,
as many tokens as `parallel` rehearsal with the same N took on average, and no token more. All ways sample at one
temperature; `greedy` is plain execution without sampling, as a reference.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from envace_lite.experiments.harm import harm
from envace_lite.experiments.records import RecordError, read_record, write_record
from envace_lite.experiments.self_evaluation import fit_self_evaluation
from envace_lite.experiments.ways import CONTROLS, USUAL, WITHOUT_BUDGET, make
from envace_lite.fidelity.measures import interval
from envace_lite.model.checkpoint import claimed
from envace_lite.model.policy import Policy
from envace_lite.rehearsal.episode import Episode
from envace_lite.rehearsal.ledger import TOKENS
from envace_lite.rehearsal.scorers import SCORERS, Scorer
from envace_lite.reward import task_success
from envace_lite.rollout import rollout
from envace_lite.world import DOMAINS, Task, paths
from envace_lite.world.shipped import shipped_tasks

BUDGETS = (0, 1, 2, 4, 8)
"""N, imagined continuations before one committed message."""
REFERENCE = "parallel"
"""The way of deciding whose tokens the controls may spend."""
MEASURED = {
    "real_success": "share of the tasks that end in the right state with the right answer",
    "promised": "share that the verifier found carried out in the imagination, before the first call",
    "misled": "false success: share that was promised so and failed in the world",
    "wrong_writes": "committed writes that took effect and belong to no acceptable outcome, a task",
    "irreversible_writes": "those of them that cannot be undone, a task",
    "world_errors": "errors met in the world, a task",
    "head_errors": "imagined errors, a task",
    "committed_calls": "calls that reached the real environment, a task",
    "extra_calls": "committed calls more than the plan has, a task",
    "tokens": "tokens read and written, a task",
    **{name: f"tokens counted as {name}, a task" for name in TOKENS},
}
"""What is recorded of each way, in this order."""
KINDS = {
    "instructions": "instructions",
    "rests": "instructions that rest on a response",
    "goal": "goals",
}
"""Groups of tasks with their titles. `rests`: those instructions whose later steps depend on what a response says."""


def how_it_went(episode: Episode) -> dict[str, Any]:
    """How an episode went, as plain data."""
    success = episode.session.verify(episode.answers).success
    return {
        "task": episode.task.id,
        "domain": episode.task.domain,
        "kind": episode.task.tags[0],
        "rests": any(tag.startswith("rests:") for tag in episode.task.tags),
        "real_success": success,
        "promised": episode.promised,
        "misled": episode.promised and not success,
        **harm(episode.task, episode.ledger),
        "tokens": episode.ledger.total,
        **episode.ledger.tokens,
        "decisions": episode.number,
        "beyond": episode.beyond,
    }


def as_frame(episodes: Sequence[Episode]) -> pd.DataFrame:
    """One row a task: how it went on the real environment, and what it cost."""
    return pd.DataFrame([how_it_went(episode) for episode in episodes])


def token_budget_of(frame: pd.DataFrame) -> int:
    """Mean tokens before a committed message, beyond one reading of the conversation."""
    return int(frame.beyond.sum() / frame.decisions.sum())


def summary(frame: pd.DataFrame) -> dict[str, dict[str, list[float]]]:
    """Group -> metric -> [mean, low, high]: the groups are `all` and those of `KINDS` that have tasks.

    The ends are those of a 95 % bootstrap interval over the tasks.
    """
    groups = {"all": frame} | {
        kind: frame[frame.rests if kind == "rests" else frame.kind == kind] for kind in KINDS
    }
    return {
        name: {
            metric: [
                round(x, 4) for x in interval((group[metric].to_numpy(float), np.ones(len(group)))).values()
            ]
            for metric in MEASURED
        }
        for name, group in groups.items()
        if len(group)
    }


def tell_apart(
    policy: Policy, tasks: Sequence[Task], scorers: Mapping[str, Scorer], *, seed: int = 0, count: int = 8
) -> dict[str, float | None]:
    """How well scorers tell imagined successes from failures: the share of pairs that they order rightly.

    A pair is a continuation with task success, by the label, and one without, of the same conversation. A scorer that
    knows nothing gets 0.5; None where there is no pair.

    Args:
        count: continuations of each task.
    """
    made = rollout(policy, tasks, group_size=count, generator=torch.Generator().manual_seed(seed))
    right = {name: list[float]() for name in scorers}
    for start in range(0, len(made), count):
        group = made[start : start + count]
        success = [task_success(t) for t in group]
        pairs = [(i, j) for i in range(count) for j in range(count) if success[i] > success[j]]
        for name, scorer in scorers.items():
            scores = scorer(group)
            right[name] += [(scores[i] > scores[j]) + 0.5 * (scores[i] == scores[j]) for i, j in pairs]
    return {name: round(sum(found) / len(found), 4) if found else None for name, found in right.items()}


def run_deliberate(
    name: str,
    policy: Policy,
    *,
    title: str,
    command: str,
    domains: Sequence[str] = tuple(DOMAINS),
    methods: Sequence[str] = USUAL,
    budgets: Sequence[int] = BUDGETS,
    limit: int | None = None,
    temperature: float = 1.0,
    seed: int = 0,
    folder: Path | None = None,
) -> dict[str, Any]:
    """All methods at all budgets for one policy, on test tasks and held-out tools.

    The record `deliberate-NAME` is written after each cell (a method at a budget); cells that stand in it are not run
    again.

    Args:
        name: of the policy, in the record's name.
        title: of the policy, in figures.
        limit: tasks of each domain and split.

    Raises:
        RecordError: the record is of another policy or other settings, or cannot be written.
        CheckpointError: another process runs the same study.
    """
    tasks = {split: shipped_tasks(domains, split, limit) for split in ("test", "held_out")}
    config = {"temperature": temperature, "limit": limit, "weights": digest(policy)}
    about = {"kind": "deliberate", "command": command, "policy": name, "title": title, "seed": seed}
    fitted: list[Scorer] = []

    def evaluation() -> Scorer:
        if not fitted:
            fitted.append(fit_self_evaluation(policy, shipped_tasks(domains, "train", 150), seed=seed))
        return fitted[0]

    # Two processes would overwrite each other's cells. The lock lies with the checkpoints: data/runs is for records.
    with claimed(folder or paths.WORK, f"deliberate-{name}"):
        earlier = _recorded(name, {"config": config, "domains": list(domains), "seed": seed}, folder)
        record = {**about, "domains": list(domains), "config": config, "cells": {}, **earlier}
        cells = record["cells"]
        for method, budget in _plan(methods, budgets):
            key = f"{method}-{budget}"
            if key in cells:
                continue
            start = time.perf_counter()
            frames = {}
            for split, some in tasks.items():
                spend = cells[f"{REFERENCE}-{budget}"]["allowance"][split] if method in CONTROLS else 0
                way = make(
                    method,
                    policy,
                    budget,
                    spend,
                    self_evaluation=evaluation,
                    temperature=temperature,
                    seed=seed,
                )
                frames[split] = as_frame(way.run(some))
            cells[key] = {
                "method": method,
                "budget": budget,
                "command": command,
                "seconds": round(time.perf_counter() - start, 1),
                "allowance": {split: token_budget_of(frame) for split, frame in frames.items()},
                "results": {split: summary(frame) for split, frame in frames.items()},
            }
            write_record(f"deliberate-{name}", record, folder)
        told = record.setdefault("scorers", {split: {} for split in tasks})
        missing = {
            key: scorer for key, scorer in SCORERS.items() if REFERENCE in methods and key not in told["test"]
        }
        if "verdict" in methods and "verdict" not in told["test"]:
            missing["verdict"] = evaluation()
        if missing:
            for split, some in tasks.items():
                told[split] |= tell_apart(policy, some, missing, seed=seed)
            write_record(f"deliberate-{name}", record, folder)
    return record


def _plan(methods: Sequence[str], budgets: Sequence[int]) -> list[tuple[str, int]]:
    """The cells in an order in which a control comes after what it is matched with."""
    cells = [(method, 0) for method in methods if method in WITHOUT_BUDGET]
    others = [method for method in methods if method not in WITHOUT_BUDGET]
    for budget in budgets:
        if budget and others:
            cells += [(method, budget) for method in dict.fromkeys([REFERENCE, *others])]
    return cells


def digest(policy: Policy) -> str:
    """The weights of a policy in twelve hexadecimal digits: the same weights, the same digits."""
    sha = hashlib.sha256()
    for value in policy.model.state_dict().values():
        sha.update(value.detach().numpy().tobytes())
    return sha.hexdigest()[:12]


def _recorded(name: str, settings: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """What an earlier run with the same settings has measured."""
    path = (folder or paths.RUNS) / f"deliberate-{name}.json"
    if not path.is_file():
        return {}
    record = read_record(path)
    if any(record.get(key) != value for key, value in settings.items()):
        raise RecordError(f"{path} is of another policy or other settings; delete it or choose another name")
    return {key: record[key] for key in ("cells", "scorers") if key in record}
