"""Evaluation: the policy deployed on the real environment, and its rehearsed world next to the real one.

Every figure comes with a bootstrap interval that is clustered by task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import bootstrap

from envace_lite.domains import Task
from envace_lite.fidelity import probe
from envace_lite.policy import Policy
from envace_lite.rollout import Execute, Trajectory, rollout

METRICS = {
    "real_success": "share of the tasks that end in the right state with the right answer",
    "committed_calls": "calls that reached the real environment, a task",
    "wrong_writes": "committed writes that took effect and belong to no acceptable outcome, a task",
    "fidelity": "share of the rehearsed responses that equal the real one in every word",
    "fidelity_success": "the same where the real response is a success",
    "fidelity_error": "the same where the real response is an error",
    "error_recall": "share of the real errors that are rehearsed as an error",
    "error_precision": "share of the rehearsed errors that are real",
    "optimism": "P(rehearsed success | real error)",
    "pessimism": "P(rehearsed error | real success)",
    "tool_precision": "share of the committed calls whose tool the plan calls",
    "tool_recall": "share of the plan's calls whose tool is called",
    "tool_f1": "their harmonic mean",
}
"""What is reported, in this order."""


@dataclass
class Report:
    """The result of an evaluation.

    Args:
        tasks: one row a task: how it went on the real environment.
        pairs: one row a probe pair: rehearsed next to real (`fidelity.compare`).
    """

    tasks: pd.DataFrame
    pairs: pd.DataFrame

    def summary(self, by_group: bool = True, resamples: int = 1000) -> pd.DataFrame:
        """Value with the ends of its 95 % interval for each metric: for all tasks, each domain, each kind of task."""
        groups = {"all": self} | ({name: self.only(name) for name in self.groups()} if by_group else {})
        rows = [
            {"domain": name, "metric": metric, **_interval(report.counts(metric), resamples)}
            for name, report in groups.items()
            for metric in METRICS
        ]
        return pd.DataFrame(rows).set_index(["domain", "metric"])

    def groups(self) -> list[str]:
        """The domains and the kinds of task (`instructions`, `goal`) that occur."""
        return [*self.tasks.domain.unique(), *self.tasks.kind.unique()]

    def only(self, group: str) -> Report:
        """The part about one domain or one kind of task."""
        tasks = self.tasks[(self.tasks.domain == group) | (self.tasks.kind == group)]
        return Report(tasks, self.pairs[self.pairs.task.isin(tasks.task)])

    def value(self, metric: str) -> float:
        """One metric over everything in the report."""
        return _ratio(*(counts.sum() for counts in self.counts(metric)))

    def by_depth(self) -> pd.DataFrame:
        """Fidelity and optimism by the number of calls before."""
        errors = self.pairs[self.pairs.real_error]
        table = self.pairs.groupby("depth").agg(pairs=("exact", "size"), fidelity=("exact", "mean"))
        return table.join(errors.groupby("depth").agg(optimism=("rehearsed_success", "mean")))

    def counts(self, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """Numerator and denominator of a metric for each task."""
        tasks, pairs = self.tasks, self.pairs
        if metric in tasks:
            return tasks[metric].to_numpy(float), np.ones(len(tasks))
        if metric.startswith("tool_"):
            wanted, made, both = (
                tasks[c].to_numpy(float) for c in ("plan_calls", "committed_calls", "matched_calls")
            )
            return {"precision": (both, made), "recall": (both, wanted), "f1": (2 * both, made + wanted)}[
                metric[5:]
            ]
        flags = {
            "fidelity": (pairs.exact, pairs.exact | True),
            "fidelity_success": (pairs.exact, ~pairs.real_error),
            "fidelity_error": (pairs.exact, pairs.real_error),
            "error_recall": (pairs.rehearsed_error, pairs.real_error),
            "error_precision": (pairs.real_error, pairs.rehearsed_error),
            "optimism": (pairs.rehearsed_success, pairs.real_error),
            "pessimism": (pairs.rehearsed_error, ~pairs.real_error),
        }
        hit, where = flags[metric]
        sums = pd.DataFrame({"hit": hit & where, "where": where, "task": pairs.task}).groupby("task").sum()
        return sums.hit.to_numpy(float), sums["where"].to_numpy(float)

    def _repr_html_(self) -> str:
        return str(self.summary().value.unstack(0).reindex(list(METRICS)).round(3).to_html())

    def __repr__(self) -> str:
        return f"<Report: {len(self.tasks)} tasks, real success {self.value('real_success'):.3f}>"


def _ratio(numerator: float, denominator: float) -> float:
    return float(numerator / denominator) if denominator else float("nan")


def _interval(counts: tuple[np.ndarray, np.ndarray], resamples: int) -> dict[str, float]:
    numerator, denominator = counts
    value = _ratio(numerator.sum(), denominator.sum())
    used = denominator > 0
    if used.sum() < 2 or len(set(numerator[used] / denominator[used])) == 1:
        return {"value": value, "low": value, "high": value}

    def statistic(n: np.ndarray, d: np.ndarray, axis: int) -> np.ndarray:
        return np.asarray(n.sum(axis) / d.sum(axis))

    result = bootstrap(
        (numerator[used], denominator[used]),
        statistic,
        paired=True,
        vectorized=True,
        n_resamples=resamples,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    low, high = result.confidence_interval
    return {"value": value, "low": float(low), "high": float(high)}


def deploy(
    policy: Policy, tasks: Sequence[Task], *, drafts: int = 0
) -> tuple[list[Trajectory], pd.DataFrame]:
    """Run each task once on the real environment with greedy decoding.

    Args:
        drafts: as many as the policy was trained with (see `Responder.drafts`).
    """
    responder = Execute(drafts=drafts)
    trajectories = rollout(policy, tasks, responder, temperature=0.0)
    rows = []
    for trajectory, session in zip(trajectories, responder.sessions, strict=True):
        task = trajectory.task
        verdict = session.verify(trajectory.answers)
        effective = Counter(call.text for call, response in trajectory.exchanges if response.changed)
        wrong = min((effective - Counter(outcome.writes)).total() for outcome in task.outcomes)
        plan = Counter(text.split()[0] for turn in task.plan for text in turn)
        made = Counter(call.name for call, _ in trajectory.exchanges)
        rows.append(
            {
                "task": task.id,
                "domain": task.domain,
                "kind": task.tags[0],
                "real_success": verdict.success,
                "right_answer": verdict.answer,
                "right_state": verdict.state,
                "committed_calls": made.total(),
                "wrong_writes": wrong,
                "plan_calls": plan.total(),
                "matched_calls": (plan & made).total(),
            }
        )
    return trajectories, pd.DataFrame(rows)


def evaluate(policy: Policy, tasks: Sequence[Task], *, seed: int = 0, drafts: int = 0) -> Report:
    """Real success, committed calls, wrong writes and fidelity on some tasks.

    Args:
        tasks: usually a test or held-out split.
        seed: of the probe pairs.
        drafts: as for `deploy`.
    """
    return Report(deploy(policy, tasks, drafts=drafts)[1], probe(policy, tasks, seed))
