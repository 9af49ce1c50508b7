"""Studies: the same training in several ways, over several seeds, each recorded in one small file."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import kendalltau
from tqdm.auto import tqdm

from envace_lite import fidelity
from envace_lite.evaluate import Report, deploy, evaluate
from envace_lite.experiments.records import read_records, without_nan, write_record
from envace_lite.experiments.rewards import REWARDS
from envace_lite.experiments.thinking import ThinkingExecute, ThinkingRehearse
from envace_lite.fidelity import by_depth, probe, probe_pairs
from envace_lite.fidelity.measures import counts, ratio
from envace_lite.model.checkpoint import claimed
from envace_lite.model.policy import Policy, load_policy
from envace_lite.reward import task_success
from envace_lite.rollout import Execute, Rehearse, Responder, Simulate, rollout
from envace_lite.train import EvalCallback, TrainConfig, TrainLog, train
from envace_lite.world import DOMAINS, Task, paths
from envace_lite.world.shipped import shipped_tasks

Evaluator = Callable[[Policy, Sequence[Task]], Report]


@dataclass(frozen=True)
class Arm:
    """One way of training.

    Args:
        title: how it is called in tables and figures.
        responder: makes the responder of the training.
        reward: a name in `rewards.REWARDS`.
        changes: what differs in the configuration.
        real, rehearsed: make the responders with which the trained policy is evaluated in the two worlds.
    """

    title: str
    responder: Callable[[], Responder] = Rehearse
    reward: str = "task_success"
    changes: tuple[tuple[str, Any], ...] = ()
    real: Callable[[], Execute] = Execute
    rehearsed: Callable[[], Responder] = Rehearse

    def evaluate(self, policy: Policy, tasks: Sequence[Task]) -> Report:
        """Evaluate a policy that was trained in this way."""
        return evaluate(policy, tasks, real=self.real(), rehearsed=self.rehearsed())


ARMS = {
    "rehearsal": Arm("world rehearsal, task success"),
    "execute": Arm("executable environment, act role trained", responder=Execute),
    "end_at_error": Arm("world rehearsal, episode ends at a rehearsed error", reward="end_at_error"),
    "act_only": Arm("world rehearsal, loss on the act role alone", changes=(("train_rehearse", False),)),
    "full": Arm("world rehearsal, all weights", changes=(("lora_rank", 0), ("lr", 2e-4))),
    "scratch": Arm(
        "world rehearsal, scratchpad before each call",
        responder=ThinkingRehearse,
        real=ThinkingExecute,
        rehearsed=ThinkingRehearse,
    ),
}

COUNTS = ("wrong_writes", "committed_calls", "deployment_gap", "consistency")
"""The metrics that are no shares: they can be above one, or below zero."""
HEADLINE = ("real_success", "fidelity", "error_recall", "optimism", "wrong_writes")
OBSERVED = (*HEADLINE, "rehearsed_success", "fidelity_success", "fidelity_error")


def by_group(report: Report) -> dict[str, dict[str, list[float | None]]]:
    """A report's summary as plain data: group -> metric -> [value, low, high]; None where nothing could be counted.

    The groups are `all`, the domains, and the kinds of task.
    """
    table: dict[str, dict[str, list[float | None]]] = {}
    for row in report.summary().reset_index().to_dict("records"):
        numbers = [round(float(row[end]), 4) for end in ("value", "low", "high")]
        table.setdefault(row["domain"], {})[row["metric"]] = [None if math.isnan(x) else x for x in numbers]
    return table


def small_eval(
    tasks: Sequence[Task], held_out: Sequence[Task] = (), evaluator: Evaluator = evaluate
) -> EvalCallback:
    """An eval callback that deploys and probes the policy on a few tasks while it is trained.

    Besides the metrics of `OBSERVED` it notes fidelity by depth (`fidelity_depth_0` to `_3`), and with `held_out` tasks
    the fidelity and error recall there.
    """

    def observe(step: int, policy: Policy, _: object) -> dict[str, float]:
        report = evaluator(policy, tasks)
        seen = {metric: report.value(metric) for metric in OBSERVED}
        for depth, value in by_depth(report.pairs).fidelity.head(4).items():
            seen[f"fidelity_depth_{depth}"] = value
        if held_out:
            frame = probe(policy, held_out)
            seen |= {f"held_out_{m}": ratio(counts(frame, m)) for m in ("fidelity", "error_recall")}
        return {name: round(value, 4) for name, value in seen.items()}

    return observe


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
    """Train one arm with one seed, evaluate it, and write its record; the policy itself goes to .work/NAME/policy.

    An interrupted run is continued from its checkpoint. A policy that was recorded before is not trained again.

    Returns:
        The trained policy and the record.
    """
    way = ARMS[arm]
    config = replace(config, seed=seed, **dict(way.changes))
    name = name or f"{arm}-{seed}"
    watched, responder = shipped_tasks(domains, "test", 120 // len(domains)), way.responder()
    unfamiliar = shipped_tasks(domains, "held_out", 60 // len(domains))
    with claimed(paths.WORK / name):  # also while it is evaluated, when its policy and its record are written
        trained, log = train(
            policy,
            shipped_tasks(domains, "train"),
            config,
            responder=responder,
            reward=REWARDS[way.reward],
            folder=paths.WORK / name,
            eval_callback=small_eval(watched, unfamiliar, way.evaluate),
            workers=workers,
        )
        trained.save(paths.WORK / name / "policy")
        about = {
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
            "results": evaluate_splits(trained, domains, way.evaluate),
            "probe": probe_splits(trained, domains),
        }
        record = without_nan(about)
        write_record(name, record, folder)
    return trained, record


def _thin(log: TrainLog, every: int = 5) -> list[dict[str, float]]:
    rows = [row for row in log.rows if row["step"] % every == 0 or row["step"] == 1]
    return [{key: round(value, 5) for key, value in row.items()} for row in rows]


def evaluate_splits(
    policy: Policy, domains: Sequence[str], evaluator: Evaluator = evaluate
) -> dict[str, Any]:
    """The full evaluation on test tasks and on held-out tools."""
    return {
        split: by_group(evaluator(policy, shipped_tasks(domains, split))) for split in ("test", "held_out")
    }


def probe_splits(policy: Policy, domains: Sequence[str], limit: int = 100) -> dict[str, Any]:
    """The full probe on `limit` test tasks and as many with held-out tools of each domain."""
    known = probe_pairs(shipped_tasks(domains, "train", limit))
    return {
        split: fidelity.report(policy, shipped_tasks(domains, split, limit), known=known).to_record()
        for split in ("test", "held_out")
    }


def rank_agreement(
    policies: Mapping[str, Policy], world: Policy, tasks: Sequence[Task]
) -> tuple[pd.DataFrame, float]:
    """Whether a rehearsed world ranks policies as the real one does.

    Args:
        policies: who act.
        world: whose rehearse role answers all of them.

    Returns:
        By policy: real success, and task success when `world` answers; and Kendall's tau of the two columns.
    """
    rows = {}
    for name, policy in policies.items():
        real = deploy(policy, tasks)[1].real_success.mean()
        trajectories = rollout(policy, tasks, Simulate(world), temperature=0.0)
        rows[name] = {"real": real, "rehearsed": sum(map(task_success, trajectories)) / len(tasks)}
    table = pd.DataFrame(rows).T
    return table, float(kendalltau(table.real, table.rehearsed).statistic)


def record_ranks(
    folders: Mapping[str, Path],
    worlds: Sequence[str],
    domains: Sequence[str],
    limit: int | None,
    *,
    command: str,
) -> pd.DataFrame:
    """Whether rehearsed worlds rank policies as the real one does; written to the record `ranks`.

    Args:
        folders: the policies who act, by name.
        worlds: names of those whose rehearse role answers, for all of them.
        limit: test tasks of each domain.

    Returns:
        By policy: real success, and task success in each world.
    """
    policies = {name: load_policy(folder) for name, folder in folders.items()}
    tasks = shipped_tasks(domains, "test", limit)
    columns, taus = {}, {}
    for world in tqdm(worlds, desc="worlds", unit="world"):
        table, taus[world] = rank_agreement(policies, policies[world], tasks)
        columns["real"], columns[world] = table.real, table.rehearsed
    frame = pd.DataFrame(columns)
    record = {"kind": "ranks", "command": command, "seed": 0, "domains": list(domains), "tasks": len(tasks)}
    write_record("ranks", {**record, "success": frame.round(4).to_dict("index"), "kendall_tau": taus})
    return frame


def load_records(folder: Path | None = None) -> list[dict[str, Any]]:
    """Every record in a folder: what is no arm first, then the arms in their order; within these by name.

    Raises:
        RecordError: naming the file that is not a record.
    """
    order = list(ARMS)
    return sorted(read_records(folder), key=lambda r: order.index(r["arm"]) if r.get("arm") in ARMS else -1)


def run_name(arm: str, domains: list[str], steps: int, seed: int) -> str:
    """How a run is recorded; `domains` if they are not all."""
    from envace_lite.train import TrainConfig

    unusual = [f"{steps}steps"] if steps != TrainConfig().steps else []
    return "-".join([arm, *domains, *unusual, str(seed)])
