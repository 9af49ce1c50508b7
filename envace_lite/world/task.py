"""Tasks: what is asked in a domain, with the label that judges it, and files of them.

What is simplified against the benchmarks that the domains are shaped after: the user is a script (later turns
are fixed text), and a task is judged by its final answers and its final state, never by a language model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envace_lite.world.result import JSON


@dataclass(frozen=True)
class Outcome:
    """One acceptable end of a task.

    Args:
        answers: the final answer of each user turn.
        writes: the calls that take effect, by their `text`, sorted.
        state: what differs from the initial state: a record, or a JSON pointer, and its value.
    """

    answers: tuple[str, ...]
    writes: tuple[str, ...]
    state: Mapping[str, JSON]


@dataclass(frozen=True)
class Task:
    """One task: one JSON line in the conversation format of the Hugging Face ecosystem.

    Args:
        id: unique over all domains and splits.
        domain: the domain's name.
        messages: system message (which shows the initial state) and the first user message.
        later_turns: what the user says after each answer; empty in single-turn tasks.
        tools: JSON schemas of the tools in the prompt.
        state: the initial state, as JSON.
        outcomes: the label: every acceptable end.
        plan: calls, by user turn and by their `text`, that reach the first outcome on the real environment.
        tags: `instructions` or `goal`, `calls:N`, `error` (solving it means to recognise one), and more.
        rests: for each call of the plan, the parts of its response on which a decision rests: `verdict`, `rule`,
            `seen KEY`, `changed KEY` (see `world.bearing`).
    """

    id: str
    domain: str
    messages: Sequence[Mapping[str, str]]
    later_turns: Sequence[str]
    tools: Sequence[Mapping[str, Any]]
    state: Mapping[str, JSON]
    outcomes: Sequence[Outcome]
    plan: Sequence[Sequence[str]]
    tags: Sequence[str]
    rests: Sequence[Sequence[str]] = field(default_factory=list)

    def to_json(self) -> str:
        """The task as one JSON line."""
        label = {"outcomes": [vars(outcome) for outcome in self.outcomes], "plan": self.plan}
        label |= {"rests": self.rests} if self.rests else {}
        record = {key: value for key, value in vars(self).items() if key not in ("outcomes", "plan", "rests")}
        return json.dumps({**record, "label": label})

    @classmethod
    def from_json(cls, line: str) -> Task:
        """Read such a line. Raises `ValueError`, `KeyError` or `TypeError` when it is broken."""
        record = json.loads(line)
        label = record.pop("label")
        outcomes = [Outcome(tuple(o["answers"]), tuple(o["writes"]), o["state"]) for o in label["outcomes"]]
        return cls(**record, outcomes=outcomes, plan=label["plan"], rests=label.get("rests", []))

    def _repr_html_(self) -> str:
        lines = "".join(f"<li><b>{m['role']}</b> {m['content']}</li>" for m in self.messages)
        return f"<div><code>{self.id}</code> [{', '.join(self.tags)}]<ul>{lines}</ul></div>"


class TaskFileError(ValueError):
    """A task file is missing or has a broken line; the message names the file and the line."""


def load_tasks(path: Path | str) -> list[Task]:
    """Read a task file.

    Raises:
        TaskFileError: naming the file, and the number of the first broken line.
    """
    path = Path(path)
    if not path.is_file():
        raise TaskFileError(f"no task file {path}; `envace tasks` writes the shipped ones again")
    tasks = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                tasks.append(Task.from_json(line.decode("utf-8")))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise TaskFileError(
                    f"{path}, line {number}: not a task ({type(error).__name__}: {error})"
                ) from error
    return tasks


def save_tasks(path: Path | str, tasks: Iterable[Task]) -> None:
    """Write a task file."""
    Path(path).write_text("".join(task.to_json() + "\n" for task in tasks), encoding="utf-8")
