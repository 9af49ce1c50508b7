"""Domain and Session: what a world of tools is, and one episode of it.

A session runs each call on a copy of the state and keeps the copy only if the call went well: what raises changes
nothing, whatever the state is made of. What a call changed is found by comparing the JSON views of the two.

    library = Domain.from_tools("library", Library, tasks=draw, reads={"look_up"})
    register(library)

What is simplified against the benchmarks that domains are shaped after: the whole state stands in the first message,
and a task is judged by its final answer and its final state, never by a language model.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from random import Random
from typing import Any, ClassVar

from envace_lite.world.functions import DomainError, FunctionTool, where
from envace_lite.world.result import JSON, NotJSON, Result, as_json, differences
from envace_lite.world.task import Outcome, Task
from envace_lite.world.tools import Tool, ToolCall, parse_calls

UNLISTED = "UnknownTool"
"""The error of a call that names no tool of the domain."""
Ask = Mapping[str, Any]
"""What a task is made from: `ask` (the user's words), `calls` (the plan: pairs of a name and its arguments), `answer`
(what the agent should say at the end), `state` (the initial state, as JSON), and perhaps `tags` and `id`."""


class ImaginedCall(RuntimeError):
    """An imagined call reached for the real environment. The message names the call, or the task."""


IMAGINED: ContextVar[tuple[Session, ...]] = ContextVar("imagined", default=())
"""The sessions that the running code only imagines (see `rehearsal.guard`), also when it runs on after its time."""


@dataclass(frozen=True)
class EpisodeResult:
    """How an episode on the real environment ended."""

    answer: bool
    state: bool

    @property
    def success(self) -> bool:
        """Real success: final state and answer both right."""
        return self.answer and self.state


class Session:
    """One episode on the real environment. Sessions share nothing: each holds its own copy of the state.

    Args:
        domain: whose tools are called.
        task: with the initial state.

    Attributes:
        log: the calls with their results.
        rehearsals: so many rehearsals of it are under way; until they are over it refuses every call.
    """

    def __init__(self, domain: Domain, task: Task):
        self.domain, self.task = domain, task
        self.rehearsals = 0
        self.log: list[tuple[ToolCall, Result]] = []
        self._begin()

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The domain's tools."""
        return self.domain.tools

    def _begin(self) -> None:
        self.state = self.domain.start(copy.deepcopy(self.task.state))
        self._view = as_json(self.state)

    def call(self, call: ToolCall) -> Result:
        """Carry out a call. Errors come back as results. A refused call changes nothing.

        Raises:
            ImaginedCall: the session is being rehearsed.
        """
        if self.rehearsals or any(session is self for session in IMAGINED.get()):
            raise ImaginedCall(f"an imagined call reached for the real environment: {call.text}")
        result = self._carry_out(call)
        self.log.append((call, result))
        return result

    def _carry_out(self, call: ToolCall) -> Result:
        tool = self.tools.get(call.name)
        if tool is None:
            return Result(None, UNLISTED, call.name)
        # The function works on a copy, which becomes the state if all goes well: a transaction for any object.
        trial = copy.deepcopy(self.state)
        result = tool.call(trial, call.arguments)
        if result.error is not None:
            return result
        try:
            view = as_json(trial)
        except NotJSON as error:
            return Result(None, "NotJSON", f"the state after the call: {error}")
        changed = differences(self._view, view)
        self.state, self._view = trial, view
        return Result(result.value, changed=changed)

    def view(self) -> JSON:
        """The state as JSON, made anew: it also shows what was changed without a call."""
        return as_json(self.state)

    def snapshot(self) -> Any:
        """A copy of the state."""
        return copy.deepcopy(self.state)

    def restore(self, snapshot: Any) -> None:
        """Return to a snapshot."""
        self.state = copy.deepcopy(snapshot)
        self._view = as_json(self.state)

    def digest(self) -> str:
        """A short hash of the state, independent of the order of keys."""
        text = json.dumps(self.view(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def verify(self, answers: Sequence[str]) -> EpisodeResult:
        """Compare the final answers and the final state with the label.

        With several acceptable outcomes both have to agree with the same one, if any agrees with either.
        """
        results = [
            EpisodeResult(self.domain.agree(answers, outcome.answers), self._reached(outcome))
            for outcome in self.task.outcomes
        ]
        # Right in both before right in the state alone, and that before the answer: what was done weighs more than
        # what was said about it.
        return max(results, key=lambda result: (result.success, result.state, result.answer))

    def _reached(self, outcome: Outcome) -> bool:
        """Whether the state is that of an outcome; a domain's own check has the last word."""
        verdict = self.domain.check(copy.deepcopy(self.state), self.task)
        return differences(self._initial, self.view()) == outcome.state if verdict is None else bool(verdict)

    @cached_property
    def _initial(self) -> JSON:
        return as_json(self.domain.start(copy.deepcopy(self.task.state)))


class Domain:
    """A world of tools. `from_tools` makes one from functions; the toy worlds are subclasses (`toy.ToyDomain`).

    Attributes:
        name: what tasks call it.
        heading: the word that a conversation begins with; the name, if it is empty.
        title: one line for a reader.
        tools: by name.
        held_out: names of the tools that no training task uses.
        news: what is new about each held-out tool: a word of `toy.NEWS`.
        pools: for each kind of argument (see `Tool.kinds`) the values that a call might carry.
        asks: what tasks are made from: a list of asks (see `Ask`), or a function that draws one.
    """

    name: ClassVar[str]
    heading: ClassVar[str] = ""
    title: ClassVar[str]
    tools: ClassVar[Mapping[str, Tool]]
    held_out: ClassVar[frozenset[str]] = frozenset()
    news: ClassVar[Mapping[str, str]] = {}
    pools: ClassVar[Mapping[str, Sequence[Any]]] = {}
    asks: ClassVar[Any] = ()

    @classmethod
    def from_tools(
        cls,
        name: str,
        tools: type | Iterable[Callable[..., Any] | Tool],
        *,
        tasks: Callable[[Random], Ask] | Sequence[Ask],
        reads: Collection[str] = (),
        start: Callable[[JSON], Any] | None = None,
        check: Callable[[Any, Task], bool] | None = None,
        held_out: Collection[str] = (),
        title: str = "",
    ) -> Domain:
        """A domain from a class, or from functions over a state.

        Args:
            tools: a class, whose public methods are the tools and whose instances are states; or functions with the
                state as their first parameter.
            tasks: a list of asks (see `Ask`), or a function that draws one.
            reads: names of the tools that change nothing; all others count as writes.
            start: makes a state from a task's JSON; by default the class is called with it as keywords, and functions
                get the JSON itself.
            check: `check(state, task)` judges a final state; by default it has to be the one that the plan leads to.
            held_out: names of the tools that no training task uses.

        Raises:
            DomainError: naming the place of what cannot work.
        """
        functions = _methods(tools) if isinstance(tools, type) else list(tools)
        made = [tool if isinstance(tool, Tool) else _tool(tool, reads) for tool in functions]
        twice = sorted({tool.name for tool in made if [t.name for t in made].count(tool.name) > 1})
        unknown = sorted({*reads, *held_out} - {tool.name for tool in made})
        if not made:
            raise DomainError(f"domain {name!r}: there are no tools")
        if twice:
            raise DomainError(f"domain {name!r}: several tools are called {twice[0]}")
        if unknown:
            known = ", ".join(tool.name for tool in made)
            raise DomainError(f"domain {name!r}: no tool is called {unknown[0]}; there are {known}")
        begin = start or (
            (lambda state: tools(**state)) if isinstance(tools, type) else (lambda state: state)
        )
        of_class = inspect.getdoc(tools) if isinstance(tools, type) else None
        parts = {
            "name": name,
            "title": title or (of_class or name).split("\n")[0],
            "tools": {tool.name: tool for tool in made},
            "held_out": frozenset(held_out),
            "start": lambda _, state: begin(state),
            "check": lambda _, state, task: check(state, task) if check else None,
            "asks": staticmethod(tasks) if callable(tasks) else list(tasks),
            "__doc__": f"The domain {name}, made by `Domain.from_tools`.",
        }
        # A class of its own, as if it had been written out: the toy worlds are classes, too.
        domain: Domain = type("".join(name.title().split()), (cls,), parts)()
        type(domain).pools = _pools(domain)
        return domain

    def start(self, state: JSON) -> Any:
        """The state of a session, from a task's JSON (a copy, which may be kept)."""
        return state

    def check(self, state: Any, task: Task) -> bool | None:
        """Whether a final state is as a task wants it; None leaves it to a comparison with the label."""
        return None

    def reset(self, task: Task) -> Session:
        """Open a session of the real environment. World rehearsal never does."""
        return Session(self, task)

    def read(self, text: str) -> Result:
        """A response as data, from its text."""
        return Result.parse(text)

    def agree(self, told: Sequence[str], wanted: Sequence[str]) -> bool:
        """Whether the final answers are those of an outcome; capitals, blanks and a full stop make no difference."""
        return [_bare(text) for text in told] == [_bare(text) for text in wanted]

    def took_effect(self, call: ToolCall, result: Result) -> bool:
        """Whether a call wrote: a write that went well, also one that left everything as it was.

        A rehearsed result does not tell what changed, so the label cannot ask for it: label, rehearsal and environment
        go by the same rule.
        """
        tool = self.tools.get(call.name)
        return result.error is None and bool((tool and tool.write) or result.changed)

    def plausible(self, result: Result) -> bool:
        """Whether a rehearsed result holds nothing that the domain cannot hold."""
        return True

    @cached_property
    def names(self) -> list[str]:
        """Every text that a call's argument can be."""
        texts = (value for pool in self.pools.values() for value in pool if isinstance(value, str))
        return list(dict.fromkeys(texts))

    def names_beside(self, kind: str) -> list[str]:
        """Texts that are arguments of other kinds and not of this one; none for a kind of numbers."""
        pool = self.pools[kind]
        return [name for name in self.names if name not in pool] if isinstance(pool[0], str) else []

    def seen_tools(self) -> list[Tool]:
        """The tools that training may use."""
        return [tool for name, tool in self.tools.items() if name not in self.held_out]

    def draw(self, count: int, seed: int = 0) -> list[Task]:
        """Tasks from the asks: the first `count` of a list, or as many drawn ones.

        Raises:
            DomainError: an ask lacks something, or its plan cannot be carried out.
        """
        if callable(self.asks):
            rng = Random(f"{self.name} {seed}")
            return [self.task(self.asks(rng), f"{self.name}-{seed}-{i}") for i in range(count)]
        return [self.task(ask, f"{self.name}-{i}") for i, ask in enumerate(islice(self.asks, count))]

    def task(self, ask: Ask, identifier: str = "") -> Task:
        """A task with its label, which is made by carrying out the plan once on the real environment.

        Raises:
            DomainError: the ask lacks something, or its state cannot be started from.
        """
        identifier = str(ask.get("id", identifier))
        if missing := [key for key in ("ask", "calls", "answer", "state") if key not in ask]:
            raise DomainError(f"{_place(self.asks)}: the ask {identifier} lacks {', '.join(missing)}")
        calls = [ToolCall(name, dict(arguments)) for name, arguments in ask["calls"]]
        if unknown := sorted({call.name for call in calls} - set(self.tools)):
            raise DomainError(
                f"{_place(self.asks)}: the ask {identifier} calls {unknown[0]!r}, which is no tool"
            )
        answer, state = str(ask["answer"]), as_json(ask["state"])
        task = Task(
            id=identifier,
            domain=self.name,
            messages=[
                {
                    "role": "system",
                    "content": f"{self.heading or self.name} {json.dumps(state, ensure_ascii=False)}",
                },
                {"role": "user", "content": str(ask["ask"])},
            ],
            later_turns=(),
            tools=[tool.schema for tool in self.tools.values()],
            state=state,
            outcomes=(),
            plan=[[call.full_text for call in calls]],
            tags=(*ask.get("tags", ("task",)), f"calls:{len(calls)}"),
        )
        try:
            session = self.reset(task)
        except Exception as error:
            raise DomainError(f"{identifier}: no session starts from its state ({error!r})") from error
        # The label is the real outcome of the plan: what it wrote, and the state that it led to.
        writes = sorted(call.text for call in calls if self.took_effect(call, session.call(call)))
        changed = differences(session._initial, session.view())
        return _labelled(task, Outcome((answer,), tuple(writes), changed))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self.tools)} tools, {len(self.held_out)} held out>"


def plan_calls(task: Task) -> list[ToolCall]:
    """The calls of a task's plan, over all turns."""
    return [call for turn in task.plan for text in turn for call in parse_calls(text, task.tools)]


def _labelled(task: Task, outcome: Outcome) -> Task:
    return Task(**{**vars(task), "outcomes": (outcome,)})


def _methods(cls: type) -> list[Callable[..., Any]]:
    """The public methods of a class, in the order in which they are written."""
    found = {name: member for base in reversed(cls.__mro__[:-1]) for name, member in vars(base).items()}
    return [
        member for name, member in found.items() if inspect.isfunction(member) and not name.startswith("_")
    ]


def _tool(function: Callable[..., Any], reads: Collection[str]) -> Tool:
    if not callable(function) or not hasattr(function, "__name__"):
        raise DomainError(f"{function!r} is no function with a name")
    return FunctionTool(function.__name__, function, write=function.__name__ not in reads)


def _pools(domain: Domain) -> dict[str, list[JSON]]:
    """Values that a call might carry, by the name of the parameter: those of plans, of enumerations, and near ones."""
    pools: dict[str, dict[str, JSON]] = {}
    for tool in domain.tools.values():
        for name, entry in tool.schema["function"]["parameters"].get("properties", {}).items():
            values = entry.get("enum", [True, False] if entry.get("type") == "boolean" else [])
            pools.setdefault(name, {}).update({repr(value): value for value in values})
    for task in domain.draw(PLANS):
        for call in plan_calls(task):
            for name, value in call.arguments.items():
                pools.setdefault(name, {})[repr(value)] = value
    return {name: list(values.values()) for name, values in pools.items()}


PLANS = 100
"""So many tasks are drawn to learn which values the arguments of calls have."""


def _place(asks: Any) -> str:
    return where(asks) if callable(asks) else "tasks"


def _bare(text: str) -> str:
    return " ".join(text.split()).rstrip(".!").casefold()
