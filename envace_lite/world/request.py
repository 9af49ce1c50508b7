"""Scripts: what a user asks for, and an agent that follows it, as carefully as it is told to.

Two kinds of request. *Instructions* say each step, and the world may refuse one (`else` names what to do then).
*Goals* state what is to be reached: options of which some fail, or leave too little, and cannot be undone; or a
record that must come to a value by calls that the agent has to find in the documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

from envace_lite.world.phrases import FOUND, Instruction, Request, situation
from envace_lite.world.tools import FACTS, Tool, ToolCall, ToolResponse, Value, World, records
from envace_lite.world.toy import NO_TOOL, UNKNOWN, ToyDomain


@dataclass(frozen=True)
class ScriptStep:
    """One instructed call: see `language.Instruction`, whose fields these are. `FOUND` may be an argument."""

    call: ToolCall
    otherwise: ToolCall | None = None
    parallel: bool = False
    condition: str = ""
    rule: str = ""

    @property
    def words(self) -> Instruction:
        """What the user says."""
        otherwise = self.otherwise.text if self.otherwise else ""
        return Instruction(self.call.text, otherwise, self.parallel, self.condition, self.rule)


@dataclass(frozen=True)
class Turn:
    """One user turn: `steps`, `options` or a `goal`, and the record that the user asks for at the end."""

    report: str
    steps: tuple[ScriptStep, ...] = ()
    options: tuple[ToolCall, ...] = ()
    keep: tuple[str, int] | None = None
    goal: tuple[str, Value] | None = None

    @property
    def text(self) -> str:
        """The user's words."""
        steps = (step.words for step in self.steps)
        options = (option.text for option in self.options)
        keep, goal = (":".join(map(str, wish)) if wish else "" for wish in (self.keep, self.goal))
        return Request(self.report, tuple(steps), tuple(options), keep, goal).text


@dataclass
class Script:
    """A complete request: records, toolbox, policy, turns; `plans[i]` solves goal turn i."""

    domain: ToyDomain
    state: dict[str, Value]
    toolbox: list[Tool]
    turns: list[Turn]
    forbidden: str | None = None
    plans: dict[int, list[list[ToolCall]]] = field(default_factory=dict)

    def tool(self, name: str) -> Tool:
        """A tool of the toolbox by its name; `KeyError` if it is not there."""
        return {tool.name: tool for tool in self.toolbox}[name]

    def has(self, name: str) -> bool:
        """Whether the toolbox has a tool of this name."""
        return any(tool.name == name for tool in self.toolbox)

    @property
    def messages(self) -> list[dict[str, str]]:
        """System message and first user message."""
        heading = self.domain.heading or self.domain.name
        shown = {key: value for key, value in self.state.items() if key not in self.domain.hidden}
        return [
            {"role": "system", "content": situation(heading, records(shown), self.forbidden)},
            {"role": "user", "content": self.turns[0].text},
        ]


@dataclass(frozen=True)
class Slips:
    """How often an agent slips; the default never does. All values are probabilities.

    Args:
        wrong: an argument of a call is replaced by another of its kind.
        skip: an instructed step is left out.
        repeat: a call is made twice.
        shrug: an error, or a condition that does not hold, is ignored, so that the alternative is not taken.
        eager: the alternative is taken although nothing failed.
        guess: a goal is approached by a blind choice.
        disobey: a forbidden tool is called.
        misreport: the answer is a value from elsewhere in the episode.
    """

    wrong: float = 0.0
    skip: float = 0.0
    repeat: float = 0.0
    shrug: float = 0.0
    eager: float = 0.0
    guess: float = 0.0
    disobey: float = 0.0
    misreport: float = 0.0


@dataclass
class Round:
    """One assistant message with its calls, and their responses."""

    calls: list[ToolCall]
    responses: list[ToolResponse]


@dataclass
class Played:
    """What an agent did: rounds and answer of each turn."""

    turns: list[tuple[list[Round], str]]

    def exchanges(self) -> list[tuple[ToolCall, ToolResponse]]:
        """All calls with their responses, in order."""
        rounds = [r for rounds, _ in self.turns for r in rounds]
        return [pair for r in rounds for pair in zip(r.calls, r.responses, strict=True)]


def play(script: Script, world: World, slips: Slips = Slips(), rng: Random | None = None) -> Played:
    """Follow a script in a world, as carefully as `slips` says."""
    rng = rng or Random(0)

    def slip(probability: float) -> bool:
        return probability > 0 and rng.random() < probability

    def perform(*calls: ToolCall) -> list[ToolResponse]:
        # Of several calls in one message only the first may get a wrong argument.
        if slip(slips.wrong):
            calls = (_with_wrong_argument(script, calls[0], rng), *calls[1:])
        if slip(slips.repeat):
            calls = (calls[0], *calls)
        responses = [_carry_out(script, world, call) for call in calls]
        for response in responses:
            facts.update({key: value for key, value in response.seen.items() if key in FACTS})
        rounds.append(Round(list(calls), responses))
        return responses

    episode = Played([])
    facts: dict[str, Value] = {}
    for index, turn in enumerate(script.turns):
        rounds: list[Round] = []
        if turn.steps:
            fits = _follow_steps(script, turn, slips, slip, perform, world, facts)
        else:
            fits = True
            _pursue_goal(script, index, turn, slips, slip, perform, rng)
        # The answer is what this agent knows: facts that it was told, and the records as this world tells them.
        known = {**facts, **world.records}
        report = str(facts.get(FOUND)) if turn.report == FOUND else turn.report
        answer = str(known.get(report, UNKNOWN)) if fits else NO_TOOL
        if slip(slips.misreport):
            answer = str(rng.choice(list(script.state.values())))
        episode.turns.append((rounds, answer))
    return episode


