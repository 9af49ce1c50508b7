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
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import t as student

from envace_lite import paths
from envace_lite.domains import DOMAINS, Task, load_tasks
from envace_lite.evaluate import Report, evaluate
from envace_lite.policy import Policy
from envace_lite.rehearsal.controls import DRAFTS
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
    "scratch": Arm(
        "world rehearsal, free thinking before each call", responder=partial(Rehearse, drafts=DRAFTS)
    ),
}

COUNTS = ("wrong_writes", "committed_calls")
"""The metrics that are no shares."""
HEADLINE = ("real_success", "fidelity", "error_recall", "optimism", "wrong_writes")


def shipped_tasks(domains: Iterable[str], split: str, limit: int | None = None) -> list[Task]:
    """The shipped tasks of some domains, `limit` from each."""
    return [task for name in domains for task in load_tasks(paths.task_file(name, split))[:limit]]


def versions() -> dict[str, str]:
    """Versions of what a result depends on."""
    packages = ("envace_lite", "torch", "transformers", "peft", "tokenizers", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def as_table(report: Report) -> dict[str, dict[str, list[float | None]]]:
    """A report's summary as plain data: group -> metric -> [value, low, high]; None where nothing could be counted.

    The groups are `all`, the domains, and the kinds of task.
    """
    table: dict[str, dict[str, list[float | None]]] = {}
    for row in report.summary().reset_index().to_dict("records"):
        numbers = [round(float(row[end]), 4) for end in ("value", "low", "high")]
        table.setdefault(row["domain"], {})[row["metric"]] = [None if math.isnan(x) else x for x in numbers]
    return table


def small_observer(tasks: Sequence[Task], drafts: int = 0) -> Observer:
    """An observer that deploys and probes the policy on a few tasks while it is trained."""

    def observe(step: int, policy: Policy, _: object) -> dict[str, float]:
        report = evaluate(policy, tasks, drafts=drafts)
        return {metric: round(report.value(metric), 4) for metric in HEADLINE}

    return observe


def write_record(name: str, record: dict[str, Any], folder: Path | None = None) -> Path:
    """Write a record; the date and the versions are added."""
    path = (folder or paths.RUNS) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    stamped = {"name": name, "date": datetime.now(UTC).date().isoformat(), "versions": versions(), **record}
    path.write_text(json.dumps(_plain(stamped), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return path


def _plain(value: Any) -> Any:
    """The same without NaN, which other readers of JSON refuse: None stands for what could not be counted."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and math.isnan(value) else value


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
    watched, responder = shipped_tasks(domains, "test", 120 // len(domains)), way.responder()
    trained, log = train(
        policy,
        shipped_tasks(domains, "train"),
        config,
        responder=responder,
        reward=REWARDS[way.reward],
        folder=paths.WORK / name,
        observer=small_observer(watched, responder.drafts),
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
        "results": evaluate_splits(trained, domains, responder.drafts),
    }
    write_record(name, record, folder)
    return trained, record


def _thin(log: TrainLog, every: int = 5) -> list[dict[str, float]]:
    rows = [row for row in log.rows if row["step"] % every == 0 or row["step"] == 1]
    return [{key: round(value, 5) for key, value in row.items()} for row in rows]


def evaluate_splits(policy: Policy, domains: Sequence[str], drafts: int = 0) -> dict[str, Any]:
    """The full evaluation on test tasks and on held-out tools."""
    return {
        split: as_table(evaluate(policy, shipped_tasks(domains, split), drafts=drafts))
        for split in ("test", "held_out")
    }


# ------------------------------------------------------------------------------------------------ tables


class RecordError(ValueError):
    """A record is missing or broken; the message names the file."""


def load_records(folder: Path | None = None) -> list[dict[str, Any]]:
    """Every record in a folder: what is no arm first, then the arms in their order; within these by name.

    Raises:
        RecordError: naming the file that is not a record.
    """
    records = []
    for path in sorted((folder or paths.RUNS).glob("*.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(record, dict):
                raise ValueError("it is no JSON object")
            records.append(record)
        except ValueError as error:
            raise RecordError(
                f"{path} is not a record ({error}); delete it and run its command again"
            ) from error
    order = list(ARMS)
    return sorted(records, key=lambda r: order.index(r["arm"]) if r.get("arm") in ARMS else -1)


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
    """Means over the seeds with intervals, one row an arm, for one domain, one kind of task, or `all`."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if domain in record.get("results", {}).get(split, {}):
            rows.setdefault(_row(record), []).append(record)
    lines = []
    for title, runs in rows.items():
        line: dict[str, Any] = {"arm": title, "seeds": len(runs)}
        for metric in metrics:
            values = [run["results"][split][domain][metric][0] for run in runs]
            line[metric] = with_interval(values, share=metric not in COUNTS)
        for name, scale, form in (("environment_calls", 1, "{:,.0f}"), ("seconds", 60, "{:.1f}")):
            totals = [run["totals"][name] / scale for run in runs if "totals" in run]
            line[{"seconds": "minutes"}.get(name, name)] = (
                form.format(sum(totals) / len(totals)) if totals else "-"
            )
        lines.append(line)
    return pd.DataFrame(lines).set_index("arm") if lines else pd.DataFrame()


def _row(record: dict[str, Any]) -> str:
    """What a record is a seed of: runs of another length or on fewer domains are not averaged with the study's."""
    label = str(record["title"])
    if len(record["domains"]) != len(DOMAINS):
        label += f", {' and '.join(record['domains'])}"
    steps = record.get("config", {}).get("steps", TrainConfig().steps)
    return label if steps == TrainConfig().steps else f"{label}, {steps} steps"


def with_interval(values: Sequence[float | None], share: bool = False) -> str:
    """Mean and interval as a short text, cut to what is possible for a share; no interval for a single value."""
    mean, low, high = mean_interval([math.nan if value is None else value for value in values])
    if share:
        low, high = max(low, 0.0), min(high, 1.0)
    return f"{mean:.3f}" if len(values) < 2 or math.isnan(low) else f"{mean:.3f} ({low:.3f} to {high:.3f})"


def markdown(frame: pd.DataFrame) -> str:
    """A frame of texts as a markdown table."""
    rows = [[str(frame.index.name or ""), *frame.columns], ["---"] * (len(frame.columns) + 1)]
    rows += [[str(index), *map(str, row)] for index, row in zip(frame.index, frame.to_numpy(), strict=True)]
    return "\n".join("| " + " | ".join(cell.replace("_", " ") for cell in row) + " |" for row in rows)


def demo_table(records: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """What the recorded demos brought: before, after and the change, one row a domain and metric."""
    demos: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if record.get("kind") == "demo":
            demos.setdefault(f"{record['domains'][0]}, {record['config']['steps']} steps", []).append(record)
    lines = []
    for title, runs in demos.items():
        for metric in HEADLINE:
            before, after = ([run[when][metric][0] for run in runs] for when in ("before", "after"))
            line: dict[str, Any] = {"demo": title, "seeds": len(runs), "metric": metric}
            line |= {
                "before": f"{before[0]:.3f}",
                "after": with_interval(after),
            }  # every demo starts from the base
            line["change"] = with_interval([b - a for a, b in zip(before, after, strict=True)])
            lines.append(line)
    return pd.DataFrame(lines).set_index("demo") if lines else pd.DataFrame()


def readme_tables(folder: Path | None = None) -> str:
    """The tables of the README, made from the records alone."""
    every = load_records(folder)
    records = [r for r in every if len(r.get("domains", [])) == len(DOMAINS) and "results" in r]
    shown = [r for r in records if r.get("arm", "base") in ("base", "rehearsal")]
    parts = ["**All four domains, test tasks**", markdown(table(records))]
    parts += ["**The same on held-out tools**", markdown(table(records, split="held_out"))]
    for split in ("test", "held_out"):
        lines = {}
        for domain in DOMAINS:
            by_arm = table(shown, split=split, domain=domain, metrics=HEADLINE)
            for arm, row in by_arm.iterrows():
                lines[f"{domain}, {arm}"] = row[list(HEADLINE)]
        frame = pd.DataFrame(lines).T.rename_axis("domain")
        parts += [f"**By domain, {'test tasks' if split == 'test' else 'held-out tools'}**", markdown(frame)]
    kinds = {}
    for kind in ("instructions", "goal"):
        for arm, row in table(records, domain=kind).iterrows():
            kinds[f"{kind}, {arm}"] = row[list(HEADLINE)]
    if kinds:
        parts += ["**By kind of task, test tasks**", markdown(pd.DataFrame(kinds).T.rename_axis("kind"))]
    demos = demo_table(every)
    if len(demos):
        parts += ["**The demo**", markdown(demos)]
    return "\n\n".join(parts)
