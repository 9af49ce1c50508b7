"""Probe pairs: states of real episodes, calls made there, and what the real environment answers.

The calls of a task's plan are the *planned* ones. They hardly ever go wrong in the ways in which a policy's do, so
each state is also probed with *mutated* calls. Half of the real responses are errors: a probe of successes alone
cannot tell a faithful world from a cheerful one.

For each part of a real response, `groundings` says whether a reader of the conversation could have known it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from random import Random
from typing import Any

from envace_lite.world import Domain, Session, Task, get_domain
from envace_lite.world.tools import FACTS, UNKNOWN, ToolCall, ToolResponse, Value, parse_calls, records

Exchange = tuple[ToolCall, ToolResponse]
PLANNED = "planned"
DRAWS = 60
"""So many mutated calls are tried for one that ends as wanted."""

INITIAL, HISTORY, HIDDEN = GROUNDINGS = ("initial", "history", "hidden")
"""Where a leaf of a response can be known from: the prompt, an earlier response, or nowhere in the conversation."""


@dataclass(frozen=True)
class ProbePair:
    """One state and call with the real response.

    Args:
        task: whose conversation it is.
        history: the plan's earlier calls with their responses (the real ones, unless `with_history` changed them).
        call: what is asked now.
        real: the real response.
        mutation: `planned`, or a key of `MUTATIONS`.
        turn: the user turn in which the call is made.
    """

    task: Task
    history: tuple[Exchange, ...]
    call: ToolCall
    real: ToolResponse
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
            for _ in self.task.plan[turn]:
                if (exchange := next(exchanges, None)) is None:
                    break
                call, response = exchange
                messages.append({"role": "assistant", "tool_calls": [call.to_message()]})
                messages.append({"role": "tool", "name": call.name, "content": response.text})
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
            for number, text in enumerate(texts):
                before = session.snapshot()
                (call,) = parse_calls(text, task.tools)
                later = [parse_calls(other, task.tools)[0] for other in texts[number + 1 :]]
                exchange = call, session.call(call)
                after = session.snapshot()
                session.restore(before)
                state = _State(session, call, later, rng)
                for made, real, mutation in _probes(state, exchange, per_state, mutations):
                    pairs.append(ProbePair(task, tuple(history), made, real, mutation, turn))
                session.restore(after)
                history.append(exchange)
    return _balanced(pairs, rng)


def _balanced(pairs: list[ProbePair], rng: Random) -> list[ProbePair]:
    """Without so many mutated pairs of one kind that errors and successes are even: in some states nothing succeeds."""
    errors = [pair.real.error is not None for pair in pairs]
    surplus = 2 * sum(errors) - len(pairs)
    spare = [i for i, pair in enumerate(pairs) if not pair.planned and errors[i] == (surplus > 0)]
    left_out = set(rng.sample(spare, min(abs(surplus), len(spare))))
    return [pair for i, pair in enumerate(pairs) if i not in left_out]


@dataclass
class _State:
    """A state of a real episode: the planned call, and the later ones of the turn."""

    session: Session
    planned: ToolCall
    later: Sequence[ToolCall]
    rng: Random

    @property
    def domain(self) -> Domain:
        return get_domain(self.session.task.domain)

    def kinds(self, call: ToolCall) -> dict[str, str]:
        return self.domain.tools[call.name].kinds

    def answer(self, call: ToolCall) -> ToolResponse:
        """The real response, leaving the state as it is."""
        before = self.session.snapshot()
        response = self.session.call(call)
        self.session.restore(before)
        return response

    def parameter(self) -> tuple[str, str]:
        """One of the planned call's parameters with its kind."""
        return self.rng.choice(list(self.kinds(self.planned).items()))

    def changed(self, parameter: str, value: Value) -> ToolCall:
        return ToolCall(self.planned.name, {**self.planned.arguments, parameter: value})


def _probes(
    state: _State, exchange: Exchange, per_state: int, mutations: Sequence[str]
) -> Iterator[tuple[ToolCall, ToolResponse, str]]:
    call, real = exchange
    yield call, real, PLANNED
    used = {call}
    kinds = cycle(state.rng.sample(list(mutations), len(mutations)))
    for number in range(1, per_state):
        error = (real.error is not None) != (number % 2 == 1)  # in turn, the first unlike the planned one
        for _ in range(DRAWS):
            kind = next(kinds)
            if kind in _OF_ARGUMENTS and not call.arguments:
                continue
            made = MUTATIONS[kind](state)
            if made is None or made in used:
                continue
            response = state.answer(made)
            if (response.error is not None) == error:
                used.add(made)
                yield made, response, kind
                break


