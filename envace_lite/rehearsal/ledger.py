"""The ledger: every message that was imagined or committed, what it cost, and what was decided.

What is simplified against the paper, which reports no costs: a token is counted when the engine reads or writes it,
once. There is no cache from one decision to the next, so each decision reads its conversation again, and pays for it.

Five kinds of tokens, which add up to everything that was computed:

    prefill     read: conversations, headers, real responses
    memory      read: imagined exchanges that stand in the conversation
    committed   written: the messages that were committed
    imagined    written: the rest of the continuation whose first message was committed
    discarded   written: all other continuations, and drafts
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from html import escape

from envace_lite.world.tools import ToolResponse

TOKENS = ("prefill", "memory", "committed", "imagined", "discarded")


@dataclass(frozen=True)
class Entry:
    """One message, or what was read for it.

    Args:
        decision: number of the committed message that it was for, from 0.
        kind: `imagined` or `committed`.
        role: `prompt` or `memory` (read), `act`, `rehearse`, `real` (the real environment).
        text: the message as a compact sentence.
        tokens: what was computed for it. A real response is read, and counted, with the prompt that follows.
        before, after: digest of the real state; "" where it is not known.
        call: what a response answers.
        error: the rule that a response says was broken, or None.
        kept: whether it belongs to the continuation that was chosen.
    """

    decision: int
    kind: str
    role: str
    text: str
    tokens: int = 0
    before: str = ""
    after: str = ""
    call: str = ""
    error: str | None = None
    kept: bool = True

    @property
    def counted_as(self) -> str:
        """Which kind of tokens it has."""
        if self.role in ("prompt", "real"):
            return "prefill"
        if self.role == "memory":
            return "memory"
        return "committed" if self.kind == "committed" else "imagined" if self.kept else "discarded"

    @property
    def response(self) -> ToolResponse:
        """A response, read back from its text."""
        return ToolResponse.parse(self.text)


@dataclass(frozen=True)
class Decision:
    """One step of deciding: what was proposed, what was imagined, and what came of it.

    Args:
        candidate: the message, as a compact sentence.
        rehearsed: the imagined response; "" when there is none.
        reason: why, in a few words.
        action: `commit`, `revise` (something else instead) or `ask` (a person).
        real: the real response; "" when nothing was committed.
    """

    candidate: str
    rehearsed: str
    reason: str
    action: str
    real: str = ""

    @property
    def line(self) -> str:
        """The decision explained in one line."""
        imagined = f"imagined `{self.rehearsed}`; " if self.rehearsed else ""
        real = f"; real `{self.real}`" if self.real else ""
        return f"{self.action} `{self.candidate}`: {imagined}{self.reason}{real}"


@dataclass
class Ledger:
    """What was imagined, committed and decided in one episode, in the order in which it happened."""

    entries: list[Entry] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)

    def add(self, entry: Entry) -> None:
        """Append an entry."""
        self.entries.append(entry)

    def resolve(self, real: str) -> None:
        """Note what the call that was committed last really brought."""
        said = self.decisions[-1].real
        self.decisions[-1] = replace(self.decisions[-1], real=f"{said} and {real}" if said else real)

    @property
    def tokens(self) -> dict[str, int]:
        """Tokens of each kind."""
        sums = dict.fromkeys(TOKENS, 0)
        for entry in self.entries:
            sums[entry.counted_as] += entry.tokens
        return sums

    @property
    def total(self) -> int:
        """All tokens."""
        return sum(entry.tokens for entry in self.entries)

    def responses(self, kind: str) -> list[Entry]:
        """The responses, `imagined` or `committed`."""
        return [e for e in self.entries if e.kind == kind and e.role in ("rehearse", "real")]

    @property
    def world_errors(self) -> int:
        """Errors met in the world."""
        return sum(entry.error is not None for entry in self.responses("committed"))

    @property
    def imagined_errors(self) -> int:
        """Errors met in the head."""
        return sum(entry.error is not None for entry in self.responses("imagined"))

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __repr__(self) -> str:
        counted = ", ".join(f"{count} {name}" for name, count in self.tokens.items())
        committed, imagined = (len(self.responses(kind)) for kind in ("committed", "imagined"))
        return f"<Ledger: {committed} committed calls, {imagined} imagined, tokens {counted}>"

    def _repr_html_(self) -> str:
        cells = (
            f"<tr><td>{e.decision}</td><td>{e.kind}</td><td>{e.role}</td><td><code>{escape(e.text)}</code></td>"
            f"<td>{e.tokens}</td><td>{e.before}</td><td>{e.after}</td></tr>"
            for e in self.entries
        )
        names = ("decision", "kind", "role", "text", "tokens", "state before", "state after")
        head = "".join(f"<th>{name}</th>" for name in names)
        return f"<table><caption>{escape(repr(self))}</caption><tr>{head}</tr>{''.join(cells)}</table>"
