"""The journal: what a gate decided and what came of it, in SQLite, written before it happens.

Every call has one row, which passes through stages:

    considered    it came in; nothing has been carried out
    held          it was not committed, and never will be
    committing    it is being carried out
    done          it was carried out, and brought what stands in `real`

A program may be killed at any moment. The next one that opens the file finds the rows as they were: what was only
considered has not happened; what was committing may have happened or not, and nobody but the world behind the tools
knows which. Such rows are `unsettled`: they are never carried out again, and the gate holds writes back until somebody
has looked (`Gate.settle`).

What is simplified: one program at a time writes a file. A second one gets an error.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from envace_lite.rehearsal.ledger import Decision
from envace_lite.world.result import JSON
from envace_lite.world.tools import ToolCall

CONSIDERED, HELD, COMMITTING, DONE = "considered", "held", "committing", "done"
MEMORY = ":memory:"


class JournalError(RuntimeError):
    """A journal cannot be opened, or holds what has to be settled first; the message says what to do."""


@dataclass(frozen=True)
class GateDecision(Decision):
    """A decision of a gate, with all that its journal keeps.

    Args:
        number: of the call, from 1.
        stage: see the top of this module.
        name, arguments: of the call, redacted.
        key: the caller's own name for the call, under which it is carried out once.
        log_prob: of the rehearsed response; None where there is none, 0 where the rehearser does not tell.
        surprises: where the real response is not the rehearsed one: part -> what it really was.
        error: the real error, or None.
        before, after: digest of the state around the commit; "" where it is not known.
    """

    number: int = 0
    stage: str = CONSIDERED
    name: str = ""
    arguments: Mapping[str, JSON] = field(default_factory=dict)
    key: str | None = None
    log_prob: float | None = None
    surprises: Mapping[str, JSON] = field(default_factory=dict)
    error: str | None = None
    before: str = ""
    after: str = ""

    @property
    def call(self) -> ToolCall:
        """The call, redacted."""
        return ToolCall(self.name, self.arguments)


COLUMNS = tuple(f.name for f in fields(GateDecision))
AS_JSON = ("arguments", "surprises")
"""These columns hold JSON."""


class Journal:
    """Rows of decisions. Each write is on the disk when `save` returns.

    Args:
        path: of a file, which is made if it is not there; without one the journal lives in memory.

    Raises:
        JournalError: the file is no journal, or another program is writing it.
    """

    def __init__(self, path: Path | str = MEMORY):
        self.path = str(path)
        try:
            # The gate lets one call in at a time, so the threads may share the connection.
            self._base = sqlite3.connect(
                self.path, timeout=1.0, isolation_level=None, check_same_thread=False
            )
            self._base.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._base.execute("PRAGMA journal_mode = WAL")
            self._base.execute("PRAGMA synchronous = FULL")
            names = ", ".join(f"{name} INTEGER PRIMARY KEY" if name == "number" else name for name in COLUMNS)
            self._base.execute(f"CREATE TABLE IF NOT EXISTS calls ({names})")
            self._base.execute("CREATE INDEX IF NOT EXISTS keys ON calls (key)")
            self._base.execute(f"SELECT {', '.join(COLUMNS)} FROM calls LIMIT 0")
            # A first write takes the lock, and keeps it until `close`.
            self._base.execute("PRAGMA user_version = 1")
        except sqlite3.OperationalError as error:
            what = "another program is writing it" if "locked" in str(error) else str(error)
            raise JournalError(f"{path}: the journal cannot be opened: {what}") from error
        except sqlite3.DatabaseError as error:
            raise JournalError(f"{path} is no journal of a gate ({error}); name another file") from error

    def save(self, decision: GateDecision) -> GateDecision:
        """Write a row, in place of the one that has its number; without a number it gets the next one."""
        row = [getattr(decision, name) for name in COLUMNS]
        values = [
            json.dumps(value, ensure_ascii=False) if name in AS_JSON else value
            for name, value in zip(COLUMNS, row, strict=True)
        ]
        values[COLUMNS.index("number")] = decision.number or None
        marks = ", ".join("?" * len(COLUMNS))
        done = self._base.execute(
            f"INSERT OR REPLACE INTO calls ({', '.join(COLUMNS)}) VALUES ({marks})", values
        )
        return decision if decision.number else GateDecision(**{**vars(decision), "number": done.lastrowid})

    def unsettled(self) -> dict[int, GateDecision]:
        """The calls of which nobody knows whether they were carried out, by number."""
        return {row.number: row for row in self._read("WHERE stage = ? ORDER BY number", COMMITTING)}

    def carried_out(self, key: str) -> GateDecision | None:
        """The call with this key that was carried out, or may have been; None if there is none."""
        return next(self._read("WHERE key = ? AND stage IN (?, ?)", key, COMMITTING, DONE), None)

    def done(self) -> list[GateDecision]:
        """What was carried out, in order."""
        return list(self._read("WHERE stage = ? ORDER BY number", DONE))

    def close(self) -> None:
        """Give the file free. What was written stays."""
        self._base.close()

    def _read(self, condition: str, *values: Any) -> Iterator[GateDecision]:
        for row in self._base.execute(f"SELECT {', '.join(COLUMNS)} FROM calls {condition}", values):
            read = dict(zip(COLUMNS, row, strict=True))
            yield GateDecision(**{**read, **{name: json.loads(read[name]) for name in AS_JSON}})

    def __iter__(self) -> Iterator[GateDecision]:
        return self._read("ORDER BY number")

    def __len__(self) -> int:
        return int(self._base.execute("SELECT COUNT(*) FROM calls").fetchone()[0])

    def __repr__(self) -> str:
        return f"<Journal {self.path}: {len(self)} calls>"
