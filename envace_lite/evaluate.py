"""Evaluation: the policy deployed on the real environment, and its rehearsed world next to the real one.

Every figure comes with a bootstrap interval that is clustered by task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from envace_lite import fidelity
from envace_lite.fidelity.measures import Counts, counts, interval, ratio
from envace_lite.model.policy import Policy
from envace_lite.reward import task_success
from envace_lite.rollout import Execute, Responder, Trajectory, rollout
from envace_lite.world import Task, get_domain

METRICS = {
    "real_success": "share of the tasks that end in the right state with the right answer",
    "rehearsed_success": "task success of the same policy in its own rehearsed world",
    "deployment_gap": "rehearsed success minus real success",
    "wm2real": "share of the tasks solved by making the calls, and giving the answers, of the rehearsed episode",
    "consistency": "wm2real over real success",
    "committed_calls": "calls that reached the real environment, a task",
    "wrong_writes": "committed writes that took effect and belong to no acceptable outcome, a task",
    **fidelity.PAIR_METRICS,
    "tool_precision": "share of the committed calls whose tool the plan calls",
    "tool_recall": "share of the plan's calls whose tool is called",
    "tool_f1": "their harmonic mean",
}
"""What is reported, in this order. `wm2real` and the consistency ratio: Word2World (arXiv 2512.18832)."""


@dataclass
class Report:
    """The result of an evaluation.

    Args:
        tasks: one row a task: how it went on the real environment.
        pairs: one row a probe pair: rehearsed next to real (`fidelity.compare`).
    """

    tasks: pd.DataFrame
    pairs: pd.DataFrame

    def summary(self, resamples: int = 1000) -> pd.DataFrame:
        """Value with the ends of its 95 % interval for each metric: for all tasks, each domain, each kind of task."""
        names = (*self.tasks.domain.unique(), *self.tasks.kind.unique())
        groups = {"all": self} | {name: self.only(name) for name in names}
        rows = [
            {"domain": name, "metric": metric, **interval(report.counts(metric), resamples)}
            for name, report in groups.items()
            for metric in METRICS
        ]
        return pd.DataFrame(rows).set_index(["domain", "metric"])

    def only(self, group: str) -> Report:
        """The part about one domain or one kind of task."""
        tasks = self.tasks[(self.tasks.domain == group) | (self.tasks.kind == group)]
        return Report(tasks, self.pairs[self.pairs.task.isin(tasks.task)])

    def value(self, metric: str) -> float:
        """One metric over everything in the report."""
        return ratio(self.counts(metric))

    def counts(self, metric: str) -> Counts:
        """Numerator and denominator of a metric for each task."""
        if metric in fidelity.PAIR_METRICS:
            return counts(self.pairs, metric)
        numbers = self.tasks.drop(columns=["task", "domain", "kind"], errors="ignore").astype(float)
        column = {name: numbers[name].to_numpy() for name in numbers}
        # A mean over the tasks is a ratio, too: its denominator is 1 for each.
        if metric in column:
            return column[metric], np.ones(len(self.tasks))
        if metric == "deployment_gap":
            return column["rehearsed_success"] - column["real_success"], np.ones(len(self.tasks))
        # The others are ratios of sums over all tasks, so a task with many calls weighs more.
        if metric == "consistency":
            return column["wm2real"], column["real_success"]
        wanted, made, both = (column[c] for c in ("plan_calls", "committed_calls", "matched_calls"))
        parts = {"precision": (both, made), "recall": (both, wanted), "f1": (2 * both, made + wanted)}
        return parts[metric.removeprefix("tool_")]

    def _repr_html_(self) -> str:
        return str(self.summary().value.unstack(0).reindex(list(METRICS)).round(3).to_html())

    def __repr__(self) -> str:
        return f"<Report: {len(self.tasks)} tasks, real success {self.value('real_success'):.3f}>"


def deploy(
    policy: Policy, tasks: Sequence[Task], responder: Execute | None = None
) -> tuple[list[Trajectory], pd.DataFrame]:
    """Run each task once on the real environment with greedy decoding."""
    responder = responder or Execute()
    trajectories = rollout(policy, tasks, responder, temperature=0.0)
    rows = []
    for trajectory, session in zip(trajectories, responder.sessions, strict=True):
        task, result = trajectory.task, session.verify(trajectory.answers)
        # Multisets: a right write that is made twice is wrong once. Counted against the outcome that fits best.
        domain = get_domain(task.domain)
        effective = Counter(c.text for c, told in trajectory.exchanges if domain.took_effect(c, told))
        wrong = min((effective - Counter(outcome.writes)).total() for outcome in task.outcomes)
        # Calls beside those of the plan, by the tool's name alone: another order of the calls is no fault.
        plan = Counter(text.split()[0] for turn in task.plan for text in turn)
        made = Counter(call.name for call, _ in trajectory.exchanges)
        about = {"task": task.id, "domain": task.domain, "kind": task.tags[0]}
        ended = {"real_success": result.success, "right_answer": result.answer, "right_state": result.state}
        calls = {"committed_calls": made.total(), "wrong_writes": wrong}
        beside = {"plan_calls": plan.total(), "matched_calls": (plan & made).total()}
        rows.append({**about, **ended, **calls, **beside})
    return trajectories, pd.DataFrame(rows)


def rehearsed_alone(policy: Policy, tasks: Sequence[Task], world: Responder | None = None) -> pd.DataFrame:
    """Run each task once in the policy's own rehearsed world, greedily, and see what comes of the same calls really.

    Returns:
        One row a task: `rehearsed_success`, and `wm2real`, real success when the environment carries out the calls of
        that episode and the answers are those given there.
    """
    rows = []
    for trajectory in rollout(policy, tasks, world, temperature=0.0):
        # The episode is over. Only now is the real environment opened, and its responses are read by nobody.
        session = get_domain(trajectory.task.domain).reset(trajectory.task)
        for call, _ in trajectory.exchanges:
            session.call(call)
        result = session.verify(trajectory.answers)
        rows.append({"rehearsed_success": task_success(trajectory), "wm2real": float(result.success)})
    return pd.DataFrame(rows)


def evaluate(
    policy: Policy,
    tasks: Sequence[Task],
    *,
    seed: int = 0,
    real: Execute | None = None,
    rehearsed: Responder | None = None,
) -> Report:
    """Real success, committed calls, wrong writes, rehearsed success and fidelity on some tasks.

    Args:
        tasks: usually a test or held-out split.
        seed: of the probe pairs.
        real, rehearsed: responders of the two worlds; by default those without any addition.
    """
    deployed = deploy(policy, tasks, real)[1].join(rehearsed_alone(policy, tasks, rehearsed))
    return Report(deployed, fidelity.probe(policy, tasks, seed))
