"""The gate: reads pass, writes are rehearsed first. For tools of your own, outside training.

What is simplified against the paper: the gate sees one call at a time. Whether to revise is decided by a rule on the
rehearsed response, not by the policy; what to do instead is left to the agent that made the call.

    gate = Gate({"look": look, "refund": refund}, rehearser, writes={"refund"})
    decision, result = gate("refund", order="o3")    # commit: the tool's own result; revise, ask: None
    print(decision.line)

A rehearser is any function from a call to the response it expects: a policy (`private.rehearser`), or one written by
hand. Nothing here needs torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from envace_lite.rehearsal.guard import imagining
from envace_lite.rehearsal.ledger import Decision, Entry, Ledger
from envace_lite.world import Session
from envace_lite.world.result import ABSTAIN, MALFORMED, Result
from envace_lite.world.tools import ToolCall

Rehearser = Callable[[ToolCall], Result]
Rule = Callable[[ToolCall, Result], tuple[str, str]]
"""From a call and its rehearsed response to `commit`, `revise` or `ask`, and the reason in a few words."""

ACTIONS = ("commit", "revise", "ask")


def careful(call: ToolCall, rehearsed: Result) -> tuple[str, str]:
    """Commit what should go well, revise what should be refused, ask a person where the rehearsal does not help."""
    if rehearsed.error == MALFORMED:
        return "ask", "the rehearsed response makes no sense"
    if rehearsed.error == ABSTAIN:
        return "ask", "the rehearsal does not know"
    if rehearsed.error is not None:
        return "revise", f"it should be refused: {rehearsed.error}"
    return "commit", "it should go well"


class Gate:
    """Tools behind a gate. Every call is logged, whatever becomes of it; exceptions pass unchanged.

    Args:
        tools: functions by name; they are called with the call's arguments by keyword.
        rehearser: imagines the response to a call.
        writes: names of the tools that can change something; the others pass without a rehearsal.
        rule: decides; `careful` by default.
        ask: asks a person about a decision with the action `ask`; True commits. Without it, such a call is held back.
        session: the real session behind the tools, if there is one: it is guarded while a call is rehearsed.
    """

    def __init__(
        self,
        tools: Mapping[str, Callable[..., Any]],
        rehearser: Rehearser,
        *,
        writes: Collection[str],
        rule: Rule = careful,
        ask: Callable[[Decision], bool] | None = None,
        session: Session | None = None,
    ):
        if unknown := sorted(set(writes) - set(tools)):
            raise KeyError(f"no such tools: {', '.join(unknown)}; there are {', '.join(tools)}")
        self.tools, self.rehearser, self.writes = dict(tools), rehearser, frozenset(writes)
        self.rule, self.ask, self.session = rule, ask, session
        self.ledger = Ledger()

    @classmethod
    def around(
        cls,
        session: Session,
        rehearser: Rehearser,
        *,
        rule: Rule = careful,
        ask: Callable[[Decision], bool] | None = None,
    ) -> Gate:
        """A gate around the tools of a session, which say themselves what they write."""

        def real(name: str) -> Callable[..., Result]:
            return lambda **arguments: session.call(ToolCall(name, arguments))

        writes = {name for name, tool in session.tools.items() if tool.write}
        tools = {name: real(name) for name in session.tools}
        return cls(tools, rehearser, writes=writes, rule=rule, ask=ask, session=session)

    def __call__(self, name: str, **arguments: Any) -> tuple[Decision, Any]:
        """Pass a call on, or hold it back. Returns the decision, and the tool's own result or None.

        Raises:
            KeyError: no tool has that name.
            ValueError: the rule decided something unheard of.
        """
        call, number = ToolCall(name, arguments), len(self.ledger.decisions)
        try:
            self.ledger.decisions.append(self._consider(call, number))
        except BaseException as error:
            self.ledger.decisions.append(Decision(call.text, "", f"held back: {error!r}", "revise"))
            raise
        if self.ledger.decisions[-1].action != "commit":
            return self.ledger.decisions[-1], None
        before = self._digest()
        self._log(number, "committed", "act", call.text, before)
        try:
            result = self.tools[name](**arguments)
            told = (result.text, result.error) if isinstance(result, Result) else (repr(result), None)
        except BaseException as error:
            told = f"raised {error!r}", type(error).__name__
            raise
        finally:
            self._log(number, "committed", "real", told[0], before, call=call.text, error=told[1])
            self.ledger.resolve(told[0])
        return self.ledger.decisions[-1], result

    def _consider(self, call: ToolCall, number: int) -> Decision:
        """Rehearse a write, and apply the rule."""
        now = self._digest()
        self._log(number, "imagined", "act", call.text, now)
        if call.name not in self.tools:
            raise KeyError(f"no tool {call.name!r}; there are {', '.join(self.tools)}")
        if call.name not in self.writes:
            return Decision(call.text, "", "a read passes", "commit")
        with imagining(*([self.session] if self.session else [])):
            response = self.rehearser(call)
            action, reason = self.rule(call, response)
        self._log(number, "imagined", "rehearse", response.text, now, call=call.text, error=response.error)
        if action not in ACTIONS:
            raise ValueError(f"a rule decides {', '.join(ACTIONS)}, not {action!r}")
        decision = Decision(call.text, response.text, reason, action)
        if action == "ask" and self.ask is not None and self.ask(decision):
            return replace(decision, reason=f"{reason}; a person agreed", action="commit")
        return decision

    def _digest(self) -> str:
        return self.session.digest() if self.session else ""

    def _log(self, number: int, kind: str, role: str, text: str, before: str, **about: Any) -> None:
        """Log a message, with the state before it and the state now."""
        self.ledger.add(Entry(number, kind, role, text, before=before, after=self._digest(), **about))

    def __repr__(self) -> str:
        counts = Counter(decision.action for decision in self.ledger.decisions)
        return f"<Gate: {len(self.tools)} tools, " + ", ".join(f"{counts[a]} {a}" for a in ACTIONS) + ">"
