"""The gate: reads pass, writes are rehearsed first. For tools of your own, outside training.

What is simplified against the paper: whether to revise is decided by a rule on the rehearsed response, not by the
policy; what to do instead is left to the agent that made the call.

    gate = Gate({"look": look, "refund": refund}, rehearser, reads={"look"})
    decision, result = gate("refund", order="o3")    # commit: the tool's own result; revise, ask: None
    print(decision.line)

A call goes through these steps, alone (`turns`), and each is in the journal before the next begins (`journal`):

    1. the arguments are copied, and what is to be hidden is hidden (`redaction`)
    2. the rehearser imagines the response, knowing what was carried out before
    3. the rule decides; a person may be asked
    4. the tool is called
    5. the real response is set against the imagined one

Nothing here needs torch.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import ContextVar, copy_context
from dataclasses import replace
from threading import Thread
from typing import Any

from envace_lite.rehearsal.guard import imagining
from envace_lite.rehearsal.journal import COMMITTING, DONE, HELD, GateDecision, Journal, JournalError
from envace_lite.rehearsal.redaction import Redaction
from envace_lite.rehearsal.turns import Turns
from envace_lite.world import Session
from envace_lite.world.functions import as_coroutine, awaited, failure
from envace_lite.world.result import ABSTAIN, MALFORMED, NotJSON, Rehearsed, Result, as_json, leaf_differences
from envace_lite.world.tools import Exchange, ToolCall

Rehearser = Callable[[ToolCall, Sequence[Exchange]], Result | Rehearsed]
"""From a call, and what the gate has carried out before, to the response that is to be expected."""
Rule = Callable[[ToolCall, Rehearsed], tuple[str, str]]
"""From a call and its rehearsed response to `commit`, `revise` or `ask`, and the reason in a few words."""

ACTIONS = ("commit", "revise", "ask")


def careful(call: ToolCall, rehearsed: Rehearsed) -> tuple[str, str]:
    """Commit what should go well, revise what should be refused, ask a person where the rehearsal does not help."""
    error, message = rehearsed.response.error, rehearsed.response.message
    if error == MALFORMED:
        return "ask", "the rehearsed response makes no sense"
    if error == ABSTAIN:
        return "ask", "the rehearsal does not know" + (f": {message}" if message else "")
    if error is not None:
        return "revise", f"it should be refused: {error}"
    return "commit", "it should go well"


def if_sure(threshold: float, rule: Rule = careful) -> Rule:
    """A rule that asks a person where the whole rehearsed response is less probable than `threshold`, from 0 to 1."""

    def decide(call: ToolCall, rehearsed: Rehearsed) -> tuple[str, str]:
        probability = math.exp(rehearsed.log_prob)
        if probability < threshold:
            return "ask", f"the rehearsal is not sure: {probability:.2f} of {threshold:.2f}"
        return rule(call, rehearsed)

    return decide


class Gate:
    """Tools behind a gate. Every call is in the journal, whatever becomes of it; exceptions pass unchanged.

    Calls may come from many threads and event loops, and from the tools themselves. They are let in one at a time;
    while a person is asked about one, the others wait.

    Args:
        tools: functions by name, also async ones; they are called with the call's arguments.
        rehearser: imagines the response to a call.
        reads: names of the tools that change nothing, which pass without a rehearsal. All others are writes.
        rule: decides; `careful` by default.
        ask: asks a person about a decision with the action `ask`; True commits. Without it, such a call is held back.
        limit: seconds that a rehearsal may take; one that takes longer counts as not known. A tool has no limit: if it
            were left behind, nobody would know what it did.
        redact: names of arguments, and of keys in responses, whose values only the tools may see.
        journal: where the decisions are kept, with those of earlier programs; in memory by default.
        session: the real session behind the tools, if there is one: it is guarded while a call is rehearsed.

    Raises:
        KeyError: `reads` names what is no tool.
    """

    def __init__(
        self,
        tools: Mapping[str, Callable[..., Any]],
        rehearser: Rehearser,
        *,
        reads: Collection[str] = (),
        rule: Rule = careful,
        ask: Callable[[GateDecision], bool] | None = None,
        limit: float | None = None,
        redact: Collection[str] = (),
        journal: Journal | None = None,
        session: Session | None = None,
    ):
        if unknown := sorted(set(reads) - set(tools)):
            raise KeyError(f"no such tools: {', '.join(unknown)}; there are {', '.join(tools)}")
        self.tools, self.rehearser, self.reads = dict(tools), rehearser, frozenset(reads)
        self.rule, self.ask, self.limit, self.redact, self.session = rule, ask, limit, redact, session
        self.journal = Journal() if journal is None else journal
        self._read = session.domain.read if session else Result.parse
        self.history: list[Exchange] = [(row.call, self._read(row.real)) for row in self.journal.done()]
        # A read that was cut off has changed nothing.
        self.unsettled = {n: row for n, row in self.journal.unsettled().items() if row.name not in self.reads}
        self._turns = Turns()

    @classmethod
    def around(cls, session: Session, rehearser: Rehearser, **options: Any) -> Gate:
        """A gate around the tools of a session, which say themselves what they write; `options` as for a gate."""

        def real(name: str) -> Callable[..., Result]:
            return lambda **arguments: session.call(ToolCall(name, arguments))

        reads = {name for name, tool in session.tools.items() if not tool.write}
        tools = {name: real(name) for name in session.tools}
        return cls(tools, rehearser, reads=reads, session=session, **options)

    def __call__(self, name: str, /, **arguments: Any) -> tuple[GateDecision, Any]:
        """Pass a call on, or hold it back: `call` with the arguments written as keywords."""
        return self.call(name, arguments)

    def call(
        self, name: str, arguments: Mapping[str, Any], key: str | None = None
    ) -> tuple[GateDecision, Any]:
        """Pass a call on, or hold it back. Returns the decision, and the tool's own result or None.

        Args:
            key: the caller's own name for this call. A call whose key has been carried out is not carried out again,
                also by another program with the same journal: its decision comes back, and the response as it was read
                (a `Result`).

        Raises:
            KeyError: no tool has that name.
            ValueError: the rule decided something unheard of.
            NotJSON: an argument has no JSON view; its path is named.
            JournalError: a program was ended in the middle of a call, and nobody has said yet what came of it (see
                `settle`).
        """
        with self._turns.turn():
            return self._serve(name, arguments, key)

    async def acall(
        self, name: str, arguments: Mapping[str, Any], key: str | None = None
    ) -> tuple[GateDecision, Any]:
        """`call` from an event loop: it waits without blocking the loop, on which async tools then run.

        If the caller is cancelled while the call is served, the call is still served to its end.
        """
        loop = asyncio.get_running_loop()
        async with self._turns.aturn():
            context = copy_context()
            context.run(_LOOP.set, loop)
            # A thread of its own: those that the loop shares may all be busy waiting for each other.
            with ThreadPoolExecutor(1, "gate") as thread:
                served = loop.run_in_executor(thread, context.run, self._serve, name, arguments, key)
                cancelled = False
                while not served.done():  # the turn ends when the call does
                    try:
                        await asyncio.wait([served])
                    except asyncio.CancelledError:
                        cancelled = True
            if cancelled:
                raise asyncio.CancelledError
            return served.result()

    def settle(self, number: int, real: Result | None) -> None:
        """Say what came of a call in the middle of which a program was ended.

        Args:
            number: a key of `unsettled`.
            real: what it brought; None if it was not carried out.
        """
        with self._turns.turn():
            decision = self.unsettled[number]
            if real is None:
                self.journal.save(
                    replace(decision, stage=HELD, reason="the program ended before it was carried out")
                )
            else:
                self._finish(decision, self._read(decision.rehearsed), real)
            del self.unsettled[number]

    def _serve(self, name: str, arguments: Mapping[str, Any], key: str | None) -> tuple[GateDecision, Any]:
        # 1. Copies: neither a rehearser nor a rule can change what is carried out.
        given = copy.deepcopy(dict(arguments))
        hidden = Redaction(self.redact, ToolCall(name, as_json(given)))
        earlier = self.journal.carried_out(key) if key is not None else None
        if earlier is not None and earlier.stage == DONE:
            return earlier, self._read(earlier.real)
        if earlier is not None and earlier.number not in self.unsettled:
            raise JournalError(f"the call with the key {key!r} is being carried out: {earlier.candidate}")
        decision = self.journal.save(
            GateDecision(hidden.call.text, "", "", "", name=name, arguments=hidden.call.arguments, key=key)
        )
        # 2. and 3. Whatever goes wrong before the commit, nothing has been carried out.
        try:
            decision, imagined = self._consider(decision)
        except BaseException as error:
            reason = f"held back: {hidden.text(repr(error))}"
            self.journal.save(replace(decision, stage=HELD, action="revise", reason=reason))
            raise
        if decision.action != "commit":
            return self.journal.save(replace(decision, stage=HELD)), None
        # 4. The journal knows of the call before it is made, and what it brought before anybody else does.
        decision = self.journal.save(replace(decision, stage=COMMITTING, before=self._digest()))
        try:
            result = _apply(self.tools[name], given)
        except Exception as error:
            self._finish(decision, imagined, hidden.result(failure(error)))
            raise
        except (
            BaseException
        ):  # somebody ended the program in the middle of the tool: nobody knows what it did
            self.unsettled[decision.number] = decision
            raise
        return self._finish(decision, imagined, hidden.result(_as_result(result))), result

    def _consider(self, decision: GateDecision) -> tuple[GateDecision, Result | None]:
        """Rehearse a write, and apply the rule. Also returns what was imagined."""
        call = decision.call
        if call.name not in self.tools:
            raise KeyError(f"no tool {call.name!r}; there are {', '.join(self.tools)}")
        if call.name in self.reads:
            return replace(decision, reason="a read passes", action="commit"), None
        if self.unsettled:
            number, open_call = next(iter(self.unsettled.items()))
            raise JournalError(
                f"a program was ended in the middle of call {number}, {open_call.candidate}; see whether it was "
                f"carried out, then say so: gate.settle({number}, Result(...)) or gate.settle({number}, None)"
            )
        with imagining(*([self.session] if self.session else [])):
            imagined = self._rehearse(call)
            action, reason = self.rule(copy.deepcopy(call), imagined)
        if action not in ACTIONS:
            raise ValueError(f"a rule decides {', '.join(ACTIONS)}, not {action!r}")
        decision = replace(
            decision,
            rehearsed=imagined.response.text,
            log_prob=imagined.log_prob,
            reason=reason,
            action=action,
        )
        if action == "ask" and self.ask is not None and self.ask(decision):
            decision = replace(decision, reason=f"{reason}; a person agreed", action="commit")
        return decision, imagined.response

    def _rehearse(self, call: ToolCall) -> Rehearsed:
        """Ask the rehearser; after the time limit its answer no longer counts."""

        def answer() -> Rehearsed:
            told = self.rehearser(copy.deepcopy(call), tuple(self.history))
            return Rehearsed(told) if isinstance(told, Result) else told

        return answer() if self.limit is None else _in_time(self.limit, answer)

    def _finish(self, decision: GateDecision, imagined: Result | None, real: Result) -> GateDecision:
        """Note what a call really brought, and where that is not what was imagined."""
        surprises = leaf_differences(imagined.parts(), real.parts()) if imagined is not None else {}
        decision = replace(
            decision,
            stage=DONE,
            real=real.text,
            error=real.error,
            surprises=surprises,
            after=self._digest(),
        )
        self.history.append((decision.call, real))
        return self.journal.save(decision)

    def _digest(self) -> str:
        return self.session.digest() if self.session else ""

    def __repr__(self) -> str:
        counts = Counter(decision.action for decision in self.journal)
        return f"<Gate: {len(self.tools)} tools, " + ", ".join(f"{counts[a]} {a}" for a in ACTIONS) + ">"


_LOOP: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("loop", default=None)
"""The event loop from which the call that is being served came."""


def _in_time(limit: float, answer: Callable[[], Rehearsed]) -> Rehearsed:
    """An answer, or none if it takes more seconds. A thread cannot be stopped: it runs on, in its guarded context."""
    box: Future[Rehearsed] = Future()

    def run() -> None:
        try:
            box.set_result(answer())
        except BaseException as error:
            box.set_exception(error)

    Thread(target=copy_context().run, args=(run,), daemon=True).start()
    wait([box], limit)
    return box.result() if box.done() else Rehearsed(Result(None, ABSTAIN, f"no answer within {limit:g} s"))


def _apply(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call a function with arguments by name, also those that it takes by position alone; wait for an async one."""
    by_place, by_name = [], dict(arguments)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some functions written in C do not tell
        parameters = []
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            if parameter.name not in by_name and parameter.default is parameter.empty:
                raise TypeError(f"{function} misses the argument {parameter.name!r}")
            by_place.append(by_name.pop(parameter.name, parameter.default))
    made = function(*by_place, **by_name)
    return _wait_for(made) if inspect.isawaitable(made) else made


def _wait_for(awaitable: Any) -> Any:
    """What an awaitable brings, on the event loop from which the call came, if this thread does not run it."""
    loop = _LOOP.get()
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        if loop is not None:
            return asyncio.run_coroutine_threadsafe(as_coroutine(awaitable), loop).result()
    return awaited(awaitable)


def _as_result(made: Any) -> Result:
    """What a tool returned, as a result."""
    if isinstance(made, Result):
        return made
    try:
        return Result(as_json(made))
    except NotJSON:
        return Result(repr(made))
