"""Rewards: what a trajectory is worth, judged from the task's label alone.

No reward opens an environment. The final state is judged by the trajectory's own account of it: the calls whose
responses say that something changed. Under world rehearsal these responses are rehearsed.

What is simplified against the paper: its rewards for the benchmarks call their checkers; here an answer and a set of
writes are compared with the label.
"""

from __future__ import annotations

from collections.abc import Callable

from envace_lite.rollout import Trajectory

Reward = Callable[[Trajectory], float]


def believed_writes(trajectory: Trajectory) -> tuple[str, ...]:
    """The calls that took effect according to their responses, as sorted compact sentences."""
    # Sorted, as in the label: only which calls took effect counts, not their order.
    exchanges = trajectory.exchanges
    return tuple(sorted(call.text for call, told in exchanges if told.changed and not told.error))


def task_success(trajectory: Trajectory) -> float:
    """1 if the answers and the believed writes are those of an acceptable outcome, else 0."""
    answers, writes = tuple(trajectory.answers), believed_writes(trajectory)
    return float(any((o.answers, o.writes) == (answers, writes) for o in trajectory.task.outcomes))


def answer_only(trajectory: Trajectory) -> float:
    """1 if the answers are right, whatever was done on the way."""
    return float(any(o.answers == tuple(trajectory.answers) for o in trajectory.task.outcomes))


def end_at_error(trajectory: Trajectory) -> float:
    """Task success, but 0 as soon as a response is an error: the published code's rule.

    An honest error then never earns more than a cheerful success, so it teaches a simpler world.
    """
    return 0.0 if any(response.error for _, response in trajectory.exchanges) else task_success(trajectory)
