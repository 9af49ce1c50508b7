"""One compact row a task: what is kept of a policy that was deployed and asked, for tables, curves and intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from envace_lite.evaluate import deploy, rehearsed_alone
from envace_lite.fidelity import ask, compare, probe_pairs
from envace_lite.fidelity.parts import parts
from envace_lite.model.policy import Policy
from envace_lite.rollout import Execute, Rehearse, Responder
from envace_lite.train import EvalCallback
from envace_lite.world import Task
from envace_lite.world.toy import NEWS

Rows = dict[str, list[int]]
"""Columns by name, each with one number a task."""
MEASURES = {
    "real_success": ("real", ""),
    "rehearsed_success": ("rehearsed", ""),
    "wm2real": ("carried_out", ""),
    "consistency": ("carried_out", "real"),
    "wrong_writes": ("wrong", ""),
    "fidelity": ("exact", "pairs"),
    "bearing": ("bearing_right", "bearing"),
    "idle": ("idle_right", "idle"),
    "contents": ("contents", "successes"),
    "error_recall": ("recalled", "errors"),
    "pessimism": ("refused", "successes"),
}
"""What is reported: the columns of `measure` that are divided by one another ("": by the number of tasks)."""
GROUPS = ("goal", "secret", *(f"new:{what}" for what in NEWS))
"""The tags by which tasks are looked at apart."""


def measure(
    policy: Policy, tasks: Sequence[Task], real: Execute | None = None, rehearsed: Responder | None = None
) -> Rows:
    """One compact row a task, as columns in the order of the tasks.

    `real`, `rehearsed`: success in the two worlds (1 or 0). `carried_out`: whether the calls and answers of the
    rehearsed episode succeed in the real world. `wrong`: wrong writes. `pairs`, `exact`: probe pairs and
    those told right in every word; `errors`, `recalled`: real errors among them and those told as an error;
    `successes`, `refused`: real successes and those told as an error; `contents`: real successes told right in every
    word. `bearing`, `bearing_right`: parts of planned responses on which decisions rest, and those told right; `idle`,
    `idle_right`: the other parts. And for each of `GROUPS` whether the task belongs to it (1 or 0).

    Args:
        real, rehearsed: responders of the two worlds; by default those without any addition.
    """
    frame = deploy(policy, tasks, real)[1].set_index("task")
    alone = rehearsed_alone(policy, tasks, rehearsed).set_index(frame.index)
    pairs = probe_pairs(tasks)
    responses = [answer.response for answer in ask(policy, pairs)]
    told = compare(pairs, responses)
    flags = pd.DataFrame(
        {
            "task": told.task,
            "pairs": 1,
            "exact": told.exact,
            "errors": told.real_error,
            "recalled": told.real_error & told.rehearsed_error,
            "successes": ~told.real_error,
            "refused": ~told.real_error & told.rehearsed_error,
            "contents": ~told.real_error & told.exact,
        }
    )
    each = parts(policy, pairs, responses)
    halves = pd.DataFrame(
        {
            "task": each.task,
            "bearing": each.bearing,
            "bearing_right": each.bearing & each.right,
            "idle": ~each.bearing,
            "idle_right": ~each.bearing & each.right,
        }
    )
    table = pd.DataFrame(
        {
            "real": frame.real_success,
            "rehearsed": alone.rehearsed_success,
            "carried_out": alone.wm2real,
            "wrong": frame.wrong_writes,
        }
    )
    for columns in (flags, halves):
        table = table.join(columns.groupby("task").sum())
    ordered = table.reindex([task.id for task in tasks]).fillna(0).astype(int)
    return {**{str(name): column.tolist() for name, column in ordered.items()}, **groups(tasks)}


def groups(tasks: Sequence[Task]) -> dict[str, list[int]]:
    """For each of `GROUPS` which of some tasks belong to it (1 or 0)."""
    return {tag: [int(tag in task.tags) for task in tasks] for tag in GROUPS}


def value(rows: Mapping[str, Sequence[int]], name: str) -> float:
    """One measure over some tasks; NaN where nothing can be counted."""
    over, under = MEASURES[name]
    size = sum(rows[under]) if under else len(rows[over])
    return sum(rows[over]) / size if size else float("nan")


def small_eval(
    tasks: Sequence[Task],
    held_out: Sequence[Task] = (),
    real: Callable[[], Execute] = Execute,
    rehearsed: Callable[[], Responder] = Rehearse,
) -> EvalCallback:
    """An eval callback: every one of `MEASURES` on a few tasks, and as `held_out_...` on others.

    Args:
        real, rehearsed: make the responders of the two worlds.
    """

    def observe(step: int, policy: Policy, _: object) -> dict[str, float]:
        seen: dict[str, float] = {}
        for prefix, some in (("", tasks), ("held_out_", held_out)):
            if some:
                rows = measure(policy, some, real(), rehearsed())
                seen |= {prefix + name: round(value(rows, name), 4) for name in MEASURES}
        return seen

    return observe


DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def pack(rows: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """Each column as one word, a digit a task (base 36): what a record holds.

    Raises:
        IndexError: a number is above 35.
    """
    return {name: "".join(DIGITS[number] for number in column) for name, column in rows.items()}


def unpack(packed: Mapping[str, str]) -> Rows:
    """The columns of `pack`."""
    return {name: [int(digit, 36) for digit in column] for name, column in packed.items()}
