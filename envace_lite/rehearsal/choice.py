"""A choice: what was drawn before one message is committed, which of it was chosen, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

from envace_lite.model.language import GIVEN, ROLE_NAMES, Language
from envace_lite.rehearsal.ledger import Decision
from envace_lite.rollout import Trajectory
from envace_lite.world import Task
from envace_lite.world.tools import ToolError

Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class Written:
    """A message that a policy wrote in a trajectory; drafts too.

    Args:
        role: `act` or `rehearse`.
        ids: its tokens, with those that ended it.
        text: what it says, without what ended it.
        whole: whether it was ended; otherwise it was cut off.
    """

    role: str
    ids: tuple[int, ...]
    text: str
    whole: bool


UNWRITTEN = Written("act", (), "", False)
"""In place of a message that was never begun."""


def messages_of(trajectory: Trajectory, language: Language) -> list[Written]:
    """What a policy wrote in a trajectory. A header stands between two messages, so each is one run of its role."""
    written = []
    for role, run in groupby(zip(trajectory.roles, trajectory.ids, strict=True), itemgetter(0)):
        if role != GIVEN:
            name, ids = ROLE_NAMES[role], tuple(token for _, token in run)
            written.append(Written(name, ids, language.read(ids, name), language.ended(ids, name)))
    return written


def parsed(written: Written, task: Task, language: Language) -> dict[str, Any] | None:
    """What the act role wrote, as a standard message; None for one that is unfinished or malformed."""
    try:
        return language.read_act(written.ids, task.tools) if written.whole else None
    except ToolError:
        return None


def size(messages: Messages, task: Task, language: Language) -> int:
    """Tokens that some messages add to a task's conversation."""
    if not messages:
        return 0
    before = [dict(message) for message in task.messages]
    return len(language.render([*before, *messages], task.tools)) - len(language.render(before, task.tools))


@dataclass
class Choice:
    """What was drawn for one decision, and what is committed.

    Args:
        drawn: the trajectories, in the order in which they were drawn.
        prefill: tokens read for them, headers and injected tokens included.
        memory: tokens of memory read for them.
        chosen: which of them holds the message that is committed.
        place: which of its messages that is.
        refused: imagined refusals: for each call, as a compact sentence, the two messages that tell of it.
        keep: messages of memory that go into the committed conversation.
        steps: the decision, step by step.
    """

    drawn: list[Trajectory] = field(default_factory=list)
    prefill: int = 0
    memory: int = 0
    chosen: int = 0
    place: int = 0
    refused: dict[str, Messages] = field(default_factory=dict)
    keep: Messages = field(default_factory=list)
    steps: list[Decision] = field(default_factory=list)

    def add(self, drawn: Sequence[Trajectory], memory: int) -> None:
        """Note trajectories whose prompt, which holds so many tokens of memory, was read once for all of them."""
        self.drawn += drawn
        self.prefill += len(drawn[0].prompt) - memory + sum(t.roles.count(GIVEN) for t in drawn)
        self.memory += memory

    def settle(self, language: Language, chosen: int, reasons: Mapping[int, str], place: int = 0) -> None:
        """Choose, and note the steps: what was drawn first, where something else was chosen, and what is committed.

        Args:
            reasons: for some of the trajectories what was thought of them.
        """

        def step(i: int, place: int, action: str) -> Decision:
            written, exchanges = messages_of(self.drawn[i], language), self.drawn[i].exchanges
            text = written[place].text if written else ""
            imagined = exchanges[0][1].text if exchanges else ""
            return Decision(text, imagined, reasons.get(i, "a first draft"), action)

        self.chosen, self.place = chosen, place
        first, last = step(0, 0, "revise"), step(chosen, place, "commit")
        self.steps = [last] if first.candidate == last.candidate else [first, last]

    @property
    def told(self) -> Messages:
        """The refusals, one after another."""
        return [message for messages in self.refused.values() for message in messages]

    @property
    def spent(self) -> int:
        """Tokens so far."""
        return self.prefill + self.memory + sum(len(t.ids) - t.roles.count(GIVEN) for t in self.drawn)
