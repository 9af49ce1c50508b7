"""Scripts: what a user asks for, drawn from a seed; the task made of it; an agent that follows it.

Two kinds of request. *Instructions* say each step, and the world may refuse one (`else` names what to do then).
*Goals* state what is to be reached: options of which some fail, or leave too little, and cannot be undone; or a
record that must come to a value by calls that the agent has to find in the documentation.

Labels are computed here, when a task is made, by carrying the request out in the real world: for instructions by a
careful agent, for goals by a search over the shortest plans.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import Any

from envace_lite.domains.base import NO_TOOL, UNKNOWN, Domain, Outcome, Task
from envace_lite.tools import Tool, ToolCall, ToolResponse, Value, World

REFUSED_SHARE = 0.4
"""Share of the instructed steps that the world refuses."""
UNKNOWN_SHARE = 0.15
"""Share of the refused steps that name a record which does not exist."""
STEP_WEIGHTS = {1: 0.2, 2: 0.35, 3: 0.25, 4: 0.2}
"""How often an instruction task has so many steps (an `else` may add a call)."""


class NotDrawn(Exception):
    """No request of the wanted kind fits these records and tools; draw again."""


@dataclass(frozen=True)
class Step:
    """One instructed call, what to do if it is refused, and whether it is asked for together with the one before."""

    call: ToolCall
    otherwise: ToolCall | None = None
    parallel: bool = False

    @property
    def text(self) -> str:
        return f"{self.call.text} else {self.otherwise.text}" if self.otherwise else self.call.text


@dataclass(frozen=True)
class Turn:
    """One user turn: `steps`, `options` or a `goal`, and the record that the user asks for at the end."""

    report: str
    steps: tuple[Step, ...] = ()
    options: tuple[ToolCall, ...] = ()
    keep: tuple[str, int] | None = None
    goal: tuple[str, Value] | None = None

    @property
    def text(self) -> str:
        """The user's words."""
        if self.options:
            words = "choose " + " or ".join(option.text for option in self.options)
            words += f" keep {self.keep[0]} {self.keep[1]}" if self.keep else ""
        elif self.goal:
            words = f"reach {self.goal[0]} {self.goal[1]}"
        else:
            words = self.steps[0].text
            for step in self.steps[1:]:
                words += (" and " if step.parallel else " then ") + step.text
        return f"{words} report {self.report}"


@dataclass
class Script:
    """A complete request: records, toolbox, policy, turns; `plans[i]` solves goal turn i."""

    domain: Domain
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
        facts = " ".join(f"{key} {value}" for key, value in self.state.items())
        policy = f" policy never {self.forbidden}" if self.forbidden else ""
        return [
            {"role": "system", "content": f"{self.domain.name} {facts}{policy}"},
            {"role": "user", "content": self.turns[0].text},
        ]


