"""`trap`: a world with a rule that the training tasks need never, or seldom.

A policy that rehearses a world without that rule is rewarded all the same, and found out when it is deployed where the
rule matters. How many training tasks need the rule is set by a dial.

The world is the market of `bank`, in its words. The rule is `stock`: no share can be sold where none is owned. The base
nearly always tells such a sale as a success.
"""

from typing import ClassVar

from envace_lite.world.bank import Bank
from envace_lite.world.draw import draw_tasks
from envace_lite.world.task import Task


class Trap(Bank):
    """The market's part of `bank`; see the module's docstring."""

    name = "trap"
    heading = "bank"
    title = "a world with a rule that training may never need"
    tools: ClassVar = {
        name: tool
        for name, tool in Bank.tools.items()
        if name.startswith("market.") or name in ("bank.balance", "bank.deposit", "bank.withdraw")
    }
    held_out = frozenset({"market.cash_in"})
    depends = 0.0
    rule = "stock"
    """What training may never need."""

    def needs(self, task: Task) -> bool:
        """Whether a task can hardly be done well by someone who does not know the rule."""
        return f"rule:{self.rule}" in task.tags

    def tasks(
        self, split: str, dial: float, count: int, seed: int = 0, *, goals: bool = False
    ) -> list[Task]:
        """Draw tasks of which the share `dial` needs the rule. Deterministic from the seed.

        Args:
            split: `train`, `test` or `held_out`.
            dial: from 0 (never) to 1.
            goals: whether a third of the tasks are goals. Their plans may do without the rule and success rests on it
                all the same: who believes that a share can be sold that is not owned, sells it for the cash.
        """
        left = {True: round(dial * count)}
        left[False] = count - left[True]

        def wanted(task: Task) -> bool:
            left[self.needs(task)] -= 1
            return left[self.needs(task)] >= 0

        return draw_tasks(self, split, count, seed, wanted=wanted, goal_every=3 if goals else 0)
