"""What is wrong with a domain, found before anything is trained on it.

    for finding in check_domain(library, language=policy.chat, context=policy.context):
        print(finding)

Each finding names a place and says what to do. What is checked is what people get wrong: state that sessions share,
tools that never succeed or never fail in any task, labels that the plan does not reach, words that a language lacks.

What is simplified: tools are tried with the calls of plans and with calls near them, so a fault that needs another call
is not found.
"""

from __future__ import annotations

import copy
import inspect
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from envace_lite.world.domain import Domain, Session, plan_calls
from envace_lite.world.functions import BAD_ARGUMENTS, DomainError, where
from envace_lite.world.result import Result, canonical
from envace_lite.world.task import Task
from envace_lite.world.tools import ToolCall, ToolError

NEAR = 4
"""So many calls near each planned one are tried."""
LONGEST_TEXT = 2000
"""A response of more characters is reported: a rehearse role can hardly write it."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Args:
        kind: a short name, one of the keys of `KINDS`.
        where: a tool with file and line, or a task.
        message: what was seen, and what to do.
    """

    kind: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message} [{self.kind}]"


KINDS = {
    "no tasks": "there is nothing to draw tasks from, or drawing one fails",
    "same id": "two tasks have one id",
    "same task": "a generator of tasks draws the same one again and again",
    "broken plan": "the plan has a call that cannot be made",
    "refused plans": "in most tasks every call of the plan is refused",
    "missed label": "carrying out the plan does not fulfil the task",
    "idle": "a task, or most of them, are fulfilled by doing nothing and saying the same",
    "empty answer": "a task's answer is empty, so that it says nothing",
    "shared state": "sessions, or sessions and tasks, share an object",
    "nondeterministic": "the same call on the same state brings different results",
    "read writes": "a tool that is listed among the reads changes the state",
    "idle write": "a tool that counts as a write never changes the state",
    "never succeeds": "a tool is refused in every task",
    "never fails": "a tool is never refused, so that a rehearsal of it has nothing to get wrong",
    "never called": "no plan calls a tool",
    "bad types": "a tool accepts what its schema allows and then fails on its type",
    "long response": "a response is longer than a rehearse role can write",
    "undocumented": "a tool does not say what it does",
    "words": "the language has no words for something",
    "length": "a conversation does not fit the context",
    "long message": "a message is longer than a policy writes",
}
"""The kinds of findings, with what each means."""


@dataclass
class _Seen:
    """What became of the calls of one tool, over all tasks."""

    succeeded: int = 0
    refused: int = 0
    planned: int = 0
    changed: int = 0
    errors: list[str] = field(default_factory=list)


def check_domain(
    domain: Domain, language: Any = None, *, context: int | None = None, count: int = 60, seed: int = 0
) -> list[Finding]:
    """Look for the usual mistakes.

    Args:
        domain: from `Domain.from_tools`.
        language: the language that a policy speaks (`Policy.chat`); without it words and lengths are not checked.
        context: most tokens of a conversation (`Policy.context`).
        count: how many tasks are looked at.

    Returns:
        What was found, at most one finding of a kind for each place; an empty list if nothing was.
    """
    try:
        tasks = domain.draw(count, seed)
    except (DomainError, ToolError, TypeError, ValueError, KeyError) as error:
        return [Finding("no tasks", domain.name, f"no task can be drawn: {error}")]
    if not tasks:
        return [
            Finding(
                "no tasks",
                domain.name,
                "there are no tasks; give `tasks` a list or a function that draws one",
            )
        ]
    seen = {name: _Seen() for name in domain.tools}
    found = [*_about_tasks(domain, tasks)]
    rng = Random(seed)
    for task in tasks:
        found += _about_one(domain, task)
        found += _about_calls(domain, task, seen, rng)
    found += _about_tools(domain, seen)
    if language is not None:
        found += _about_language(domain, tasks, language, context)
    # One of each kind for each place: the same fault shows in many tasks.
    return list({(finding.kind, finding.where): finding for finding in reversed(found)}.values())[::-1]


