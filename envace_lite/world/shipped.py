"""The tasks that come with the project."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from envace_lite.world import DEPENDENT, TRAP, paths
from envace_lite.world.draw import draw_splits
from envace_lite.world.task import Task, load_tasks


@cache
def _drawn(name: str) -> dict[str, list[Task]]:
    return draw_splits(DEPENDENT[name], seed=0)


def shipped_tasks(domains: Iterable[str], split: str, limit: int | None = None) -> list[Task]:
    """The shipped tasks of some domains, `limit` from each; those of the trap are drawn, with the dial at one half.

    Those of the domains in `DEPENDENT` are drawn too, which takes some seconds a domain.
    """
    tasks: list[Task] = []
    for name in domains:
        if name == TRAP.name:
            tasks += TRAP.tasks(split, 0.5, limit or 200)
        elif name in DEPENDENT:
            tasks += _drawn(name)[split][:limit]
        else:
            tasks += load_tasks(paths.task_file(name, split))[:limit]
    return tasks
