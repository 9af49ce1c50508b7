"""Whether a rehearsed world ranks policies as the real one does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from scipy.stats import kendalltau
from tqdm.auto import tqdm

from envace_lite.evaluate import deploy
from envace_lite.experiments.records import write_record
from envace_lite.model.policy import Policy, load_policy
from envace_lite.reward import task_success
from envace_lite.rollout import Simulate, rollout
from envace_lite.world import Task
from envace_lite.world.shipped import shipped_tasks


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