def _about_tasks(domain: Domain, tasks: Sequence[Task]) -> Iterator[Finding]:
    """What is wrong with the tasks as a whole."""
    ids = [task.id for task in tasks]
    if twice := sorted({i for i in ids if ids.count(i) > 1}):
        yield Finding("same id", domain.name, f"several tasks are called {twice[0]!r}; ids have to differ")
    bodies = {canonical([task.state, task.plan, [*map(dict, task.messages)]]) for task in tasks}
    if len(tasks) >= 10 and len(bodies) < len(tasks) / 4:
        said = f"{len(tasks)} tasks are {len(bodies)} different ones; draw states and requests from the generator given"
        yield Finding("same task", domain.name, said)
    sessions = [(task, domain.reset(task)) for task in tasks]
    usual, _ = Counter(task.outcomes[0].answers for task in tasks).most_common(1)[0]
    solved = sum(session.verify(usual).success for _, session in sessions)
    if solved > len(tasks) / 2:
        said = f"doing nothing and saying {' / '.join(usual)!r} fulfils {solved} of {len(tasks)} tasks"
        yield Finding(
            "idle", domain.name, f"{said}; ask for more that changes the state, and for other answers"
        )
    told = [[session.call(call) for call in plan_calls(task)] for task, session in sessions]
    refused = [results for results in told if results and all(result.error is not None for result in results)]
    if len(refused) > 0.6 * len(tasks):
        last = refused[-1][-1]
        said = f"in {len(refused)} of {len(tasks)} tasks every call of the plan is refused"
        yield Finding("refused plans", domain.name, f"{said}, last with {last.error}: {last.message}")


def _about_one(domain: Domain, task: Task) -> Iterator[Finding]:
    """What is wrong with one task, its label and its sessions."""
    calls, answers = plan_calls(task), task.outcomes[0].answers
    before = canonical(task.state)
    if not all(text.strip() for text in answers):
        yield Finding("empty answer", task.id, "its answer is empty; let it say what the user asked for")
    first = domain.reset(task)
    for call in calls:
        result = first.call(call)
        if call.name not in domain.tools or result.error == BAD_ARGUMENTS:
            yield Finding(
                "broken plan", task.id, f"its plan has `{call.text}`: {result.error} {result.message}"
            )
            return
    if not first.verify(answers).success:
        yield Finding(
            "missed label", task.id, "its own plan and answer do not fulfil it; look at the `check`"
        )
    wrote = any(domain.took_effect(call, result) for call, result in first.log)
    if wrote and domain.reset(task).verify(answers).state:
        yield Finding("idle", task.id, "its plan writes, and doing nothing fulfils it as well")
    if not calls:
        yield Finding("idle", task.id, "its plan has no calls: the answer alone fulfils it")
    # A second session of the same task, after the first has done its work, has to go the same way.
    if canonical(task.state) != before:
        yield Finding(
            "shared state", task.id, "a session has changed the task itself; `start` has to copy its state"
        )
    second = domain.reset(task)
    outside = _outside(domain, second)
    for call, result in first.log:
        again = second.call(call)
        if again.text == result.text and again.changed == result.changed:
            continue
        place = _place(domain, call)
        if moved := [name for name, value in _outside(domain, second).items() if outside.get(name) != value]:
            said = f"`{call.text}` changes {moved[0]}, which all sessions share; keep it in the state"
            yield Finding("shared state", place, said)
        else:
            said = f"`{call.text}` brought `{result.text}` and then `{again.text}` on the same state"
            yield Finding("nondeterministic", place, f"{said}; take chance and time from the state")
        break


def _outside(domain: Domain, session: Session) -> dict[str, str]:
    """What tools can reach beside a session's state: containers in its class, and those that functions name."""
    places = {
        f"{c.__name__}.{name}": value for c in type(session.state).__mro__ for name, value in vars(c).items()
    }
    for tool in domain.tools.values():
        function = inspect.unwrap(tool.function)
        closed = inspect.getclosurevars(function)
        places |= {**closed.globals, **closed.nonlocals}
    return {name: repr(value) for name, value in places.items() if isinstance(value, dict | list | set)}


def _about_calls(domain: Domain, task: Task, seen: dict[str, _Seen], rng: Random) -> Iterator[Finding]:
    """What is wrong with the tools, tried at each state along the plan with the planned call and calls near it."""
    session = domain.reset(task)
    for call in plan_calls(task):
        for number, tried in enumerate([call, *_near(domain, call, rng)]):
            snapshot = session.snapshot()
            result = session.call(tried)
            yield from _about_result(domain, tried, result)
            account = seen.get(tried.name)
            if account and result.error != BAD_ARGUMENTS:
                account.planned += number == 0
                account.succeeded += result.error is None
                account.refused += result.error is not None
                account.changed += bool(result.changed)
                account.errors += [f"{result.error}: {result.message}"] if result.error else []
            session.restore(snapshot)
        session.call(call)


