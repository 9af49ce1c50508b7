"""The toy worlds' domains and sessions: a flat dictionary of records, and tools that use the verbs of `tools.World`.

What is simplified against the benchmarks that the domains are shaped after: the system message shows all records but a
few hidden ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from random import Random
from typing import Any, ClassVar

from envace_lite.world.domain import Domain, Session
from envace_lite.world.phrases import DEPENDING
from envace_lite.world.result import Result
from envace_lite.world.task import Outcome, Task
from envace_lite.world.tools import RULES, UNKNOWN, Tool, ToolCall, ToolResponse, Value, World

NO_TOOL = "cannot"
NEWS = {
    "name": "a known effect under a new name",
    "combination": "a new combination of known effects",
    "dynamics": "an effect that the base has never read about",
    "words": "words that the base has never read",
}
"""What can be new about a held-out tool."""


class ToySession(Session):
    """An episode of a toy world. A tool's changes are kept aside until its call ends well, so nothing is copied."""

    world: World

    def _begin(self) -> None:
        self.world = World(self.task.state)

    def _carry_out(self, call: ToolCall) -> Result:
        tool = self.tools.get(call.name)
        return tool.call(self.world, call.arguments) if tool else ToolResponse({}, UNKNOWN, {})

    def view(self) -> dict[str, Value]:
        """A copy of the records."""
        return dict(self.world.records)

    def snapshot(self) -> dict[str, Value]:
        """A copy of the records."""
        return self.view()

    def restore(self, snapshot: Mapping[str, Value]) -> None:
        """Return to a snapshot."""
        self.world = World(snapshot)

    def _reached(self, outcome: Outcome) -> bool:
        return {**self.task.state, **outcome.state} == self.world.records


class ToyDomain(Domain):
    """A toy world: its tools, the names that its arguments can take, and how an initial state is drawn.

    A subclass sets the class attributes, `sample_state` and `sample_function`.
    """

    tools: ClassVar[dict[str, Tool]]
    pools: ClassVar[dict[str, Sequence[Value]]]
    """For each kind of argument, every name or number that a call might carry."""
    values: ClassVar[dict[str, Sequence[Value]]]
    """For each record, and each fact that a tool shows, every value that it might have."""
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

    def reset(self, task: Task) -> ToySession:
        """Open a session of the real environment. World rehearsal never does."""
        return ToySession(self, task)

    def read(self, text: str) -> ToolResponse:
        """A response as data, from its sentence."""
        return ToolResponse.parse(text)

    def agree(self, told: Sequence[str], wanted: Sequence[str]) -> bool:
        """Whether the final answers are those of an outcome, word for word."""
        return tuple(told) == tuple(wanted)

    @cached_property
    def names(self) -> list[str]:
        """Every word that occurs as an argument, a key or a value."""
        groups: list[Sequence[Value]] = [*self.pools.values(), list(self.values), *self.values.values()]
        return list(dict.fromkeys(word for group in groups for word in group if isinstance(word, str)))

    def names_beside(self, kind: str) -> list[str]:
        """Names of records that are not of this kind; none for a kind of numbers."""
        pool = self.pools[kind]
        return [] if isinstance(pool[0], int) else [key for key in self.values if key not in pool]

    def took_effect(self, call: ToolCall, result: Result) -> bool:
        """Whether a call changed a record, as its response tells."""
        return result.error is None and bool(result.changed)

    def plausible(self, result: Result) -> bool:
        """Whether every record exists and can have its value."""
        parts = [*result.value.items(), *result.changed.items()]
        return all(value in (*self.values.get(key, ()), UNKNOWN) for key, value in parts)

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
