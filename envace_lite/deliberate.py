"""The study of private rehearsal: every way of deciding, at every budget, on the real environment.

The ways are compared by tokens: read and written, kept and discarded. A control gets, before each committed message,
as many tokens as `parallel` rehearsal with the same N took on average, and no token more. All ways sample at one
temperature; `greedy` is plain execution without sampling, as a reference.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from envace_lite import paths
from envace_lite.domains import DOMAINS, TRAP, Task
from envace_lite.fidelity.measures import interval
from envace_lite.policy import Policy
from envace_lite.records import RecordError, write_record
from envace_lite.rehearsal.episode import Episode
from envace_lite.rehearsal.ledger import TOKENS
from envace_lite.rehearsal.scorers import SCORERS, Scorer, fit_verdict
from envace_lite.rehearsal.ways import CONTROLS, METHODS, USUAL, WITHOUT_BUDGET, make
from envace_lite.reward import task_success
from envace_lite.rollout import rollout
from envace_lite.study import shipped_tasks
from envace_lite.tables import markdown, with_interval

BUDGETS = (0, 1, 2, 4, 8)
"""N, imagined continuations before one committed message."""
REFERENCE = "parallel"
"""The way of deciding whose tokens the controls may spend."""
METRICS = {
    "real_success": "share of the tasks that end in the right state with the right answer",
    "promised": "share that the judge found carried out in the imagination, before the first call",
    "misled": "share that was promised so and failed in the world",
    "wrong_writes": "committed writes that took effect and belong to no acceptable outcome, a task",
    "irreversible_writes": "those of them that cannot be undone, a task",
    "world_errors": "errors met in the world, a task",
    "head_errors": "errors met in the head, a task",
    "committed_calls": "calls that reached the real environment, a task",
    "extra_calls": "committed calls more than the plan has, a task",
    "tokens": "tokens read and written, a task",
    **{name: f"tokens counted as {name}, a task" for name in TOKENS},
}
"""What is recorded of each way, in this order."""
KINDS = ("instructions", "goal")
SPLITS = {"test": "test tasks", "held_out": "held-out tools"}
AFTER = "world rehearsal"
"""Title of the policies after world rehearsal, in the recorded study."""


def as_frame(episodes: Sequence[Episode]) -> pd.DataFrame:
    """One row a task: how it went on the real environment, and what it cost."""
    return pd.DataFrame([episode.row() for episode in episodes])


def allowance_of(frame: pd.DataFrame) -> int:
    """Mean tokens before a committed message, beyond one reading of the conversation."""
    return int(frame.beyond.sum() / frame.decisions.sum())


def summary(frame: pd.DataFrame) -> dict[str, dict[str, list[float]]]:
    """Group -> metric -> [mean, low, high]: the groups are `all`, the kinds of task, and those the trap was set for.

    The ends are those of a 95 % bootstrap interval over the tasks.
    """
    groups = {"all": frame} | {kind: frame[frame.kind == kind] for kind in KINDS}
    groups["needs"] = frame[frame.needs]
    return {
        name: {
            metric: [
                round(x, 4) for x in interval((group[metric].to_numpy(float), np.ones(len(group)))).values()
            ]
            for metric in METRICS
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
        RecordError: the record is of another policy or other settings.
    """
    tasks = {split: shipped_tasks(domains, split, limit) for split in ("test", "held_out")}
    config = {"temperature": temperature, "limit": limit, "weights": _digest(policy)}
    about = {"kind": "deliberate", "command": command, "policy": name, "title": title, "seed": seed}
    earlier = _recorded(name, {"config": config, "domains": list(domains), "seed": seed}, folder)
    record = {**about, "domains": list(domains), "config": config, "cells": {}, **earlier}
    cells = record["cells"]
    fitted: list[Scorer] = []

    def verdict() -> Scorer:
        if not fitted:
            fitted.append(fit_verdict(policy, shipped_tasks(domains, "train", 150), seed=seed))
        return fitted[0]

    for method, budget in _plan(methods, budgets):
        key = f"{method}-{budget}"
        if key in cells:
            continue
        start = time.perf_counter()
        frames = {}
        for split, some in tasks.items():
            allowance = cells[f"{REFERENCE}-{budget}"]["allowance"][split] if method in CONTROLS else 0
            way = make(method, policy, budget, allowance, verdict=verdict, temperature=temperature, seed=seed)
            frames[split] = as_frame(way.run(some))
        cells[key] = {
            "method": method,
            "budget": budget,
            "command": command,
            "seconds": round(time.perf_counter() - start, 1),
            "allowance": {split: allowance_of(frame) for split, frame in frames.items()},
            "results": {split: summary(frame) for split, frame in frames.items()},
        }
        write_record(f"deliberate-{name}", record, folder)
    told = record.setdefault("scorers", {split: {} for split in tasks})
    missing = {
        key: scorer for key, scorer in SCORERS.items() if REFERENCE in methods and key not in told["test"]
    }
    if "verdict" in methods and "verdict" not in told["test"]:
        missing["verdict"] = verdict()
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


