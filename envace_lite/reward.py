"""Rewards: what a trajectory is worth, judged from the task's label alone.

No reward opens an environment. The final state is judged by the trajectory's own account of it: the calls whose
responses say that something changed, or that a write went well. Under world rehearsal these responses are rehearsed.

What is simplified against the paper: its rewards for the benchmarks call their checkers; here an answer and a set of
writes are compared with the label.
"""

from __future__ import annotations

from collections.abc import Callable

from envace_lite.rollout import Trajectory
from envace_lite.world import get_domain

Reward = Callable[[Trajectory], float]


def believed_writes(trajectory: Trajectory) -> tuple[str, ...]:
    """The calls that took effect according to their responses, as sorted compact sentences."""
    # Sorted, as in the label: only which calls took effect counts, not their order.
    domain = get_domain(trajectory.task.domain)
    return tuple(sorted(call.text for call, told in trajectory.exchanges if domain.took_effect(call, told)))


def task_success(trajectory: Trajectory) -> float:
    """1 if the answers and the believed writes are those of an acceptable outcome, else 0."""
    writes, agree = believed_writes(trajectory), get_domain(trajectory.task.domain).agree
    outcomes = trajectory.task.outcomes
    return float(any(o.writes == writes and agree(trajectory.answers, o.answers) for o in outcomes))


def answer_only(trajectory: Trajectory) -> float:
    """1 if the answers are right, whatever was done on the way."""
    agree = get_domain(trajectory.task.domain).agree
    return float(any(agree(trajectory.answers, o.answers) for o in trajectory.task.outcomes))


def end_at_error(trajectory: Trajectory) -> float:
    """Task success, but 0 as soon as a response is an error: the published code's rule.

    An honest error then never earns more than a cheerful success, so it teaches a simpler world.
    """
    return 0.0 if any(response.error for _, response in trajectory.exchanges) else task_success(trajectory)
