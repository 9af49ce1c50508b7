"""Rewards: what a trajectory is worth, judged from the task's label alone.

No reward opens an environment. The final state is judged by the trajectory's own account of it: the calls whose
responses say that something changed. Under world rehearsal these responses are rehearsed.

What is simplified against the paper: its rewards for the benchmarks call their checkers; here an answer and a set of
writes are compared with the label.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from envace_lite.domains import NO_TOOL, UNKNOWN
from envace_lite.rollout import Trajectory
from envace_lite.tools import ToolResponse

Reward = Callable[[Trajectory], float]


def believed_writes(trajectory: Trajectory) -> tuple[str, ...]:
    """The calls that took effect according to their responses, as sorted compact sentences."""
    effective = [
        call.text for call, response in trajectory.exchanges if response.changed and not response.error
    ]
    return tuple(sorted(effective))


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


def self_judged(trajectory: Trajectory) -> float:
    """1 if the request was carried out as the responses tell it, whatever the label says.

    Each step was called, its alternative exactly when the step was told to fail (or is forbidden), and each answer is
    the value told last of the record asked for. The rehearsed world judges itself: nothing rewards telling the truth.
    """
    task = trajectory.task
    requests = [task.messages[-1]["content"], *task.later_turns]
    if len(trajectory.answers) < len(requests):
        return 0.0
    listed = {tool["function"]["name"] for tool in task.tools}
    forbidden = task.messages[0]["content"].partition(" policy never ")[2]
    told = {key: str(value) for key, value in task.state.items()}
    exchanges = iter(trajectory.exchanges)
    turns: list[list[tuple[str, ToolResponse]]] = [[]]
    for message in trajectory.said:
        if message["role"] == "user":
            turns.append([])
        elif message["role"] == "tool":
            call, response = next(exchanges)
            turns[-1].append((call.text, response))
    for request, exchanged, answer in zip(requests, turns, trajectory.answers, strict=True):
        wish, _, asked = request.rpartition(" report ")
        for _, response in exchanged:
            told |= {key: str(value) for key, value in response.changed.items()}
        done = _carried_out(wish, dict(exchanged), told, listed, forbidden)
        if not done or answer != (NO_TOOL if done == NO_TOOL else told.get(asked, UNKNOWN)):
            return 0.0
    return 1.0


def _carried_out(
    wish: str, told: Mapping[str, ToolResponse], state: Mapping[str, str], listed: set[str], forbidden: str
) -> bool | str:
    """Whether what a user asked for was done, by the responses to the calls that were made; or that no tool fits."""
    kind, _, rest = wish.partition(" ")
    if kind == "reach":
        key, value = rest.split(":")
        return state.get(key) == value
    if kind == "choose":
        options, _, keep = rest.partition(" keep ")
        key, _, least = keep.partition(":")
        done = any(option in told and told[option].error is None for option in options.split(" or "))
        return done and (not keep or int(state[key]) >= int(least))
    steps = [step.partition(" else ")[::2] for step in re.split(r" then | and ", wish)]
    if not all(call.split()[0] in listed for call, _ in steps):
        return NO_TOOL
    for call, otherwise in steps:
        allowed = call.split()[0] != forbidden
        failed = not allowed or (call in told and told[call].error is not None)
        if allowed != (call in told) or (otherwise and (otherwise in told) != failed):
            return False
    return True


REWARDS: dict[str, Reward] = {
    "task_success": task_success,
    "answer_only": answer_only,
    "end_at_error": end_at_error,
    "self_judged": self_judged,
}
