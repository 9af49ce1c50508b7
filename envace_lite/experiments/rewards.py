"""Rewards by name, and labels that tell more or less than the list of writes does.

One of them no sound training would use: the rehearsed world as its own judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from envace_lite.reward import Reward, answer_only, end_at_error, task_success
from envace_lite.rollout import Trajectory
from envace_lite.world import Task, get_domain
from envace_lite.world.tools import parse_calls
from envace_lite.world.verifier import DONE, request_status


def self_judged(trajectory: Trajectory) -> float:
    """1 if the requests were carried out as the responses tell it (see `world.verifier`), whatever the label says.

    The rehearsed world judges itself: nothing rewards telling the truth.
    """
    return float(request_status(trajectory.task, trajectory.said) == DONE)


def answer_and_state(trajectory: Trajectory) -> float:
    """1 if the answers and the believed final state are those of an acceptable outcome.

    A state tells less than a list of writes: one that was told wrongly may be made good by a later one.
    """
    state = dict(trajectory.task.state)
    for _, response in trajectory.exchanges:
        state.update(response.changed)
    return float(
        any(
            o.answers == tuple(trajectory.answers) and {**trajectory.task.state, **o.state} == state
            for o in trajectory.task.outcomes
        )
    )


class EveryVerdict:
    """Task success, where each planned call has to be told to succeed or to fail as it really does.

    Args:
        tasks: whose plans are carried out once on the real environment, to make this label.

    Attributes:
        real_calls: how many calls that took.
    """

    def __init__(self, tasks: Sequence[Task]):
        self.verdicts: dict[str, list[tuple[str, bool]]] = {}
        for task in tasks:
            session = get_domain(task.domain).reset(task)
            calls = [call for turn in task.plan for text in turn for call in parse_calls(text, task.tools)]
            self.verdicts[task.id] = [(call.text, session.call(call).error is None) for call in calls]
        self.real_calls = sum(map(len, self.verdicts.values()))

    def __call__(self, trajectory: Trajectory) -> float:
        """A trajectory with other calls than the plan's is judged by its answers and writes alone."""
        told = [(call.text, response.error is None) for call, response in trajectory.exchanges]
        real = self.verdicts[trajectory.task.id]
        planned = [call for call, _ in told] == [call for call, _ in real]
        return 0.0 if planned and told != real else task_success(trajectory)


def drawn(mean: float, seed: int) -> Reward:
    """A reward that knows nothing: 1 with a fixed probability, drawn anew for each different trajectory."""

    def reward(trajectory: Trajectory) -> float:
        digest = crc32(f"{seed} {trajectory.task.id} {trajectory.ids} {sum(trajectory.log_probs)}".encode())
        return float(digest < mean * 2**32)

    reward.__name__ = f"drawn_{mean}_{seed}"
    return reward


REWARDS: dict[str, Reward] = {
    "task_success": task_success,
    "answer_only": answer_only,
    "end_at_error": end_at_error,
    "self_judged": self_judged,
}
