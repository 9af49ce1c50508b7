"""Studies: the same training in several ways, over several seeds, each recorded in one small file.

Every number that the project shows comes from such a record, and the command in it makes it again. Tables are made
from the files alone.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import t as student

from envace_lite import paths
from envace_lite.domains import DOMAINS, Task, load_tasks
from envace_lite.evaluate import Report, evaluate
from envace_lite.policy import Policy
from envace_lite.reward import REWARDS
from envace_lite.rollout import Execute, Rehearse, Responder
from envace_lite.train import Observer, TrainConfig, TrainLog, train


@dataclass(frozen=True)
class Arm:
    """One way of training.

    Args:
        title: how it is called in tables and figures.
        responder: makes the responder.
        reward: a name in `reward.REWARDS`.
        changes: what differs in the configuration.
    """

    title: str
    responder: Callable[[], Responder] = Rehearse
    reward: str = "task_success"
    changes: tuple[tuple[str, Any], ...] = ()


ARMS = {
    "rehearsal": Arm("world rehearsal, task success"),
    "execute": Arm("executable environment, act role trained", responder=Execute),
    "end_at_error": Arm("world rehearsal, episode ends at a rehearsed error", reward="end_at_error"),
    "act_only": Arm("world rehearsal, loss on the act role alone", changes=(("train_rehearse", False),)),
    "full": Arm("world rehearsal, all weights", changes=(("lora_rank", 0), ("lr", 2e-4))),
}

HEADLINE = ("real_success", "fidelity", "error_recall", "optimism", "wrong_writes")


def shipped_tasks(domains: Iterable[str], split: str, limit: int | None = None) -> list[Task]:
    """The shipped tasks of some domains, `limit` from each."""
    return [task for name in domains for task in load_tasks(paths.task_file(name, split))[:limit]]


def versions() -> dict[str, str]:
    """Versions of what a result depends on."""
    packages = ("envace_lite", "torch", "transformers", "peft", "tokenizers", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def as_table(report: Report) -> dict[str, dict[str, list[float | None]]]:
    """A report's summary as plain data: domain -> metric -> [value, low, high]; None where nothing could be counted."""
    table: dict[str, dict[str, list[float | None]]] = {}
    for row in report.summary().reset_index().to_dict("records"):
        numbers = [round(float(row[end]), 4) for end in ("value", "low", "high")]
        table.setdefault(row["domain"], {})[row["metric"]] = [None if math.isnan(x) else x for x in numbers]
    return table


def small_observer(tasks: Sequence[Task]) -> Observer:
    """An observer that deploys and probes the policy on a few tasks while it is trained."""

    def observe(step: int, policy: Policy, _: object) -> dict[str, float]:
        report = evaluate(policy, tasks)
        return {metric: round(report.value(metric), 4) for metric in HEADLINE}

    return observe


def write_record(name: str, record: dict[str, Any], folder: Path | None = None) -> Path:
    """Write a record; the date and the versions are added."""
    path = (folder or paths.RUNS) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    stamped = {"name": name, "date": datetime.now(UTC).date().isoformat(), "versions": versions(), **record}
    path.write_text(json.dumps(stamped, indent=1) + "\n", encoding="utf-8")
    return path


def run_arm(
    policy: Policy,
    arm: str,
    seed: int,
    config: TrainConfig,
    *,
    domains: Sequence[str] = tuple(DOMAINS),
    command: str,
    name: str | None = None,
    folder: Path | None = None,
    workers: int = 1,
) -> tuple[Policy, dict[str, Any]]:
    """Train one arm with one seed, evaluate it, and write its record.

    An interrupted run is continued from its checkpoint. A policy that was recorded before is not trained again.

    Returns:
        The trained policy and the record.
    """
    way = ARMS[arm]
    config = replace(config, seed=seed, **dict(way.changes))
    name = name or f"{arm}-{seed}"
    watched = shipped_tasks(domains, "test", 200 // len(domains))
    trained, log = train(
        policy,
        shipped_tasks(domains, "train"),
        config,
        responder=way.responder(),
        reward=REWARDS[way.reward],
        folder=paths.WORK / name,
        observer=small_observer(watched),
        workers=workers,
    )
    record = {
        "kind": "train",
        "command": command,
        "arm": arm,
        "title": way.title,
        "seed": seed,
        "domains": list(domains),
        "config": asdict(config),
        "totals": log.totals,
        "curve": _thin(log),
        "observed": log.observed,
        "results": evaluate_splits(trained, domains),
    }
    write_record(name, record, folder)
    return trained, record


def _thin(log: TrainLog, every: int = 5) -> list[dict[str, float]]:
    rows = [row for row in log.rows if row["step"] % every == 0 or row["step"] == 1]
    return [{key: round(value, 5) for key, value in row.items()} for row in rows]


def evaluate_splits(policy: Policy, domains: Sequence[str]) -> dict[str, Any]:
    """The full evaluation on test tasks and on held-out tools."""
    return {
        split: as_table(evaluate(policy, shipped_tasks(domains, split))) for split in ("test", "held_out")
    }


# ------------------------------------------------------------------------------------------------ tables


class RecordError(ValueError):
    """A record is missing or broken; the message names the file."""


def load_records(folder: Path | None = None) -> list[dict[str, Any]]:
    """Every record in a folder, sorted by name.

    Raises:
        RecordError: naming the file that is not a record.
    """
    records = []
    for path in sorted((folder or paths.RUNS).glob("*.json")):
        try:
            records.append(json.loads(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise RecordError(
                f"{path} is not a record ({error}); delete it and run its command again"
            ) from error
    return records


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of the seeds with its 95 % interval (Student's t); the ends are NaN for a single seed."""
    column = pd.Series(values, dtype=float).dropna()
    mean, count = float(column.mean()), len(column)
    if count < 2:
        return mean, math.nan, math.nan
    half = float(student.ppf(0.975, count - 1) * column.std() / math.sqrt(count))
    return mean, mean - half, mean + half


def table(
    records: Iterable[dict[str, Any]],
    *,
    split: str = "test",
    metrics: Sequence[str] = HEADLINE,
    domain: str = "all",
) -> pd.DataFrame:
    """Means over the seeds with intervals, one row an arm, for one domain or all of them together."""
    rows: dict[str, dict[str, list[float]]] = {}
    for record in records:
        if "results" not in record or domain not in record["results"].get(split, {}):
            continue
        cells = rows.setdefault(record["title"], {})
        for metric in metrics:
            value = record["results"][split][domain][metric][0]
            cells.setdefault(metric, []).append(math.nan if value is None else value)
        cells.setdefault("environment_calls", []).append(record["totals"]["environment_calls"])
        cells.setdefault("minutes", []).append(record["totals"]["seconds"] / 60)
    lines = []
    for title, cells in rows.items():
        line: dict[str, Any] = {"arm": title, "seeds": len(cells["minutes"])}
        for metric in metrics:
            mean, low, high = mean_interval(cells[metric])
            line[metric] = f"{mean:.3f}" if math.isnan(low) else f"{mean:.3f} ({low:.3f} to {high:.3f})"
        line["environment_calls"] = (
            f"{sum(cells['environment_calls']) / len(cells['environment_calls']):,.0f}"
        )
        line["minutes"] = f"{sum(cells['minutes']) / len(cells['minutes']):.1f}"
        lines.append(line)
    return pd.DataFrame(lines).set_index("arm") if lines else pd.DataFrame()
