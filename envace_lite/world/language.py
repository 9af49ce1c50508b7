"""The user's language: how a request is put into words, and read back. Whoever writes or judges one uses this.

    pack_order o1 else void_order o2 then send_order o1 report o1            steps in order, with an alternative
    set_alarm 7 and turn_on lamp report alarm                                steps that are asked for together
    choose market.buy abc or bank.withdraw cash 2 keep cash:3 report cash    options, of which some are bad
    reach o4:returned report o4                                              a record that has to come to a value

Calls stand here as sentences (`pack_order o1`), records with their value as one word (`cash:3`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

WORDS = "then else and or choose reach keep report policy never".split()
"""Every word of the language that is no name and no value, in the order of the vocabulary."""


@dataclass(frozen=True)
class Instruction:
    """A call, what to call if it is refused ("" for nothing), and whether it is made together with the one before."""

    call: str
    otherwise: str = ""
    together: bool = False


@dataclass(frozen=True)
class Request:
    """What a user asks for in one turn: `steps`, `options` or a `goal`; and the record to report at the end.

    Args:
        keep: the least that a record may have after an option was taken, as `cash:3`; "" for no such wish.
        goal: a record and the value that it has to come to, as `o4:returned`.
    """

    report: str
    steps: tuple[Instruction, ...] = ()
    options: tuple[str, ...] = ()
    keep: str = ""
    goal: str = ""

    @property
    def text(self) -> str:
        """The user's words."""
        if self.options:
            wish = "choose " + " or ".join(self.options) + (f" keep {self.keep}" if self.keep else "")
        elif self.goal:
            wish = f"reach {self.goal}"
        else:
            wish = ""
            for step in self.steps:
                wish += (" and " if step.together else " then ") if wish else ""
                wish += f"{step.call} else {step.otherwise}" if step.otherwise else step.call
        return f"{wish} report {self.report}"

    @classmethod
    def read(cls, text: str) -> Request:
        """Read such words back."""
        wish, _, report = text.rpartition(" report ")
        kind, _, rest = wish.partition(" ")
        if kind == "reach":
            return cls(report, goal=rest)
        if kind == "choose":
            options, _, keep = rest.partition(" keep ")
            return cls(report, options=tuple(options.split(" or ")), keep=keep)
        first, *parts = re.split(" (then|and) ", wish)
        steps = []
        for joined, words in zip(["then", *parts[::2]], [first, *parts[1::2]], strict=True):
            call, _, otherwise = words.partition(" else ")
            steps.append(Instruction(call, otherwise, joined == "and"))
        return cls(report, tuple(steps))


def situation(heading: str, facts: Iterable[str], forbidden: str | None = None) -> str:
    """The system message: the world's heading, its records, and a tool that the policy forbids."""
    return " ".join([heading, *facts, *(["policy never", forbidden] if forbidden else [])])


def forbidden_tool(situation: str) -> str:
    """The tool that a system message forbids, or ""."""
    return situation.partition(" policy never ")[2]
