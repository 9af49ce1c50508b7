"""The tasks that come with the project."""

from __future__ import annotations

from collections.abc import Iterable

from envace_lite.world import TRAP, paths
from envace_lite.world.task import Task, load_tasks


def shipped_tasks(domains: Iterable[str], split: str, limit: int | None = None) -> list[Task]:
    """The shipped tasks of some domains, `limit` from each; those of the trap are drawn, with the dial at one half."""
    tasks: list[Task] = []
    for name in domains:
        if name == TRAP.name:
            tasks += TRAP.tasks(split, 0.5, limit or 200)
        else:
            tasks += load_tasks(paths.task_file(name, split))[:limit]
    return tasks