def _digest(policy: Policy) -> str:
    digest = hashlib.sha256()
    for value in policy.model.state_dict().values():
        digest.update(value.detach().numpy().tobytes())
    return digest.hexdigest()[:12]


def _recorded(name: str, settings: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """What an earlier run with the same settings has measured."""
    path = (folder or paths.RUNS) / f"deliberate-{name}.json"
    if not path.is_file():
        return {}
    record = json.loads(path.read_text(encoding="utf-8"))
    if any(record.get(key) != value for key, value in settings.items()):
        raise RecordError(f"{path} is of another policy or other settings; delete it or choose another name")
    return {key: record[key] for key in ("cells", "scorers") if key in record}


def curve(record: Mapping[str, Any], metric: str, *, split: str = "test", kind: str = "all") -> pd.DataFrame:
    """One metric of a record: method, budget, tokens, value, low, high; a row a cell."""
    rows = []
    for cell in record["cells"].values():
        results = cell["results"][split][kind]
        value, low, high = results[metric]
        tokens = results["tokens"][0]
        rows.append((cell["method"], cell["budget"], tokens, value, low, high))
    return pd.DataFrame(rows, columns=["method", "budget", "tokens", "value", "low", "high"])


def table(
    records: Sequence[Mapping[str, Any]],
    split: str,
    budgets: Sequence[int] = (2, 8),
    methods: Sequence[str] = tuple(METHODS),
) -> pd.DataFrame:
    """Each way of deciding at some budgets: means over the records with 95 % intervals, one row a way and N."""
    lines = []
    for method in methods:
        for budget in (0, *budgets):
            cells = [r["cells"][key] for r in records if (key := f"{method}-{budget}") in r["cells"]]
            if cells:
                groups = [cell["results"][split] for cell in cells]
                line: dict[str, Any] = {"way of deciding": METHODS[method], "N": budget, "seeds": len(cells)}
                for kind in KINDS:
                    values = [group[kind]["real_success"][0] for group in groups]
                    line[f"real success, {kind}"] = with_interval(values, share=True)
                for metric in ("wrong_writes", "irreversible_writes", "world_errors"):
                    line[metric] = with_interval([group["all"][metric][0] for group in groups])
                line["tokens"] = f"{np.mean([group['all']['tokens'][0] for group in groups]):.0f}"
                lines.append(line)
    return pd.DataFrame(lines).set_index("way of deciding") if lines else pd.DataFrame()


def gains(
    records: Sequence[Mapping[str, Any]],
    split: str,
    method: str = "judged",
    budgets: Sequence[int] = (2, 4, 8),
) -> pd.DataFrame:
    """What a way of deciding brings beyond the others at the same N, seed by seed: means with 95 % intervals.

    Positive differences of real success are gains; so are negative ones of wrong writes.
    """
    lines = []
    for budget in budgets:
        for other in ("plain", "greedy", "parallel", *CONTROLS):
            keys = f"{method}-{budget}", f"{other}-{0 if other in WITHOUT_BUDGET else budget}"
            pairs = [
                [r["cells"][key]["results"][split] for key in keys]
                for r in records
                if all(key in r["cells"] for key in keys)
            ]
            if pairs:
                line = {"N": budget, "beyond": METHODS[other], "seeds": len(pairs)}
                wanted = [("real_success", group) for group in ("all", *KINDS)] + [("wrong_writes", "all")]
                for metric, group in wanted:
                    differences = [a[group][metric][0] - b[group][metric][0] for a, b in pairs]
                    line[f"{metric}, {group}"] = with_interval(differences)
                lines.append(line)
    return pd.DataFrame(lines).set_index("N") if lines else pd.DataFrame()


def scorers_table(records: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Share of the pairs of a success and a failure that each scorer orders rightly (see `tell_apart`)."""
    told = [record["scorers"] for record in records if "scorers" in record]
    names = dict.fromkeys(name for scorers in told for name in scorers["test"])
    rows = {
        name: {
            words: with_interval([s[split].get(name) for s in told], share=True)
            for split, words in SPLITS.items()
        }
        for name in names
    }
    return pd.DataFrame(rows).T.rename_axis("scorer") if rows else pd.DataFrame()


def misled_table(records: Sequence[Mapping[str, Any]], budgets: Sequence[int] = (2, 8)) -> pd.DataFrame:
    """When a rehearsal misleads: tasks that need the trap's rule (all tasks in other domains), by way of training."""
    lines = []
    for title, found in _titled(records).items():
        group = "needs" if TRAP.name in found[0]["domains"] else "all"
        for method in ("plain", "parallel", "judged", "judged_vote"):
            for budget in (0, *budgets):
                cells = [r["cells"][key] for r in found if (key := f"{method}-{budget}") in r["cells"]]
                if cells:
                    results = [cell["results"]["test"][group] for cell in cells]
                    line: dict[str, Any] = {"policy": title, "way of deciding": METHODS[method]}
                    line |= {"N": budget, "seeds": len(cells)}
                    for metric in ("real_success", "promised", "misled"):
                        line[metric] = with_interval([r[metric][0] for r in results], share=True)
                    line["wrong_writes"] = with_interval([r["wrong_writes"][0] for r in results])
                    lines.append(line)
    return pd.DataFrame(lines).set_index("policy") if lines else pd.DataFrame()


def _titled(records: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Records of the study by the title of their policies."""
    titled: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        if record.get("kind") == "deliberate":
            titled.setdefault(record["title"], []).append(record)
    return titled


def short_table(records: Sequence[Mapping[str, Any]]) -> str:
    """The main ways of deciding after world rehearsal, on test tasks, as markdown."""
    found = _titled(records).get(AFTER, [])
    methods = ("plain", "greedy", "parallel", "judged", "vote", "judged_vote", "refine", "scratch")
    shown = table(found, "test", (2, 4, 8), methods)
    return markdown(shown) if len(shown) else ""


def tables(records: Sequence[Mapping[str, Any]]) -> str:
    """The study of private rehearsal as markdown, made from the records alone."""
    parts = []
    for title, found in _titled(records).items():
        if TRAP.name in found[0]["domains"]:
            continue
        for split, words in SPLITS.items():
            parts += [f"**Policy: {title}; {words}**", markdown(table(found, split, BUDGETS[1:]))]
            difference = gains(found, split)
            if len(difference):
                parts += [
                    f"What rehearsal with the judge brings beyond the others ({title}, {words}):",
                    markdown(difference),
                ]
        told = scorers_table(found)
        if len(told):
            parts += [f"Pairs that each scorer orders rightly ({title}):", markdown(told)]
    misled = misled_table(records)
    if len(misled):
        parts += ["**When rehearsal misleads**", markdown(misled)]
    return "\n\n".join(parts)
