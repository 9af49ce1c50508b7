"""A rule-based verifier that only reads: is a request carried out, as the conversation itself tells it?

It knows the user's language and nothing else: no label, no environment, no rule of the world. So it is as right as the
responses that it reads. Where they are real it checks a deed; where they are rehearsed it checks a thought, before
anything is done.

What is simplified against the paper: there the policy judges its rehearsals in words. This verifier is written by hand
for the language of the course, as a goal check or a unit test would be for a real system.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envace_lite.world.phrases import FOUND, Instruction, Request, forbidden_tool
from envace_lite.world.task import Task
from envace_lite.world.tools import FACTS, ToolCall, ToolResponse, Value, as_value, records
from envace_lite.world.toy import NO_TOOL, UNKNOWN

DONE, OPEN, BROKEN = "done", "open", "broken"
"""Carried out and answered; not yet, and nothing speaks against it; something else was done or said than asked for."""


@dataclass
class _Turn:
    """A request, the calls made for it with their responses (None: not known), and the answers to it."""

    request: Request
    exchanges: list[tuple[str, ToolResponse | None]] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)


def request_status(task: Task, said: Sequence[Mapping[str, Any]] = ()) -> str:
    """What becomes of a task's requests, by the task's own messages and those that follow: a word of the above.

    Steps are to be called in their order, an alternative exactly where its step was told to fail (or is forbidden). A
    goal is reached when the responses say so. Each answer is the value told last of the record asked for.

    Args:
        task: its messages may be a conversation that has gone on for a while.
        said: messages that follow. Calls at the end may be without a response.
    """
    forbidden = forbidden_tool(task.messages[0]["content"])
    listed = {tool["function"]["name"] for tool in task.tools}
    shown = set(task.messages[0]["content"].split())
    told = {key: value for key, value in task.state.items() if not shown.isdisjoint(records({key: value}))}
    asked = {*FACTS, *(task.state.keys() - told.keys())}  # what only a response can tell
    turns = _turns([*task.messages[1:], *said])
    for turn in turns:
        before = dict(told)
        for _, response in turn.exchanges:
            _hear(told, response, asked)
        report = str(told.get(FOUND)) if turn.request.report == FOUND else turn.request.report
        wanted = str(told.get(report, UNKNOWN))
        if not turn.request.steps:
            status = _reached(turn.request, dict(turn.exchanges), told)
        elif all(step.call.split(" ")[0] in listed for step in turn.request.steps):
            status = _followed(turn.request.steps, turn.exchanges, forbidden, before, asked)
        else:
            status, wanted = BROKEN if turn.exchanges else DONE, NO_TOOL
        if not turn.answers:
            return BROKEN if status == BROKEN else OPEN
        if status != DONE or turn.answers != [wanted]:
            return BROKEN
    return OPEN if len(turns) <= len(task.later_turns) else DONE


def _turns(conversation: Sequence[Mapping[str, Any]]) -> list[_Turn]:
    turns: list[_Turn] = []
    for message in conversation:
        if message["role"] == "user":
            turns.append(_Turn(Request.read(message["content"])))
        elif message["role"] == "tool":
            exchanges = turns[-1].exchanges
            place = next(i for i, (_, response) in enumerate(exchanges) if response is None)
            exchanges[place] = (exchanges[place][0], ToolResponse.parse(message["content"]))
        elif calls := message.get("tool_calls"):
            turns[-1].exchanges += [(ToolCall.from_message(call).text, None) for call in calls]
        else:
            turns[-1].answers.append(message["content"])
    return turns


def _hear(told: dict[str, Value], response: ToolResponse | None, asked: Collection[str]) -> None:
    """What a response adds to what is known: what only a response can tell (`asked`), and records that it changed."""
    if response:
        told.update({key: value for key, value in response.seen.items() if key in asked})
        told.update(response.changed)


def _reached(request: Request, made: Mapping[str, ToolResponse | None], told: Mapping[str, Value]) -> str:
    """Whether a record came to its value, or one of the options was taken and left enough."""
    if request.goal:
        key, _, value = request.goal.partition(":")
        return DONE if str(told.get(key)) == value else OPEN
    taken = [made[option] for option in request.options if option in made]
    done = any(response is not None and response.error is None for response in taken)
    key, _, least = request.keep.partition(":")
    return DONE if done and (not key or told[key] >= as_value(least)) else OPEN  # type: ignore[operator]


def _followed(
    steps: Sequence[Instruction],
    exchanged: Sequence[tuple[str, ToolResponse | None]],
    forbidden: str,
    told: dict[str, Value],
    asked: Collection[str],
) -> str:
    """Whether the calls are those of the steps, in order, each with its alternative where it was told to fail."""
    made, unfinished = iter(exchanged), False

    def right(call: str) -> tuple[bool, ToolResponse | None]:
        """Whether the next call is this one (or there is none yet), and its response."""
        nonlocal unfinished
        text, response = next(made, (call, None))
        _hear(told, response, asked)
        unfinished |= response is None
        return text == call, response

    for step in steps:
        if unfinished and (step.condition or FOUND in step.call.split()):
            return OPEN  # what this step rests on is not known yet
        call, otherwise = (_with_found(words, told) for words in (step.call, step.otherwise))
        failed = not call or call.split()[0] == forbidden or not step.holds(told)
        if not failed:
            fits, response = right(call)
            if not fits:
                return BROKEN
            failed = response is not None and response.error is not None and step.rule in ("", response.error)
        if failed and otherwise and otherwise.split()[0] != forbidden and not right(otherwise)[0]:
            return BROKEN
    if next(made, None) is not None:
        return BROKEN
    return OPEN if unfinished else DONE


def _with_found(call: str, told: Mapping[str, Value]) -> str:
    """The call with the name that was found in the place of `found`; "" if nothing was."""
    words = call.split(" ")
    if FOUND not in words:
        return call
    return " ".join(str(told[FOUND]) if word == FOUND else word for word in words) if FOUND in told else ""