def _about_result(domain: Domain, call: ToolCall, result: Result) -> Iterator[Finding]:
    place = _place(domain, call)
    if result.error in ("TypeError", "AttributeError", "NameError", "NotJSON", "RecursionError"):
        said = f"`{call.text}` ended with {result.error}: {result.message}"
        yield Finding(
            "bad types", place, f"{said}; raise an error that says what is wrong, or return plain values"
        )
    tool = domain.tools.get(call.name)
    if tool and not tool.write and result.changed:
        yield Finding(
            "read writes",
            place,
            f"it is among the reads, and `{call.text}` changed {next(iter(result.changed))}",
        )
    if len(result.text) > LONGEST_TEXT:
        yield Finding(
            "long response", place, f"`{call.text}` brought {len(result.text)} characters; return less"
        )


def _about_tools(domain: Domain, seen: dict[str, _Seen]) -> Iterator[Finding]:
    """What is wrong with the tools, over all tasks."""
    for name, account in seen.items():
        tool = domain.tools[name]
        place = f"{name} ({where(tool.function)})"
        schema = tool.schema["function"]
        parameters = schema["parameters"].get("properties", {})
        silent = [
            p for p, entry in parameters.items() if not entry.get("description") and "$ref" not in entry
        ]
        if not tool.documentation.strip() or silent:
            about = f"its argument {silent[0]!r}" if silent else "what it does"
            yield Finding(
                "undocumented", place, f"nothing says {about}; a policy knows it from the description alone"
            )
        if not account.planned:
            yield Finding("never called", place, "no plan calls it; add tasks that need it, or leave it out")
        if account.refused and not account.succeeded:
            yield Finding(
                "never succeeds", place, f"it is refused in every task, last with {account.errors[-1]}"
            )
        if account.succeeded and not account.refused and tool.write:
            yield Finding(
                "never fails", place, "it is never refused, so there is nothing to rehearse but its success"
            )
        if account.succeeded and tool.write and not account.changed:
            yield Finding(
                "idle write", place, "it changes nothing; list it in `reads`, or keep what it changes in view"
            )


def _about_language(
    domain: Domain, tasks: Sequence[Task], language: Any, context: int | None
) -> Iterator[Finding]:
    """What a language cannot say of the conversations of these tasks, and which are too long."""
    for task in tasks:
        session = domain.reset(task)
        messages: list[dict[str, Any]] = [dict(message) for message in task.messages]
        for call in plan_calls(task):
            messages.append({"role": "assistant", "tool_calls": [call.to_message()]})
            messages.append({"role": "tool", "name": call.name, "content": session.call(call).text})
        messages.append({"role": "assistant", "content": task.outcomes[0].answers[0]})
        try:
            ids = language.render(messages, task.tools)
        except ValueError as error:
            yield Finding("words", domain.name, f"the language cannot say this domain ({str(error)[:200]})")
            return
        room = context or len(ids)
        if len(ids) > room:
            yield Finding(
                "length", task.id, f"its conversation has {len(ids)} tokens, and the context {room}"
            )
        longest = max(_lengths(language, messages, task))
        if longest > language.longest_message:
            said = f"a message of {longest} tokens, and a policy writes at most {language.longest_message}"
            yield Finding("long message", task.id, said)


def _lengths(language: Any, messages: Sequence[dict[str, Any]], task: Task) -> Iterator[int]:
    """Tokens of each message that a policy would have to write."""
    asked = len(task.messages)
    for place in range(asked, len(messages)):
        message = messages[place]
        role = "act" if message["role"] == "assistant" else message["name"]
        header = language.render(messages[:place], task.tools, prompt=role)
        yield len(language.render(messages[: place + 1], task.tools)) - len(header)


def _near(domain: Domain, call: ToolCall, rng: Random) -> Iterator[ToolCall]:
    """Calls of the same tool with one argument changed to another value of its kind, and of other tools."""
    for _ in range(NEAR if call.name in domain.tools else 0):
        tool = domain.tools[rng.choice([call.name, call.name, *domain.tools])]
        same = tool.name == call.name
        changed = [rng.choice(list(tool.kinds))] if same and tool.kinds else list(tool.kinds)
        drawn = {p: copy.deepcopy(rng.choice(domain.pools[p])) for p in changed if domain.pools.get(p)}
        yield ToolCall(tool.name, {**(call.arguments if same else {}), **drawn})


def _place(domain: Domain, call: ToolCall) -> str:
    tool = domain.tools.get(call.name)
    return f"{call.name} ({where(tool.function)})" if tool else call.name
