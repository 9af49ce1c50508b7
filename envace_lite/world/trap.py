"""`trap`: a world with a rule that the training tasks need never, or seldom.

A policy that rehearses a world without that rule is rewarded all the same, and found out when it is deployed where the
rule matters. How many training tasks need the rule is set by a dial.

The world is that of `functions`, in its words, where days that do not exist (the rule `date`) are common.
"""

from typing import ClassVar

from envace_lite.world.draw import draw_tasks
from envace_lite.world.functions import Functions
from envace_lite.world.task import Task

_TOOLS = "add_event book_room free_room hold_room send_message set_alarm turn_off turn_on".split()


class Trap(Functions):
    """The calendar's part of `functions`; see the module's docstring."""

    name = "trap"
    heading = "functions"
    title = "a world with a rule that training may never need"
    tools: ClassVar = {name: Functions.tools[name] for name in _TOOLS}
    held_out = frozenset({"hold_room"})
    pools: ClassVar = {**Functions.pools, "day": (5, 28, 29, 30, 31)}
    no_tool = 0.0
    rule = "date"
    """What training may never need."""

    def needs(self, task: Task) -> bool:
        """Whether a task can hardly be done well by someone who does not know the rule."""
        return f"rule:{self.rule}" in task.tags

    def tasks(self, split: str, dial: float, count: int, seed: int = 0) -> list[Task]:
        """Draw tasks of which the share `dial` needs the rule. Deterministic from the seed.

        Args:
            split: `train`, `test` or `held_out`.
            dial: from 0 (never) to 1.
        """
        left = {True: round(dial * count)}
        left[False] = count - left[True]

        def wanted(task: Task) -> bool:
            left[self.needs(task)] -= 1
            return left[self.needs(task)] >= 0

        return draw_tasks(self, split, count, seed, wanted=wanted)