# ------------------------------------------------------------------------------------------------ mutations


def _value(state: _State) -> ToolCall:
    parameter, kind = state.parameter()
    return state.changed(parameter, state.rng.choice(state.domain.pools[kind]))


def _tool(state: _State) -> ToolCall:
    """Arguments of the planned call are kept where their kind fits."""
    own = state.kinds(state.planned)
    kept = {own[name]: value for name, value in state.planned.arguments.items()}
    name = state.rng.choice(state.session.task.tools)["function"]["name"]
    drawn = {
        parameter: kept[kind]
        if kind in kept and state.rng.random() < 0.5
        else state.rng.choice(state.domain.pools[kind])
        for parameter, kind in state.domain.tools[name].kinds.items()
    }
    return ToolCall(name, drawn)


def _order(state: _State) -> ToolCall | None:
    return state.rng.choice(state.later) if state.later else None


def _drop(state: _State) -> ToolCall:
    parameter, _ = state.parameter()
    return ToolCall(
        state.planned.name, {name: v for name, v in state.planned.arguments.items() if name != parameter}
    )


def _type(state: _State) -> ToolCall:
    parameter, kind = state.parameter()
    numeric = isinstance(state.domain.pools[kind][0], int)
    return state.changed(
        parameter, state.rng.choice(_names(state.domain)) if numeric else state.rng.randrange(10)
    )


def _enum(state: _State) -> ToolCall | None:
    parameter, kind = state.parameter()
    if isinstance(state.domain.pools[kind][0], int):
        return None
    others = [key for key in state.domain.values if key not in state.domain.pools[kind]]
    return state.changed(parameter, state.rng.choice(others)) if others else None


@cache
def _names(domain: Domain) -> list[str]:
    """Every word that occurs as an argument, a key or a value in a domain."""
    groups: list[Sequence[Value]] = [*domain.pools.values(), list(domain.values), *domain.values.values()]
    return list(dict.fromkeys(word for group in groups for word in group if isinstance(word, str)))


_OF_ARGUMENTS = ("value", "drop", "type", "enum")
"""Those that need a call with arguments."""
MUTATIONS: dict[str, Callable[[_State], ToolCall | None]] = {
    "value": _value,
    "tool": _tool,
    "order": _order,
    "drop": _drop,
    "type": _type,
    "enum": _enum,
}
"""How a planned call is changed: another value of the same kind; another listed tool; a later call of the plan, too
early; an argument left out; a word for a number or a number for a word; a name of another kind."""


# ------------------------------------------------------------------------------------------------ leaves


def leaves(response: ToolResponse) -> dict[str, str]:
    """A response taken apart: slot -> content. Slots are `seen KEY`, `verdict` and `changed KEY`.

    The words `o1:pending needs:paid error status` have the leaves `seen o1`, `seen needs` and `verdict`.
    """
    return {
        **{f"seen {key}": str(value) for key, value in response.seen.items()},
        "verdict": "ok" if response.error is None else f"error {response.error}",
        **{f"changed {key}": str(value) for key, value in response.changed.items()},
    }


def groundings(pair: ProbePair) -> dict[str, str]:
    """For each leaf of the real response, where it can be known from: slot -> `initial`, `history` or `hidden`.

    A record that was looked up is grounded in the earlier response that changed it (`history`), or in the prompt
    (`initial`): its state, the tool's documentation, and also the absence of a record that does not exist. A record that
    the prompt does not show starts as documented, unless it is a secret. Otherwise it is `hidden` (the length of a
    month). What the tool works out, the verdict and what changed follow from what was looked up, so they are as hidden
    as the least known of these.
    """
    domain = get_domain(pair.task.domain)
    prompt = {word for message in pair.task.messages for word in message["content"].split()}
    prompt |= {
        word
        for tool in pair.task.tools
        if tool["function"]["name"] == pair.call.name
        for word in tool["function"]["description"].split()
    }
    told = {key for _, response in pair.history for key in response.changed}
    found = {}
    for key, value in pair.real.seen.items():
        if key in FACTS:
            continue
        (word,) = records({key: value})
        absent = value == UNKNOWN and key not in pair.task.state
        starts = key in domain.hidden - domain.secret
        known = word in prompt or absent or starts
        found[f"seen {key}"] = HISTORY if key in told else INITIAL if known else HIDDEN
    weakest = max(found.values(), key=GROUNDINGS.index, default=INITIAL)
    return {slot: found.get(slot, weakest) for slot in leaves(pair.real)}