def _follow_steps(
    script: Script,
    turn: Turn,
    slips: Slips,
    slip: Callable,
    perform: Callable,
    world: World,
    facts: Mapping[str, Value],
) -> bool:
    if not all(script.has(step.call.name) for step in turn.steps):
        return False
    pending: list[ToolCall] = []
    for step, following in pairwise([*turn.steps, None]):
        assert step is not None
        if slip(slips.skip):
            continue
        # A step is made if the policy allows it, its condition holds, and what it names has been found.
        call, otherwise = with_found(step.call, facts), step.otherwise and with_found(step.otherwise, facts)
        allowed = step.call.name != script.forbidden or slip(slips.disobey)
        wanted = step.words.holds({**facts, **world.records}) or slip(slips.shrug)
        makes = allowed and wanted and call is not None
        if makes and call:
            pending.append(call)
        # It goes out in one message with the next step.
        if following is not None and following.parallel:
            continue
        error = perform(*pending)[-1].error if pending else None
        failed = error is not None and step.rule in ("", error)
        # The alternative is for a step that was not made, or that failed by the rule which the request names.
        take_alternative = (not makes or failed) and not slip(slips.shrug)
        if otherwise and otherwise.name != script.forbidden and (take_alternative or slip(slips.eager)):
            perform(otherwise)
        pending = []
    return True


def with_found(call: ToolCall, facts: Mapping[str, Value]) -> ToolCall | None:
    """The call with the name that was found in the place of `found`; None if nothing was."""
    if FOUND not in call.arguments.values():
        return call
    if FOUND not in facts:
        return None
    return ToolCall(call.name, {k: facts[FOUND] if v == FOUND else v for k, v in call.arguments.items()})


def _pursue_goal(
    script: Script, index: int, turn: Turn, slips: Slips, slip: Callable, perform: Callable, rng: Random
) -> None:
    plans = script.plans[index]
    plan = plans[0] if not slips.guess else rng.choice(plans)
    if slip(slips.guess):
        # A blind guess: any option, or any call that names the record in question.
        choices = list(turn.options) or calls_about(script, turn.goal[0] if turn.goal else "")
        plan = [rng.choice(choices)]
    for call in plan:
        response = perform(call)[0]
        if response.error and not slip(slips.shrug):
            # It failed, so a plan that works is followed after all.
            for other in rng.choice(plans):
                perform(other)
            return


def _with_wrong_argument(script: Script, call: ToolCall, rng: Random) -> ToolCall:
    tool = script.tool(call.name)
    if not tool.kinds:
        return call
    parameter = rng.choice(list(tool.kinds))
    value = rng.choice(script.domain.pools[tool.kinds[parameter]])
    return ToolCall(call.name, {**call.arguments, parameter: value})


def _carry_out(script: Script, world: World, call: ToolCall) -> ToolResponse:
    return script.tool(call.name).respond(world, call.arguments)


def calls_about(script: Script, key: str) -> list[ToolCall]:
    """Every known call of a write that names the record `key`."""
    return [
        call
        for tool in script.toolbox
        if tool.write
        for call in script.domain.calls(tool)
        if key in call.arguments.values() and names_known(script, call)
    ]


def names_known(script: Script, call: ToolCall) -> bool:
    """Whether every name in the call is a record of the state."""
    return all(
        value in script.state or kind in script.domain.constants
        for value, kind in zip(call.arguments.values(), script.tool(call.name).kinds.values(), strict=True)
        if isinstance(value, str)
    )


def as_messages(script: Script, episode: Played) -> list[dict[str, Any]]:
    """The whole conversation of an episode, in the standard form."""
    messages: list[dict[str, Any]] = list(script.messages)
    for index, (rounds, answer) in enumerate(episode.turns):
        if index:
            messages.append({"role": "user", "content": script.turns[index].text})
        for r in rounds:
            messages.append({"role": "assistant", "tool_calls": [call.to_message() for call in r.calls]})
            for call, response in zip(r.calls, r.responses, strict=True):
                messages.append({"role": "tool", "name": call.name, "content": response.text})
        messages.append({"role": "assistant", "content": answer})
    return messages


def effective_writes(script: Script, episode: Played) -> tuple[str, ...]:
    """The writes of an episode that took effect by its responses, as compact sentences, sorted."""
    writes = [
        call.text for call, r in episode.exchanges() if r.error is None and script.tool(call.name).write
    ]
    return tuple(sorted(writes))
