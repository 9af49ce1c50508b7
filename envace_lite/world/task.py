"""Domain, Task and Session: what a tool world is, what is asked in it, and one episode of it.

What is simplified against the benchmarks that the domains are shaped after: the user is a script (later turns
are fixed text), the system message shows all records but a few hidden ones, and a task is judged by its final answers
and its final state, never by a language model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from envace_lite.world.phrases import DEPENDING
from envace_lite.world.result import Result
from envace_lite.world.tools import RULES, UNKNOWN, Tool, ToolCall, ToolResponse, Value, World

NO_TOOL = "cannot"
NEWS = {
    "name": "a known effect under a new name",
    "combination": "a new combination of known effects",
    "dynamics": "an effect that the base has never read about",
    "words": "words that the base has never read",
}
"""What can be new about a held-out tool."""


@dataclass(frozen=True)
class Outcome:
    """One acceptable end of a task.

    Args:
        answers: the final answer of each user turn.
        writes: the writes that take effect, as compact sentences, sorted.
        state: the records that differ from the initial state.
    """

    answers: tuple[str, ...]
    writes: tuple[str, ...]
    state: Mapping[str, Value]


@dataclass(frozen=True)
class Task:
    """One task: one JSON line in the conversation format of the Hugging Face ecosystem.

    Args:
        id: unique over all domains and splits.
        domain: the domain's name.
        messages: system message (which shows the initial state) and the first user message.
        later_turns: what the user says after each answer; empty in single-turn tasks.
        tools: JSON schemas of the tools in the prompt.
        state: the initial records.
        outcomes: the label: every acceptable end.
        plan: calls, by user turn, that reach the first outcome on the real environment.
        tags: `instructions` or `goal`, `calls:N`, `error` (solving it means to recognise one), and more.
        rests: for each call of the plan, the parts of its response on which a decision rests: `verdict`, `rule`,
            `seen KEY`, `changed KEY` (see `world.bearing`).
    """

    id: str
    domain: str
    messages: Sequence[Mapping[str, str]]
    later_turns: Sequence[str]
    tools: Sequence[Mapping[str, Any]]
    state: Mapping[str, Value]
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


@dataclass(frozen=True)
class EpisodeResult:
    """How an episode on the real environment ended."""

    answer: bool
    state: bool

    @property
    def success(self) -> bool:
        """Real success: final state and answer both right."""
        return self.answer and self.state


@dataclass
class Session:
    """One episode on the real environment.

    Sessions share nothing: each holds its own copy of the records.
    """

    tools: Mapping[str, Tool]
    task: Task
    world: World = field(init=False)
    log: list[tuple[ToolCall, ToolResponse]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.world = World(self.task.state)

    def call(self, call: ToolCall) -> ToolResponse:
        """Carry out a call. Errors come back as responses; nothing is raised. A refused call changes nothing."""
        tool = self.tools.get(call.name)
        if tool is None:
            response = ToolResponse({}, UNKNOWN, {})
        else:
            response = tool.call(self.world, call.arguments)
        self.log.append((call, response))
        return response

    def snapshot(self) -> dict[str, Value]:
        """A copy of the records."""
        return dict(self.world.records)

    def restore(self, snapshot: Mapping[str, Value]) -> None:
        """Return to a snapshot."""
        self.world = World(snapshot)

    def digest(self) -> str:
        """A short hash of the state, independent of the order of records."""
        text = json.dumps(self.world.records, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def verify(self, answers: Sequence[str]) -> EpisodeResult:
        """Compare the final answers and the final state with the label.

        With several acceptable outcomes both have to agree with the same one, if any agrees with either.
        """
        records = self.world.records
        results = []
        for outcome in self.task.outcomes:
            wanted = {**self.task.state, **outcome.state}
            results.append(EpisodeResult(tuple(answers) == outcome.answers, wanted == records))
        # Right in both before right in the state alone, and that before the answer: what was done weighs more than
        # what was said about it.
        return max(results, key=lambda result: (result.success, result.state, result.answer))


class Domain:
    """A tool world: its tools, the names that its arguments can take, and how an initial state is drawn.

    A subclass sets the class attributes, `sample_state` and `sample_function`; the rest of the library works
    with any such class.
    """

    name: ClassVar[str]
    heading: ClassVar[str] = ""
    """The word that a conversation begins with; the name, if it is empty."""
    title: ClassVar[str]
    tools: ClassVar[dict[str, Tool]]
    held_out: ClassVar[frozenset[str]]
    """Names of the tools that no training trace and no training task uses."""
    pools: ClassVar[dict[str, Sequence[Value]]]
    """For each kind of argument, every name or number that a call might carry."""
    values: ClassVar[dict[str, Sequence[Value]]]
    """For each record, and each fact that a tool shows, every value that it might have."""
    news: ClassVar[Mapping[str, str]] = {}
    """What is new about each held-out tool: a word of `NEWS`."""
    constants: ClassVar[frozenset[str]] = frozenset({"month"})
    """The kinds of argument whose words are no records."""
    hidden: ClassVar[frozenset[str]] = frozenset()
    """Records that the system message does not show: only a call does."""
    secret: ClassVar[frozenset[str]] = frozenset()
    """Those of them that nothing tells beforehand: neither a tool's documentation nor an earlier response."""
    parallel = 0.0
    """Share of steps that are asked for together with the one before."""
    no_tool = 0.0
    """Share of tasks that none of the listed tools fits."""
    forbids = 0.0
    """Share of tasks whose written policy forbids one of the tools."""
    second_turn = 0.0
    """Share of tasks in which the user comes back with a second request."""
    unread: ClassVar[frozenset[str]] = frozenset()
    """Words that occur in the responses of held-out tools alone."""
    depends = 0.0
    """Share of instruction tasks with a step that depends on what a response says."""
    chooses = 0.5
    """Share of the goal tasks that offer options; the others ask for a record to reach a value."""

    def sample_state(self, rng: Random) -> dict[str, Value]:
        """Draw an initial state."""
        raise NotImplementedError

    def sample_function(self, rng: Random) -> Any:
        """Draw a random member of one of the domain's families of dynamics (for the traces of the base)."""
        raise NotImplementedError

    def reset(self, task: Task) -> Session:
        """Open a session of the real environment. World rehearsal never does."""
        return Session(self.tools, task)

    def read(self, text: str) -> Result:
        """A response as data, from its text."""
        return ToolResponse.parse(text)

    def seen_tools(self) -> list[Tool]:
        """The tools that training may use."""
        return [tool for name, tool in self.tools.items() if name not in self.held_out]

    def words(self) -> list[str]:
        """Every word that a conversation in this domain can hold, numbers aside."""
        words: list[str] = [self.heading or self.name]
        for key, values in self.values.items():
            words += [key, *(str(value) for value in values)]
            words += [f"{key}:{value}" for value in (*values, UNKNOWN)]
        words += [value for pool in self.pools.values() for value in pool if isinstance(value, str)]
        for name, tool in self.tools.items():
            words += [name, *tool.documentation.split()]
        return [*words, *DEPENDING, *RULES] if self.depends else words

    def calls(self, tool: Tool) -> Iterator[ToolCall]:
        """Every call of a tool with arguments from the pools."""
        partial: list[dict[str, Value]] = [{}]
        for parameter, kind in tool.kinds.items():
            partial = [{**arguments, parameter: value} for arguments in partial for value in self.pools[kind]]
        return (ToolCall(tool.name, arguments) for arguments in partial)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self.tools)} tools, {len(self.held_out)} held out>"
