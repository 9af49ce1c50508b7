"""Drawing: requests from a seed, and the tasks made of them.

Labels are computed here, when a task is made, by carrying the request out in the real world: for instructions by a
careful agent, for goals by a search over the shortest plans.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from random import Random

from envace_lite.world.bearing import bearing
from envace_lite.world.phrases import FOUND
from envace_lite.world.request import (
    Played,
    Script,
    ScriptStep,
    Turn,
    calls_about,
    effective_writes,
    names_known,
    play,
)
from envace_lite.world.task import Outcome, Task
from envace_lite.world.tools import FACTS, UNKNOWN, Tool, ToolCall, ToolResponse, Value, World
from envace_lite.world.toy import NEWS, NO_TOOL, ToyDomain

REFUSED_SHARE = 0.4
"""Share of the instructed steps that the world refuses."""
UNKNOWN_SHARE = 0.3
"""Share of the refused steps that name a record which does not exist."""
STEP_WEIGHTS = {1: 0.2, 2: 0.35, 3: 0.25, 4: 0.2}
"""How often an instruction task has so many steps (an `else` may add a call)."""


class NotDrawn(Exception):
    """No request of the wanted kind fits these records and tools; draw again."""


def draw_script(domain: ToyDomain, toolbox: Sequence[Tool], rng: Random, *, goal: bool) -> Script:
    """Draw a request for a toolbox.

    Raises:
        NotDrawn: when none fits after some attempts.
    """
    for _ in range(20):
        script = Script(domain, domain.sample_state(rng), list(toolbox), [])
        try:
            if goal:
                _draw_goal(script, rng)
            elif domain.depends and rng.random() < domain.depends:
                _draw_depending(script, rng)
            else:
                _draw_instructions(script, rng)
        except NotDrawn:
            continue
        return script
    raise NotDrawn


def _draw_call(
    script: Script, world: World, rng: Random, *, refused: bool, tools: Sequence[Tool] = ()
) -> tuple[ToolCall, ToolResponse, World]:
    """A call (of one of some tools) whose outcome in `world` is as wanted, and the world after it."""
    # Whether it names a record that does not exist is decided first, and whether the world refuses it is seen by
    # carrying it out: rules stand in the tools alone, and nothing here repeats them.
    unknown = refused and rng.random() < UNKNOWN_SHARE
    for _ in range(30):
        tool = rng.choice(tools or script.toolbox)
        pools = script.domain.pools
        call = ToolCall(tool.name, {name: rng.choice(pools[kind]) for name, kind in tool.kinds.items()})
        if names_known(script, call) == unknown:
            continue
        after = World(world.records)
        response = tool.respond(after, call.arguments)
        if (response.error is not None) == refused:
            return call, response, after
    raise NotDrawn


def _draw_instructions(script: Script, rng: Random) -> None:
    domain, world = script.domain, World(script.state)
    # 1. The two requests in which something must not be done: no tool fits, or the policy forbids one.
    if domain.no_tool and rng.random() < domain.no_tool:
        absent = rng.choice([t for t in domain.seen_tools() if not script.has(t.name)])
        call = rng.choice(list(domain.calls(absent)))
        script.turns = [Turn(rng.choice(list(script.state)), (ScriptStep(call),))]
        return
    if domain.forbids and rng.random() < domain.forbids:
        script.forbidden = rng.choice(script.toolbox).name
    # 2. The steps, drawn in a world that moves on with them, so that a later one can meet what an earlier one did.
    count = rng.choices(list(STEP_WEIGHTS), list(STEP_WEIGHTS.values()))[0]
    steps: list[ScriptStep] = []
    touched: list[str] = []
    for position in range(count):
        refused = rng.random() < REFUSED_SHARE
        call, response, after = _draw_call(script, world, rng, refused=refused)
        # A careful agent leaves a forbidden call out, so the world stays.
        if call.name == script.forbidden:
            after = World(world.records)
        parallel = bool(steps) and not steps[-1].otherwise and rng.random() < domain.parallel
        otherwise = None
        if not parallel and position < 4 and rng.random() < (0.5 if refused else 0.2):
            otherwise, second, after_both = _draw_call(script, after, rng, refused=False)
            if (response.error or call.name == script.forbidden) and otherwise.name != script.forbidden:
                after, response = after_both, second
        world = after
        steps.append(ScriptStep(call, otherwise, parallel))
        shown = [key for key in response.seen if key in world.records]
        # What changed is asked for three times as often as what was only seen.
        touched += [*response.changed] * 3 or shown or [str(next(iter(call.arguments.values())))]
    # 3. What the user wants to hear at the end, and whether half of it is said in a second turn.
    reports = [key for key in touched if not key.isdigit()] or list(script.state)
    if domain.depends:
        visible = [key for key in script.state if key not in domain.hidden]
        reports = [key for key in reports if key in world.records and key not in domain.hidden] or visible
    half = len(steps) // 2
    if domain.second_turn and half and rng.random() < domain.second_turn:
        parts = steps[:half], [replace(steps[half], parallel=False), *steps[half + 1 :]]
        script.turns = [Turn(rng.choice(reports), tuple(part)) for part in parts]
    else:
        script.turns = [Turn(rng.choice(reports), tuple(steps))]


def _draw_depending(script: Script, rng: Random) -> None:
    """Steps of which one asks, and the next depends on what the response says."""
    asking = [tool for tool in script.toolbox if asks(script.domain, tool)]
    if not asking:
        raise NotDrawn
    if script.domain.forbids and rng.random() < script.domain.forbids:
        script.forbidden = rng.choice([tool for tool in script.toolbox if tool not in asking] or asking).name
    # Somewhere before the last step stands the call that asks; the step after it depends on the response.
    size = rng.choices((2, 3, 4), (0.45, 0.35, 0.2))[0]
    before = rng.randrange(size - 1)
    steps: list[ScriptStep] = []
    reports: list[str] = []
    while len(steps) < size:
        world, facts = _carried_out(script, steps)
        if len(steps) != before:
            steps.append(_plain_step(script, world, rng))
        else:
            refused = rng.random() < 0.15
            call, _, _ = _draw_call(script, world, rng, refused=refused, tools=asking)
            steps.append(ScriptStep(call))
            world, facts = _carried_out(script, steps)
            documentation = script.tool(call.name).documentation.split()
            # What a tool that asks will tell stands in its documentation as one word: a fact, or a hidden record.
            (key,) = {*FACTS, *script.domain.hidden} & set(documentation)
            steps.append(_depending_step(script, world, facts, key, rng))
            reports += [key] * 2
    world, facts = _carried_out(script, steps)
    # The user asks for what was told or what changed, more often than for a record that a call merely names.
    reports += [key for key, value in world.records.items() if script.state.get(key) != value] * 2
    reports += [
        str(v)
        for v in steps[-1].call.arguments.values()
        if v in script.state and v not in script.domain.hidden
    ]
    known = {**facts, **world.records}
    visible = [key for key in script.state if key not in script.domain.hidden]
    report = rng.choice([key for key in reports if key in known] or visible)
    if report == FOUND and facts[FOUND] not in world.records:
        raise NotDrawn
    half = len(steps) // 2
    if script.domain.second_turn and half and rng.random() < script.domain.second_turn:
        script.turns = [Turn(rng.choice(visible), tuple(steps[:half])), Turn(report, tuple(steps[half:]))]
    else:
        script.turns = [Turn(report, tuple(steps))]


def asks(domain: ToyDomain, tool: Tool) -> bool:
    """Whether a tool is there to be asked: it changes nothing and tells what the conversation does not show."""
    return not tool.write and bool({*FACTS, *domain.hidden} & set(tool.documentation.split()))


def _carried_out(script: Script, steps: Sequence[ScriptStep]) -> tuple[World, dict[str, Value]]:
    """The world after some steps, and the facts that responses have told."""
    world = World(script.state)
    if not steps:
        return world, {}
    played = play(replace(script, turns=[Turn("", tuple(steps))]), world)
    seen = [response.seen for _, response in played.exchanges()]
    return world, {key: value for part in seen for key, value in part.items() if key in FACTS}


def _plain_step(script: Script, world: World, rng: Random) -> ScriptStep:
    """A call, often with an alternative, now and then for one broken rule alone."""
    refused = rng.random() < REFUSED_SHARE
    call, response, after = _draw_call(script, world, rng, refused=refused)
    if rng.random() >= (0.6 if refused else 0.2):
        return ScriptStep(call)
    otherwise, _, _ = _draw_call(script, after, rng, refused=False)
    rule = ""
    if rng.random() < 0.5:
        own = response.error or "status"
        rule = own if rng.random() < 0.6 else "status" if own == UNKNOWN else UNKNOWN
    return ScriptStep(call, otherwise, rule=rule)


def _depending_step(
    script: Script, world: World, facts: Mapping[str, Value], key: str, rng: Random
) -> ScriptStep:
    """A step that depends on the record or fact `key`: it names what was found, or has a condition."""
    writes = [tool for tool in script.toolbox if tool.write]
    otherwise = _draw_call(script, world, rng, refused=False)[0] if rng.random() < 0.6 else None
    names = script.domain.values[key]
    if key != FOUND:
        call, _, _ = _draw_call(script, world, rng, refused=rng.random() < 0.2, tools=writes)
        value = {**facts, **world.records}.get(key, rng.choice(names))
        if isinstance(value, int):
            # Near the true value, so that a response that is off by one is often enough to decide otherwise.
            at_least = max(1, value + rng.choice((-1, 0, 1, 2)))
            if at_least not in names:
                raise NotDrawn
            return ScriptStep(call, otherwise, condition=f"least {key}:{at_least}")
        return ScriptStep(call, otherwise, condition=f"{key}:{rng.choice(names)}")
    # The step names what was found. Whether it should fail is tried with the true name in its place, which is then
    # hidden behind the word `found`: only the response says which record it is.
    found = facts.get(FOUND, names[0])
    refused = rng.random() < REFUSED_SHARE
    for _ in range(30):
        tool = rng.choice(writes)
        fitting = [name for name, kind in tool.kinds.items() if found in script.domain.pools[kind]]
        if not fitting:
            continue
        call = _draw_call(script, world, rng, refused=refused, tools=[tool])[0]
        call = ToolCall(call.name, {**call.arguments, rng.choice(fitting): found})
        if FOUND in facts and (tool.call(World(world.records), call.arguments).error is not None) != refused:
            continue
        return ScriptStep(
            ToolCall(call.name, {k: FOUND if v == found else v for k, v in call.arguments.items()}), otherwise
        )
    raise NotDrawn


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
    # If several options use up the same amount, the user may want so much of it left (`keep`) that some are ruled out.
    counts = [
        key for response, _ in ends for key, value in response.changed.items() if isinstance(value, int)
    ]
    shared = [
        key
        for key in dict.fromkeys(counts)
        if counts.count(key) > 1 and key in script.state and key not in script.domain.hidden
    ]
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
    # A choice in which every option is good, or none, would be no choice.
    if not good or len(good) == len(options):
        raise NotDrawn
    changed = [key for r, _ in ends for key in r.changed if key not in script.domain.hidden]
    reports = [*(keep[:1] if keep else ()), *changed]
    if not reports:
        raise NotDrawn
    report = rng.choice(reports)
    return Turn(report, options=tuple(options), keep=keep), [[option] for option in good]


def _draw_target(script: Script, rng: Random) -> tuple[Turn, list[list[ToolCall]]]:
    # A few good calls about one record are carried out; what it has become is the goal. So each goal can be reached.
    world, key = World(script.state), ""
    for _ in range(rng.choice((1, 2, 2, 3))):
        steps = calls_about(script, key) if key else None
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
    if key in script.domain.hidden:
        raise NotDrawn
    # The label has to list every way to reach it. A goal with more than four shortest plans is left out.
    plans = _shortest_plans(script, key, world.records[key])
    if not 1 <= len(plans) <= 4:
        raise NotDrawn
    involved = [key, *(k for k in _state_change(script, plans[0]) if k not in script.domain.hidden)]
    return Turn(rng.choice(involved), goal=(key, world.records[key])), plans


def _shortest_plans(script: Script, key: str, value: Value, deepest: int = 3) -> list[list[ToolCall]]:
    calls = calls_about(script, key)
    frontier: list[tuple[list[ToolCall], dict[str, Value]]] = [([], script.state)]
    for _ in range(deepest):
        # One call deeper from every world that was reached; calls that are refused lead nowhere.
        following = []
        for plan, records in frontier:
            for call in calls:
                world = World(records)
                if script.tool(call.name).call(world, call.arguments).error is None:
                    following.append(([*plan, call], world.records))
        found = [plan for plan, records in following if records.get(key) == value]
        if found:
            return found
        frontier = following
    return []


def _state_change(script: Script, plan: Sequence[ToolCall]) -> dict[str, Value]:
    world = World(script.state)
    for call in plan:
        script.tool(call.name).call(world, call.arguments)
    return {key: value for key, value in world.records.items() if script.state.get(key) != value}


def make_task(script: Script, task_id: str) -> Task:
    """Turn a script into a task: carry it out in the real world and write the label."""
    # Each shortest plan is an acceptable end of its own; instructions have one, the careful agent's.
    variants = script.plans.get(0, [[]])
    episodes = []
    for plan in variants:
        world = World(script.state)
        episode = play(replace(script, plans={0: [plan]}), world)
        state = {key: value for key, value in world.records.items() if script.state.get(key) != value}
        episodes.append((episode, state))
    outcomes = [
        Outcome(tuple(answer for _, answer in episode.turns), effective_writes(script, episode), state)
        for episode, state in episodes
    ]
    first = episodes[0][0]
    rests = bearing(script) if script.domain.depends else []
    return Task(
        id=task_id,
        domain=script.domain.name,
        messages=script.messages,
        later_turns=[turn.text for turn in script.turns[1:]],
        tools=[tool.schema for tool in script.toolbox],
        state=script.state,
        outcomes=list({(o.answers, o.writes): o for o in outcomes}.values()),
        plan=[[call.text for r in rounds for call in r.calls] for rounds, _ in first.turns],
        tags=_tags(script, first, rests),
        rests=rests,
    )


def _tags(script: Script, episode: Played, rests: Sequence[Sequence[str]]) -> list[str]:
    exchanges = episode.exchanges()
    turn = script.turns[0]
    tags = ["instructions" if turn.steps else "goal", f"calls:{len(exchanges)}"]
    tags += ["error"] if any(response.error for _, response in exchanges) else []
    tags += ["choose"] if turn.options else ["reach"] if turn.goal else []
    tags += ["policy"] if script.forbidden else []
    tags += ["parallel"] if any(step.parallel for t in script.turns for step in t.steps) else []
    tags += ["turns:2"] if len(script.turns) > 1 else []
    tags += ["no_tool"] if episode.turns[0][1] == NO_TOOL else []
    bearing_on = {slot.split(" ")[-1] for slots in rests for slot in slots}
    tags += [f"rests:{fact}" for fact in (*FACTS, "rule") if fact in bearing_on]
    tags += ["rests:hidden"] if bearing_on & set(script.domain.hidden) else []
    tags += ["secret"] if bearing_on & set(script.domain.secret) else []
    news = {script.domain.news.get(call.name) for call, _ in exchanges}
    tags += [f"new:{what}" for what in NEWS if what in news]
    tags += [f"rule:{rule}" for rule in _rules_met(script, exchanges)]
    tags += ["dual"] if any(script.tool(call.name).owner == "user" for call, _ in exchanges) else []
    return tags


def _rules_met(script: Script, exchanges: Sequence[tuple[ToolCall, ToolResponse]]) -> list[str]:
    """The rules that the plan breaks, and those that rule options out: what has to be known to do well."""
    tried = [script.tool(o.name).call(World(script.state), o.arguments) for o in script.turns[0].options]
    return sorted({r.error for r in (*(response for _, response in exchanges), *tried) if r.error})


def draw_toolbox(domain: ToyDomain, rng: Random, *, held_out: bool) -> list[Tool]:
    """Three or four tools for a prompt; with `held_out`, at least one of them (and one other) is new."""
    names = [tool.name for tool in domain.seen_tools()]
    size = rng.choice((3, 4, 4))
    if held_out:
        new = rng.sample(sorted(domain.held_out), min(rng.choice((1, 2)), len(domain.held_out)))
        names = [*new, *rng.sample(names, size - len(new))]
    else:
        names = rng.sample(names, size)
    rng.shuffle(names)
    toolbox = [domain.tools[name] for name in names]
    if domain.depends and not any(asks(domain, tool) for tool in toolbox) and rng.random() < 0.7:
        place = next(i for i, name in enumerate(names) if name not in domain.held_out)
        toolbox[place] = rng.choice([tool for tool in domain.seen_tools() if asks(domain, tool)])
    return toolbox


def draw_tasks(
    domain: ToyDomain,
    split: str,
    count: int,
    seed: int,
    taken: Collection[str] = (),
    wanted: Callable[[Task], bool] = lambda _: True,
    goal_every: int = 3,
) -> list[Task]:
    """Draw `count` different tasks of a split (`train`, `test` or `held_out`).

    Deterministic from the seed. Held-out tasks need a held-out tool: each plan calls one. No task has a prompt that
    is `taken`, and each is `wanted`. Of `goal_every` tasks the last is a goal; of 0, none.
    """
    rng = Random(f"{domain.name}/{split}/{seed}")
    tasks: dict[str, Task] = {}
    while len(tasks) < count:
        toolbox = draw_toolbox(domain, rng, held_out=split == "held_out")
        if not any(tool.write for tool in toolbox):
            continue
        try:
            goal = goal_every > 0 and len(tasks) % goal_every == goal_every - 1
            script = draw_script(domain, toolbox, rng, goal=goal)
        except NotDrawn:
            continue
        task = make_task(script, f"{domain.name}-{split}-{len(tasks):04d}")
        if "goal" in task.tags and not all(outcome.state for outcome in task.outcomes):
            continue  # nothing would have to be done: a transfer from an account to itself was an option
        calls = [call for turn in task.plan for call in turn]
        needs_new = any(call.split()[0] in domain.held_out for call in calls)
        if len(calls) > 5 or (split == "held_out") != needs_new:
            continue
        prompt = prompt_of(task)
        if prompt not in taken and prompt not in tasks and wanted(task):
            tasks[prompt] = task
    return list(tasks.values())


def prompt_of(task: Task) -> str:
    """What makes a task different from another: its state, tools and request."""
    tools = " ".join(sorted(tool["function"]["name"] for tool in task.tools))
    return " | ".join([*(message["content"] for message in task.messages), tools])


SPLITS = {"train": 1000, "test": 300, "held_out": 150}
"""How many tasks of each domain are shipped."""


def draw_splits(domain: ToyDomain, seed: int) -> dict[str, list[Task]]:
    """The shipped splits; no test task is a training task."""
    splits: dict[str, list[Task]] = {}
    for split, count in SPLITS.items():
        taken = {prompt_of(task) for tasks in splits.values() for task in tasks}
        splits[split] = draw_tasks(domain, split, count, seed, taken)
    return splits
