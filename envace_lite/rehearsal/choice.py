"""A choice: what was drawn before one message is committed, which of it was chosen, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envace_lite.model.compact import Compact, act_message
from envace_lite.model.language import GIVEN
from envace_lite.rehearsal.ledger import Decision
from envace_lite.rollout import Trajectory
from envace_lite.world import Task
from envace_lite.world.tools import ToolError

Messages = list[dict[str, Any]]


def messages_of(trajectory: Trajectory, chat: Compact) -> list[tuple[str, str]]:
    """What a policy wrote in a trajectory, as (role, text); drafts too. Only a finished message ends in `<end>`."""
    return [(who, text) for who, text in trajectory.segments(chat) if who != "given"]


def bare(text: str) -> str:
    """A message without its `<end>`."""
    return text.removesuffix("<end>").rstrip()


def parsed(text: str, task: Task) -> dict[str, Any] | None:
    """What the act role wrote, as a standard message; None for one that is unfinished or malformed."""
    try:
        return act_message(bare(text), task.tools) if text.endswith("<end>") else None
    except ToolError:
        return None


def size(messages: Messages, chat: Compact) -> int:
    """Tokens of some messages."""
    return len(chat.render(messages, ())) if messages else 0


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

    def settle(self, chat: Compact, chosen: int, reasons: Mapping[int, str], place: int = 0) -> None:
        """Choose, and note the steps: what was drawn first, where something else was chosen, and what is committed.

        Args:
            reasons: for some of the trajectories what was thought of them.
        """

        def step(i: int, place: int, action: str) -> Decision:
            written, exchanges = messages_of(self.drawn[i], chat), self.drawn[i].exchanges
            text = bare(written[place][1]) if written else ""
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
