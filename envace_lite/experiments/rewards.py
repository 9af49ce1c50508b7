"""Rewards by name, and one that no sound training would use: the rehearsed world as its own judge."""

from __future__ import annotations

from envace_lite.reward import Reward, answer_only, end_at_error, task_success
from envace_lite.rollout import Trajectory
from envace_lite.world.verifier import DONE, request_status


def self_judged(trajectory: Trajectory) -> float:
    """1 if the requests were carried out as the responses tell it (see `world.verifier`), whatever the label says.

    The rehearsed world judges itself: nothing rewards telling the truth.
    """
    return float(request_status(trajectory.task, trajectory.said) == DONE)


REWARDS: dict[str, Reward] = {
    "task_success": task_success,
    "answer_only": answer_only,
    "end_at_error": end_at_error,
    "self_judged": self_judged,
}
