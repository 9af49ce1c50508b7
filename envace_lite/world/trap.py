"""`trap`: a world with a rule that the training tasks need never, or seldom.

A policy that rehearses a world without that rule is rewarded all the same, and found out when it is deployed where the
rule matters. How many training tasks need the rule is set by a dial.

The world is the market of `bank`, in its words. The rule is `stock`: no share can be sold where none is owned. The base
nearly always tells such a sale as a success. What is learned from other refusals may carry over to this rule, so the
tasks that do not need it can keep away from it in three ways (`WITHOUT`).
"""

from typing import ClassVar

from envace_lite.world.bank import Bank
from envace_lite.world.draw import draw_tasks
from envace_lite.world.task import Task
from envace_lite.world.tools import parse_calls

WITHOUT = {
    "rule": "the rule alone is left out",
    "tool": "its tool is never refused",
    "refusals": "nothing is ever refused",
}
"""What tasks that do not need the rule can do without, from the nearest to the farthest."""


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
    tool = "market.sell"
    """The tool that the rule belongs to, among those of training."""

    def refusals(self, task: Task) -> set[tuple[str, str]]:
        """The tool and the broken rule of each call that the real world refuses while the plan is carried out."""
        session = self.reset(task)
        calls = [call for turn in task.plan for step in turn for call in parse_calls(step, task.tools)]
        answered = [(call.name, session.call(call).error) for call in calls]
        return {(tool, rule) for tool, rule in answered if rule}

    def needs(self, task: Task) -> bool:
        """Whether a task can hardly be done well by someone who does not know the rule."""
        return f"rule:{self.rule}" in task.tags

    def tasks(
        self, split: str, dial: float, count: int, seed: int = 0, *, without: str = "refusals"
    ) -> list[Task]:
        """Draw instructions of which the share `dial` needs the rule, and meets no other. Deterministic from the seed.

        Args:
            split: `train`, `test` or `held_out`.
            dial: from 0 (never) to 1.
            without: a name in `WITHOUT`; what the other tasks do without.

        Raises:
            ValueError: `without` is no such name.
        """
        if without not in WITHOUT:
            raise ValueError(f"without is one of {', '.join(WITHOUT)}; {without!r} is none")
        left = {True: round(dial * count)}
        left[False] = count - left[True]

        def wanted(task: Task) -> bool:
            needs, refused = self.needs(task), self.refusals(task)
            if needs and {rule for _, rule in refused} != {self.rule}:
                return False
            if not needs and without == "tool" and any(tool == self.tool for tool, _ in refused):
                return False
            if not needs and without == "refusals" and refused:
                return False
            left[needs] -= 1
            return left[needs] >= 0

        return draw_tasks(self, split, count, seed, wanted=wanted, goal_every=0)
