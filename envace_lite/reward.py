"""Rewards: what a trajectory is worth, judged from the task's label alone.

No reward opens an environment. The final state is judged by the trajectory's own account of it: the calls whose
responses say that something changed. Under world rehearsal these responses are rehearsed.

What is simplified against the paper: its rewards for the benchmarks call their checkers; here an answer and a set of
writes are compared with the label.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from envace_lite.domains import NO_TOOL, UNKNOWN
from envace_lite.rollout import Trajectory
from envace_lite.tools import ToolResponse, as_value

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

    The steps were called in order, an alternative exactly where its step was told to fail (or is forbidden), and each
    answer is the value told last of the record asked for. The rehearsed world judges itself: nothing rewards telling
    the truth.
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
        steps = [step.partition(" else ")[::2] for step in re.split(r" then | and ", wish)]
        if wish.split()[0] in ("reach", "choose"):
            done, wanted = _reached(wish, dict(exchanged), told), told.get(asked, UNKNOWN)
        elif all(call.split()[0] in listed for call, _ in steps):
            done, wanted = _followed(steps, exchanged, forbidden), told.get(asked, UNKNOWN)
        else:
            done, wanted = not exchanged, NO_TOOL
        if not done or answer != wanted:
            return 0.0
    return 1.0


def _reached(wish: str, told: Mapping[str, ToolResponse], state: Mapping[str, str]) -> bool:
    kind, _, rest = wish.partition(" ")
    if kind == "reach":
        key, _, value = rest.partition(":")
        return state.get(key) == value
    options, _, keep = rest.partition(" keep ")
    key, _, least = keep.partition(":")
    done = any(option in told and told[option].error is None for option in options.split(" or "))
    return done and (not keep or as_value(state[key]) >= as_value(least))  # type: ignore[operator]


def _followed(
    steps: Sequence[tuple[str, str]], exchanged: Sequence[tuple[str, ToolResponse]], forbidden: str
) -> bool:
    """Whether the calls are those of the steps, in order, each with its alternative where it was told to fail."""
    made = iter(exchanged)
    for call, otherwise in steps:
        failed = call.split()[0] == forbidden
        if not failed:
            text, response = next(made, ("", None))
            if text != call or response is None:
                return False
            failed = response.error is not None
        if failed and otherwise and otherwise.split()[0] != forbidden and next(made, ("",))[0] != otherwise:
            return False
    return next(made, None) is None


REWARDS: dict[str, Reward] = {
    "task_success": task_success,
    "answer_only": answer_only,
    "end_at_error": end_at_error,
    "self_judged": self_judged,
}