@dataclass(frozen=True)
class Slips:
    """How often an agent slips; the default never does. All values are probabilities.

    Args:
        wrong: an argument of a call is replaced by another of its kind.
        skip: an instructed step is left out.
        repeat: a call is made twice.
        shrug: an error is ignored, so that the alternative is not taken.
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
class Episode:
    """What an agent did: rounds and answer of each turn."""

    turns: list[tuple[list[Round], str]]

    def exchanges(self) -> list[tuple[ToolCall, ToolResponse]]:
        """All calls with their responses, in order."""
        rounds = [r for rounds, _ in self.turns for r in rounds]
        return [pair for r in rounds for pair in zip(r.calls, r.responses, strict=True)]


def play(script: Script, world: World, slips: Slips = Slips(), rng: Random | None = None) -> Episode:
    """Follow a script in a world, as carefully as `slips` says."""
    rng = rng or Random(0)

    def slip(probability: float) -> bool:
        return probability > 0 and rng.random() < probability

    def perform(*calls: ToolCall) -> list[ToolResponse]:
        if slip(slips.wrong):
            calls = (_with_wrong_argument(script, calls[0], rng), *calls[1:])
        if slip(slips.repeat):
            calls = (calls[0], *calls)
        responses = [_carry_out(script, world, call) for call in calls]
        rounds.append(Round(list(calls), responses))
        return responses

    episode = Episode([])
    for index, turn in enumerate(script.turns):
        rounds: list[Round] = []
        if turn.steps:
            fits = _follow_steps(script, turn, slips, slip, perform)
        else:
            fits = True
            _pursue_goal(script, index, turn, slips, slip, perform, rng)
        answer = str(world.records.get(turn.report, UNKNOWN)) if fits else NO_TOOL
        if slip(slips.misreport):
            answer = str(rng.choice(list(script.state.values())))
        episode.turns.append((rounds, answer))
    return episode


def _follow_steps(script: Script, turn: Turn, slips: Slips, slip: Callable, perform: Callable) -> bool:
    if not all(script.has(step.call.name) for step in turn.steps):
        return False
    pending: list[ToolCall] = []
    for step, following in pairwise([*turn.steps, None]):
        assert step is not None
        if slip(slips.skip):
            continue
        allowed = step.call.name != script.forbidden or slip(slips.disobey)
        if allowed:
            pending.append(step.call)
        if following is not None and following.parallel:
            continue
        failed = bool(pending) and perform(*pending)[-1].error is not None
        take_alternative = (not allowed or failed) and not slip(slips.shrug)
        if (
            step.otherwise
            and step.otherwise.name != script.forbidden
            and (take_alternative or slip(slips.eager))
        ):
            perform(step.otherwise)
        pending = []
    return True


def _pursue_goal(
    script: Script, index: int, turn: Turn, slips: Slips, slip: Callable, perform: Callable, rng: Random
) -> None:
    plans = script.plans[index]
    plan = plans[0] if not slips.guess else rng.choice(plans)
    if slip(slips.guess):
        choices = list(turn.options) or _calls_about(script, turn.goal[0] if turn.goal else "")
        plan = [rng.choice(choices)]
    for call in plan:
        response = perform(call)[0]
        if response.error and not slip(slips.shrug):
            for other in rng.choice(plans):
                perform(other)
            return


def _with_wrong_argument(script: Script, call: ToolCall, rng: Random) -> ToolCall:
    tool = script.tool(call.name)
    parameter = rng.choice(list(tool.kinds))
    value = rng.choice(script.domain.pools[tool.kinds[parameter]])
    return ToolCall(call.name, {**call.arguments, parameter: value})


def _carry_out(script: Script, world: World, call: ToolCall) -> ToolResponse:
    return script.tool(call.name).call(world, call.arguments)


def _calls_about(script: Script, key: str) -> list[ToolCall]:
    """Every known call of a write that names the record `key`."""
    return [
        call
        for tool in script.toolbox
        if tool.write
        for call in script.domain.calls(tool)
        if key in call.arguments.values() and _names_known(script, call)
    ]


def _names_known(script: Script, call: ToolCall) -> bool:
    return all(
        value in script.state or kind == "month"
        for value, kind in zip(call.arguments.values(), script.tool(call.name).kinds.values(), strict=True)
        if isinstance(value, str)
    )


# ---------------------------------------------------------------------------------------------- drawing


def draw_script(domain: Domain, toolbox: Sequence[Tool], rng: Random, *, goal: bool) -> Script:
    """Draw a request for a toolbox.

    Raises:
        NotDrawn: when none fits after some attempts.
    """
    for _ in range(20):
        script = Script(domain, domain.sample_state(rng), list(toolbox), [])
        try:
            if goal:
                _draw_goal(script, rng)
            else:
                _draw_instructions(script, rng)
        except NotDrawn:
            continue
        return script
    raise NotDrawn


def _draw_call(
    script: Script, world: World, rng: Random, *, refused: bool
) -> tuple[ToolCall, ToolResponse, World]:
    """A call whose outcome in `world` is as wanted, and the world after it."""
    unknown = refused and rng.random() < UNKNOWN_SHARE
    for _ in range(30):
        tool = rng.choice(script.toolbox)
        pools = script.domain.pools
        call = ToolCall(tool.name, {name: rng.choice(pools[kind]) for name, kind in tool.kinds.items()})
        if _names_known(script, call) == unknown:
            continue
        after = World(world.records)
        response = tool.call(after, call.arguments)
        if (response.error is not None) == refused:
            return call, response, after
    raise NotDrawn


def _draw_instructions(script: Script, rng: Random) -> None:
    domain, world = script.domain, World(script.state)
    if domain.no_tool and rng.random() < domain.no_tool:
        absent = rng.choice([t for t in domain.seen_tools() if not script.has(t.name)])
        call = rng.choice(list(domain.calls(absent)))
        script.turns = [Turn(rng.choice(list(script.state)), (Step(call),))]
        return
    if domain.forbids and rng.random() < domain.forbids:
        script.forbidden = rng.choice(script.toolbox).name
    count = rng.choices(list(STEP_WEIGHTS), list(STEP_WEIGHTS.values()))[0]
    steps: list[Step] = []
    touched: list[str] = []
    for position in range(count):
        refused = rng.random() < REFUSED_SHARE
        call, response, after = _draw_call(script, world, rng, refused=refused)
        if call.name == script.forbidden:
            after = World(world.records)
        parallel = bool(steps) and not steps[-1].otherwise and rng.random() < domain.parallel
        otherwise = None
        if not parallel and position < 4 and rng.random() < (0.5 if refused else 0.2):
            otherwise, second, after_both = _draw_call(script, after, rng, refused=False)
            if (response.error or call.name == script.forbidden) and otherwise.name != script.forbidden:
                after, response = after_both, second
        world = after
        steps.append(Step(call, otherwise, parallel))
        touched += [*response.changed] * 3 or [*response.seen] or [str(next(iter(call.arguments.values())))]
    reports = [key for key in touched if not key.isdigit()] or list(script.state)
    half = len(steps) // 2
    if domain.second_turn and half and rng.random() < domain.second_turn:
        parts = steps[:half], [replace(steps[half], parallel=False), *steps[half + 1 :]]
        script.turns = [Turn(rng.choice(reports), tuple(part)) for part in parts]
    else:
        script.turns = [Turn(rng.choice(reports), tuple(steps))]


def _draw_goal(script: Script, rng: Random) -> None:
    drawer = _draw_options if rng.random() < script.domain.chooses else _draw_target
    turn, plans = drawer(script, rng)
    script.turns, script.plans = [turn], {0: plans}


def _draw_options(script: Script, rng: Random) -> tuple[Turn, list[list[ToolCall]]]:
    options, ends = [], []
    for _ in range(rng.choice((2, 3, 3))):
        refused = rng.random() < REFUSED_SHARE
        call, response, after = _draw_call(script, World(script.state), rng, refused=refused)
        if call in options or not script.tool(call.name).write:
            raise NotDrawn
        options.append(call)
        ends.append((response, after.records))
    counts = [
        key for response, _ in ends for key, value in response.changed.items() if isinstance(value, int)
    ]
    shared = [key for key in dict.fromkeys(counts) if counts.count(key) > 1 and key in script.state]
    keep = None
    if shared and rng.random() < 0.8:
        key = rng.choice(shared)
        left = [int(records[key]) for response, records in ends if not response.error]
        keep = (key, max(0, max(left) - rng.choice((0, 0, 1))))
    good = [
        option
        for option, (response, records) in zip(options, ends, strict=True)
        if response.error is None and (keep is None or int(records[keep[0]]) >= keep[1])
    ]
    if not good or len(good) == len(options):
        raise NotDrawn
    report = rng.choice([*(keep[:1] if keep else ()), *(key for r, _ in ends for key in r.changed)])
    return Turn(report, options=tuple(options), keep=keep), [[option] for option in good]


def _draw_target(script: Script, rng: Random) -> tuple[Turn, list[list[ToolCall]]]:
    world, key = World(script.state), ""
    for _ in range(rng.choice((1, 2, 2, 3))):
        steps = _calls_about(script, key) if key else None
        for _ in range(12):
            if steps == []:
                break
            call = rng.choice(steps) if steps else _draw_call(script, world, rng, refused=False)[0]
            response = script.tool(call.name).call(world, call.arguments)
            if response.changed and not response.error:
                key = key if key in response.changed else rng.choice(list(response.changed))
                break
        if isinstance(world.records.get(key), int):
            break  # amounts would make the search for other plans too wide
    if not key or world.records[key] == script.state.get(key) or key not in script.state:
        raise NotDrawn
    plans = _shortest_plans(script, key, world.records[key])
    if not 1 <= len(plans) <= 4:
        raise NotDrawn
    involved = [key, *_state_change(script, plans[0])]
    return Turn(rng.choice(involved), goal=(key, world.records[key])), plans


def _shortest_plans(script: Script, key: str, value: Value, deepest: int = 3) -> list[list[ToolCall]]:
    calls = _calls_about(script, key)
    frontier: list[tuple[list[ToolCall], dict[str, Value]]] = [([], script.state)]
    for _ in range(deepest):
        following = []
        for plan, records in frontier:
            for call in calls:
                world = World(records)
                if _carry_out(script, world, call).error is None:
                    following.append(([*plan, call], world.records))
        found = [plan for plan, records in following if records.get(key) == value]
        if found:
            return found
        frontier = following
    return []


def _state_change(script: Script, plan: Sequence[ToolCall]) -> dict[str, Value]:
    world = World(script.state)
    for call in plan:
        _carry_out(script, world, call)
    return {key: value for key, value in world.records.items() if script.state.get(key) != value}


# ---------------------------------------------------------------------------------------------- labels


def make_task(script: Script, task_id: str, extra_tags: Sequence[str] = ()) -> Task:
    """Turn a script into a task: carry it out in the real world and write the label."""
    variants = script.plans.get(0, [[]])
    episodes = []
    for plan in variants:
        world = World(script.state)
        episode = play(replace(script, plans={0: [plan]}), world)
        state = {key: value for key, value in world.records.items() if script.state.get(key) != value}
        episodes.append((episode, state))
    outcomes = [
        Outcome(tuple(answer for _, answer in episode.turns), _effective_writes(script, episode), state)
        for episode, state in episodes
    ]
    first = episodes[0][0]
    return Task(
        id=task_id,
        domain=script.domain.name,
        messages=script.messages,
        later_turns=[turn.text for turn in script.turns[1:]],
        tools=[tool.schema for tool in script.toolbox],
        state=script.state,
        outcomes=list({(o.answers, o.writes): o for o in outcomes}.values()),
        plan=[[call.text for r in rounds for call in r.calls] for rounds, _ in first.turns],
        tags=[*_tags(script, first), *extra_tags],
    )


def _effective_writes(script: Script, episode: Episode) -> tuple[str, ...]:
    writes = [
        call.text for call, r in episode.exchanges() if r.error is None and script.tool(call.name).write
    ]
    return tuple(sorted(writes))


def _tags(script: Script, episode: Episode) -> list[str]:
    exchanges = episode.exchanges()
    turn = script.turns[0]
    tags = ["instructions" if turn.steps else "goal", f"calls:{len(exchanges)}"]
    tags += ["error"] if any(response.error for _, response in exchanges) else []
    tags += ["choose"] if turn.options else ["reach"] if turn.goal else []
    tags += ["policy"] if script.forbidden else []
    tags += ["parallel"] if any(step.parallel for t in script.turns for step in t.steps) else []
    tags += ["turns:2"] if len(script.turns) > 1 else []
    tags += ["no_tool"] if episode.turns[0][1] == NO_TOOL else []
    tags += ["dual"] if any(script.tool(call.name).owner == "user" for call, _ in exchanges) else []
    return tags


def as_messages(script: Script, episode: Episode) -> list[dict[str, Any]]:
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


def draw_toolbox(
    domain: Domain, rng: Random, *, held_out: bool, extra: Mapping[str, Tool] | None = None
) -> list[Tool]:
    """Three or four tools for a prompt; with `held_out`, at least one of them (and one other) is new."""
    names = [tool.name for tool in domain.seen_tools()]
    size = rng.choice((3, 4, 4))
    if held_out:
        new = rng.sample(sorted(domain.held_out), rng.choice((1, 2)))
        names = [*new, *rng.sample(names, size - len(new))]
    else:
        names = rng.sample(names, size)
    rng.shuffle(names)
    return [{**domain.tools, **(extra or {})}[name] for name in names]


def draw_tasks(domain: Domain, split: str, count: int, seed: int, taken: Collection[str] = ()) -> list[Task]:
    """Draw `count` different tasks of a split (`train`, `test` or `held_out`), a third of them goals.

    Deterministic from the seed. Held-out tasks need a held-out tool: each plan calls one. No task has a prompt that
    is `taken`.
    """
    rng = Random(f"{domain.name}/{split}/{seed}")
    tasks: dict[str, Task] = {}
    while len(tasks) < count:
        toolbox = draw_toolbox(domain, rng, held_out=split == "held_out")
        if not any(tool.write for tool in toolbox):
            continue
        try:
            script = draw_script(domain, toolbox, rng, goal=len(tasks) % 3 == 2)
        except NotDrawn:
            continue
        task = make_task(script, f"{domain.name}-{split}-{len(tasks):04d}")
        calls = [call for turn in task.plan for call in turn]
        needs_new = any(call.split()[0] in domain.held_out for call in calls)
        if len(calls) > 5 or (split == "held_out") != needs_new:
            continue
        if prompt_of(task) not in taken:
            tasks.setdefault(prompt_of(task), task)
    return list(tasks.values())


def prompt_of(task: Task) -> str:
    """What makes a task different from another: its state, tools and request."""
    tools = " ".join(sorted(tool["function"]["name"] for tool in task.tools))
    return " | ".join([*(message["content"] for message in task.messages), tools])


SPLITS = {"train": 1000, "test": 300, "held_out": 150}
"""How many tasks of each domain are shipped."""


def draw_splits(domain: Domain, seed: int) -> dict[str, list[Task]]:
    """The shipped splits; no test task is a training task."""
    splits: dict[str, list[Task]] = {}
    for split, count in SPLITS.items():
        taken = {prompt_of(task) for tasks in splits.values() for task in tasks}
        splits[split] = draw_tasks(domain, split, count, seed, taken)
    return splits
