"""Probe pairs: states of real episodes, calls made there, and what the real environment answers.

The calls of a task's plan are the *planned* ones. They hardly ever go wrong in the ways in which a policy's do, so
each state is also probed with *mutated* calls. Half of the real responses are errors: a probe of successes alone
cannot tell a faithful world from a cheerful one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from random import Random
from typing import Any

from envace_lite.world import Session, Task, get_domain
from envace_lite.world.result import JSON, Result
from envace_lite.world.tools import Exchange, ToolCall, exchange_messages, parse_calls

PLANNED = "planned"
DRAWS = 60
"""So many mutated calls are tried for one that ends as wanted."""


@dataclass(frozen=True)
class ProbePair:
    """One state and call with the real response.

    Args:
        task: whose conversation it is.
        history: the plan's earlier calls with their responses: the real ones, or in `open_loop` rehearsed ones.
        call, real: what is asked now, and the real response.
        mutation: `planned`, or a key of `MUTATIONS`.
        turn: the user turn in which the call is made.
    """

    task: Task
    history: tuple[Exchange, ...]
    call: ToolCall
    real: Result
    mutation: str = PLANNED
    turn: int = 0

    @property
    def planned(self) -> bool:
        """Whether the call belongs to the task's plan."""
        return self.mutation == PLANNED

    @property
    def rests(self) -> Sequence[str]:
        """The parts of the real response on which a decision of the plan rests."""
        place = len(self.history)
        return self.task.rests[place] if self.planned and place < len(self.task.rests) else ()

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation up to the call, in the standard form."""
        messages: list[dict[str, Any]] = [dict(message) for message in self.task.messages]
        exchanges = iter(self.history)
        for turn in range(self.turn + 1):
            if turn:
                answer = self.task.outcomes[0].answers[turn - 1]
                messages.append({"role": "assistant", "content": answer})
                messages.append({"role": "user", "content": self.task.later_turns[turn - 1]})
            # The history ends within the last of these turns.
            for call, response in islice(exchanges, len(self.task.plan[turn])):
                messages += exchange_messages(call, response)
        return [*messages, {"role": "assistant", "tool_calls": [self.call.to_message()]}]


def probe_pairs(
    tasks: Sequence[Task],
    seed: int = 0,
    per_state: int = 2,
    mutations: Sequence[str] = ("value", "tool", "order"),
) -> list[ProbePair]:
    """Every state along each task's plan, with the planned call and mutated ones.

    Args:
        tasks: of any domains.
        seed: of the mutated calls.
        per_state: pairs a state, or fewer where no call ends as wanted.
        mutations: keys of `MUTATIONS`. The default ones are calls that fit a listed tool's documentation.
    """
    rng = Random(seed)
    pairs = []
    for task in tasks:
        session = get_domain(task.domain).reset(task)
        history: list[Exchange] = []
        for turn, texts in enumerate(task.plan):
            calls = [call for text in texts for call in parse_calls(text, task.tools)]
            for number, call in enumerate(calls):
                state = _State(session, call, calls[number + 1 :], rng)
                for made, real, mutation in _probes(state, per_state, mutations):
                    pairs.append(ProbePair(task, tuple(history), made, real, mutation, turn))
                history.append((call, session.call(call)))
    return _balanced(pairs, rng)


def _balanced(pairs: list[ProbePair], rng: Random) -> list[ProbePair]:
    """Without so many mutated pairs of one kind that errors and successes are even: in some states nothing succeeds."""
    errors = [pair.real.error is not None for pair in pairs]
    surplus = 2 * sum(errors) - len(pairs)
    spare = [i for i, pair in enumerate(pairs) if not pair.planned and errors[i] == (surplus > 0)]
    left_out = set(rng.sample(spare, min(abs(surplus), len(spare))))
    return [pair for i, pair in enumerate(pairs) if i not in left_out]


def _probes(
    state: _State, per_state: int, mutations: Sequence[str]
) -> Iterator[tuple[ToolCall, Result, str]]:
    """The planned call, then mutated ones, each with its real response and the name of the mutation."""
    real = state.answer(state.planned)
    yield state.planned, real, PLANNED
    used = {state.planned}
    kinds = cycle(state.rng.sample(list(mutations), len(mutations)))
    for number in range(1, per_state):
        error = (real.error is not None) != (number % 2 == 1)  # in turn, the first unlike the planned one
        for _ in range(DRAWS):
            kind = next(kinds)
            if kind in _OF_ARGUMENTS and not state.planned.arguments:
                continue
            made = MUTATIONS[kind](state)
            if made is None or made in used:
                continue
            response = state.answer(made)
            if (response.error is not None) == error:
                used.add(made)
                yield made, response, kind
                break


@dataclass
class _State:
    """A state of a real episode: the planned call, those that follow it in the turn, and how it can be changed."""

    session: Session
    planned: ToolCall
    later: Sequence[ToolCall]
    rng: Random

    def __post_init__(self) -> None:
        self.domain = get_domain(self.session.task.domain)
        self.kinds = self.domain.tools[self.planned.name].kinds

    def answer(self, call: ToolCall) -> Result:
        """The real response to a call."""
        before = self.session.snapshot()
        response = self.session.call(call)
        self.session.restore(before)
        return response

    def _drawn(self) -> tuple[str, str]:
        """One of the planned call's parameters, with its kind."""
        return self.rng.choice(list(self.kinds.items()))

    def _changed(self, parameter: str, value: JSON) -> ToolCall:
        return ToolCall(self.planned.name, {**self.planned.arguments, parameter: value})

    def value(self) -> ToolCall:
        parameter, kind = self._drawn()
        return self._changed(parameter, self.rng.choice(self.domain.pools[kind]))

    def tool(self) -> ToolCall:
        # Half of the arguments are kept where their kind fits: otherwise hardly any such call would succeed.
        kept = {self.kinds[name]: value for name, value in self.planned.arguments.items()}
        name = self.rng.choice(self.session.task.tools)["function"]["name"]
        drawn: dict[str, JSON] = {}
        for parameter, kind in self.domain.tools[name].kinds.items():
            keep = kind in kept and self.rng.random() < 0.5
            drawn[parameter] = kept[kind] if keep else self.rng.choice(self.domain.pools[kind])
        return ToolCall(name, drawn)

    def order(self) -> ToolCall | None:
        return self.rng.choice(self.later) if self.later else None

    def drop(self) -> ToolCall:
        left_out, _ = self._drawn()
        rest = {name: value for name, value in self.planned.arguments.items() if name != left_out}
        return ToolCall(self.planned.name, rest)

    def type(self) -> ToolCall:
        parameter, kind = self._drawn()
        numeric = isinstance(self.domain.pools[kind][0], int)
        wrong = self.rng.choice(self.domain.names) if numeric else self.rng.randrange(10)
        return self._changed(parameter, wrong)

    def enum(self) -> ToolCall | None:
        parameter, kind = self._drawn()
        others = self.domain.names_beside(kind)
        return self._changed(parameter, self.rng.choice(others)) if others else None


_OF_ARGUMENTS = ("value", "drop", "type", "enum")
"""Those that need a call with arguments."""
MUTATIONS: dict[str, Callable[[_State], ToolCall | None]] = {
    "value": _State.value,
    "tool": _State.tool,
    "order": _State.order,
    "drop": _State.drop,
    "type": _State.type,
    "enum": _State.enum,
}
"""How a planned call is changed: another value of the same kind; another listed tool; a later call of the plan, too
early; an argument left out; a word for a number or a number for a word; a name of another kind. None: it cannot be."""
