"""The user's language: how a request is put into words, and read back. Whoever writes or judges one uses this.

    pack_order o1 else void_order o2 then send_order o1 report o1            steps in order, with an alternative
    pack_order o1 else status recall_order o1 report o1                      an alternative for one broken rule only
    find_order paid then pack_order found report found                       a name that the response before has brought
    count_orders sent then if least count:2 call_courier else pack_order o2  a condition on what a response said
    set_alarm 7 and turn_on lamp report alarm                                steps that are asked for together
    choose market.buy abc or bank.withdraw cash 2 keep cash:3 report cash    options, of which some are bad
    reach o4:returned report o4                                              a record that has to come to a value

Calls stand here as sentences (`pack_order o1`), records with their value as one word (`cash:3`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from envace_lite.world.tools import RULES, Value

WORDS = "then else and or choose reach keep report policy never".split()
"""Every word of the language that is no name and no value, in the order of the vocabulary."""
FOUND = "found"
"""The record that a response has brought; in a call, and in a report, it stands for the name that was found."""
DEPENDING = ("if", "least", FOUND)
"""The further words of requests whose later steps depend on what responses say."""


@dataclass(frozen=True)
class Instruction:
    """A call that is asked for.

    Args:
        call: may name `found`, which stands for the name that the latest response brought.
        otherwise: what to call if it is refused or its condition does not hold; "" for nothing.
        together: whether it is made together with the one before.
        condition: what has to be told for it, as `weather:rain` or `least count:2`; "" for nothing.
        rule: the broken rule for which alone the alternative is meant; "" for any.
    """

    call: str
    otherwise: str = ""
    together: bool = False
    condition: str = ""
    rule: str = ""

    @property
    def text(self) -> str:
        """The user's words."""
        condition = f"if {self.condition} " if self.condition else ""
        rule = f"{self.rule} " if self.rule else ""
        return condition + self.call + (f" else {rule}{self.otherwise}" if self.otherwise else "")

    @classmethod
    def read(cls, text: str, together: bool = False) -> Instruction:
        """Read such words back."""
        call, _, otherwise = text.partition(" else ")
        condition = rule = ""
        if call.startswith("if "):
            size = 3 if call.startswith("if least ") else 2
            words = call.split(" ")
            condition, call = " ".join(words[1:size]), " ".join(words[size:])
        if otherwise.partition(" ")[0] in RULES:
            rule, _, otherwise = otherwise.partition(" ")
        return cls(call, otherwise, together, condition, rule)

    def holds(self, told: Mapping[str, Value]) -> bool:
        """Whether the condition holds by what has been told; it does not where nothing has."""
        if not self.condition:
            return True
        word = self.condition.removeprefix("least ")
        key, _, value = word.partition(":")
        if word == self.condition:
            return str(told.get(key)) == value
        return str(told.get(key, "")).isdigit() and int(told[key]) >= int(value)


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
                wish += step.text
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
            steps.append(Instruction.read(words, joined == "and"))
        return cls(report, tuple(steps))


def situation(heading: str, facts: Iterable[str], forbidden: str | None = None) -> str:
    """The system message: the world's heading, its records, and a tool that the policy forbids."""
    return " ".join([heading, *facts, *(["policy never", forbidden] if forbidden else [])])


def forbidden_tool(situation: str) -> str:
    """The tool that a system message forbids, or ""."""
    return situation.partition(" policy never ")[2]
