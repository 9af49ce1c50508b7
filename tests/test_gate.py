"""The gate: reads pass, writes are rehearsed, nothing is lost."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import transformers
from packaging.version import Version

import envace_lite
from envace_lite.fidelity import ask, probe_pairs
from envace_lite.model.policy import Policy
from envace_lite.rehearsal import Decision, Gate, GateDecision, ImaginedCall
from envace_lite.rehearsal.gate import careful, if_sure
from envace_lite.rehearsal.private import rehearser
from envace_lite.world.result import ABSTAIN, REMOVED, Rehearsed, Result
from envace_lite.world.tools import Exchange, ToolCall, ToolResponse
from helpers import conversation, find_task, open_session, planned_calls, scripted


class Shop:
    """Two tools of somebody's own, and what was done with them."""

    def __init__(self) -> None:
        self.refunded: list[str] = []

    def look(self, order: str) -> str:
        return f"{order} is paid"

    def refund(self, order: str) -> dict[str, str]:
        if order == "o9":
            raise LookupError("no o9")
        self.refunded.append(order)
        return {order: "refunded"}

    def gate(self, **options: Any) -> Gate:
        return Gate({"look": self.look, "refund": self.refund}, expected, reads={"look"}, **options)


def expected(call: ToolCall, history: Sequence[Exchange]) -> ToolResponse:
    """A rehearser by hand: o1 is refused, o2 makes no sense, o5 is not known, anything else goes well."""
    order = str(call.arguments["order"])
    if order == "o3":
        raise ZeroDivisionError
    rule = {"o1": "status", "o2": "malformed", "o5": "abstain"}.get(order)
    return ToolResponse({order: "paid"}, rule, {} if rule else {order: "refunded"})


def last(gate: Gate) -> GateDecision:
    return list(gate.journal)[-1]


def test_reads_pass() -> None:
    gate = Shop().gate()
    decision, result = gate("look", order="o1")
    assert result == "o1 is paid"
    assert decision.line == "commit `look o1`: a read passes; real `o1 is paid`"


def test_a_write_that_should_go_well_is_committed() -> None:
    shop = Shop()
    decision, result = shop.gate()("refund", order="o4")
    assert (decision.action, result, shop.refunded) == ("commit", {"o4": "refunded"}, ["o4"])
    assert decision.rehearsed == "o4:paid ok o4:refunded"


@pytest.mark.parametrize(
    ("order", "line"),
    [
        ("o1", "revise `refund o1`: imagined `o1:paid error status`; it should be refused: status"),
        ("o5", "ask `refund o5`: imagined `o5:paid error abstain`; the rehearsal does not know"),
        ("o2", "ask `refund o2`: imagined `o2:paid error malformed`; the rehearsed response makes no sense"),
    ],
)
def test_a_write_that_is_held_back_is_not_committed(order: str, line: str) -> None:
    shop = Shop()
    gate = shop.gate()
    decision, result = gate("refund", order=order)
    assert (decision.line, result, shop.refunded) == (line, None, [])
    assert list(gate.journal) == [decision]
    assert (decision.stage, decision.real) == ("held", "")


@pytest.mark.parametrize("agrees", [True, False])
def test_a_person_is_asked(agrees: bool) -> None:
    shop, asked = Shop(), []

    def ask(decision: Decision) -> bool:
        asked.append(decision)
        return agrees

    decision, _ = shop.gate(ask=ask)("refund", order="o2")
    assert [question.candidate for question in asked] == ["refund o2"]
    assert shop.refunded == (["o2"] if agrees else [])
    assert decision.action == ("commit" if agrees else "ask")


def test_nobody_is_asked_about_a_call_that_should_be_refused() -> None:
    """Approval must not commit it: a person is only asked where the decision is `ask`."""
    shop, asked = Shop(), list[Decision]()

    def ask(decision: Decision) -> bool:
        asked.append(decision)
        return True

    decision, result = shop.gate(ask=ask)("refund", order="o1")
    assert (decision.action, result, shop.refunded, asked) == ("revise", None, [], [])


def test_a_tools_exception_passes_with_the_log_intact() -> None:
    gate = Shop().gate()
    gate("look", order="o1")
    with pytest.raises(LookupError, match="no o9"):
        gate("refund", order="o9")
    assert (last(gate).real, last(gate).error) == (
        '{"error": "LookupError", "message": "no o9"}',
        "LookupError",
    )
    gate("look", order="o2")
    assert [d.candidate for d in gate.journal] == ["look o1", "refund o9", "look o2"]
    assert repr(gate) == "<Gate: 2 tools, 3 commit, 0 revise, 0 ask>"


def test_a_rehearsers_exception_passes_and_commits_nothing() -> None:
    shop = Shop()
    gate = shop.gate()
    with pytest.raises(ZeroDivisionError):
        gate("refund", order="o3")
    assert shop.refunded == []
    assert last(gate).reason == "held back: ZeroDivisionError()"


def test_no_call_is_lost() -> None:
    gate = Shop().gate()
    for order in ("o1", "o2", "o3", "o4", "o9"):
        try:
            gate("refund", order=order)
        except (ZeroDivisionError, LookupError):
            continue
    with pytest.raises(KeyError, match="there are look, refund"):
        gate("cancel", order="o1")
    assert [d.candidate for d in gate.journal] == [
        *(f"refund o{i}" for i in (1, 2, 3, 4, 9)),
        "cancel o1",
    ]


def test_a_rule_of_ones_own() -> None:
    gate = Shop().gate(rule=lambda call, rehearsed: ("ask", "always"))
    assert gate("refund", order="o4")[0].line.endswith("always")
    with pytest.raises(ValueError, match="commit, revise, ask"):
        Shop().gate(rule=lambda call, rehearsed: ("perhaps", ""))("refund", order="o4")


def test_a_read_that_is_no_tool() -> None:
    with pytest.raises(KeyError, match="there are look"):
        Gate({"look": print}, expected, reads={"refund"})


def test_a_policy_before_a_session() -> None:
    """The policy rehearses each call of the plan; what it imagines is what then happens."""
    task = find_task("bank", "reach", "calls:2")
    policy: Policy = scripted((task, conversation(task)))
    session = open_session(task)
    gate = Gate.around(session, rehearser(policy, task))
    call = planned_calls(task)[0]
    decision, response = gate(call.name, **call.arguments)
    assert decision.rehearsed == decision.real == response.text
    assert decision.before == open_session(task).digest() != decision.after == session.digest()
    assert decision.surprises == {}


def test_a_rehearser_cannot_call_the_session() -> None:
    task = find_task("bank", "reach", "calls:2")
    session, (call, *_) = open_session(task), planned_calls(task)
    gate = Gate.around(session, lambda call, history: session.call(call))
    with pytest.raises(ImaginedCall):
        gate(call.name, **call.arguments)
    assert session.log == []
    held_back = Gate.around(session, lambda call, history: ToolResponse({}, "funds", {}))
    assert held_back(call.name, **call.arguments)[1] is None
    assert session.log == []


def test_a_rule_cannot_call_the_session() -> None:
    """It decides on what was rehearsed. While it does, the session is guarded, and stays as it is."""
    session = open_session(find_task("orders", "reach", "calls:1"))
    (call,) = planned_calls(session.task)

    def rule(call: ToolCall, rehearsed: Rehearsed) -> tuple[str, str]:
        return "commit", session.call(call).text

    before = session.digest()
    gate = Gate.around(session, lambda *_: ToolResponse({}, None, {"o1": "paid"}), rule=rule)
    with pytest.raises(ImaginedCall, match=call.name):
        gate(call.name, **call.arguments)
    assert session.digest() == before
    assert session.log == []


# What a rehearser knows, and what it may not do ---------------------------------------------------------------


def good(call: ToolCall, history: Sequence[Exchange]) -> Result:
    return Result("fine")


def test_the_rehearser_sees_what_was_carried_out_before() -> None:
    """The second packing of an order is imagined as refused; what was held back has not happened."""

    def rehearse(call: ToolCall, history: Sequence[Exchange]) -> Result:
        packed = any(earlier == call and result.error is None for earlier, result in history)
        return Result(None, "ValueError") if packed else Result("packed")

    gate = Gate({"pack": lambda order: "packed"}, rehearse)
    actions = [gate("pack", order=order)[0].action for order in ("o1", "o1", "o2", "o1", "o2")]
    assert actions == ["commit", "revise", "commit", "revise", "revise"]
    assert [call.text for call, _ in gate.history] == ["pack o1", "pack o2"]


@pytest.mark.same_bits
def test_a_policy_reads_the_history(apt: Policy) -> None:
    """It is asked in the conversation that a rollout would have made, to the last token."""
    task = find_task("bank", "reach", "calls:2")
    session, calls = open_session(task), planned_calls(task)[:2]
    gate = Gate.around(session, rehearser(apt, task), rule=lambda call, rehearsed: ("commit", ""))
    for call in calls:
        gate(call.name, **call.arguments)
    (pair,) = [pair for pair in probe_pairs([task]) if pair.planned and len(pair.history) == 1]
    (told,) = ask(apt, [pair])
    assert (last(gate).rehearsed, last(gate).log_prob) == (told.response.text, told.log_prob)


def test_a_conversation_beyond_the_context_is_not_known(apt: Policy) -> None:
    task = find_task("bank", "reach", "calls:2")
    (call, *_) = planned_calls(task)
    history = [(call, open_session(task).call(call))] * 40
    told = rehearser(apt, task)(call, history)
    assert isinstance(told, Rehearsed)
    assert careful(call, told)[0] == "ask"
    assert "longer than the model's context" in careful(call, told)[1]


def test_neither_rehearser_nor_rule_can_change_the_call() -> None:
    made: list[Any] = []

    def rehearse(call: ToolCall, history: Sequence[Exchange]) -> Result:
        call.arguments["items"].append("more")
        return Result("fine")

    def rule(call: ToolCall, rehearsed: Rehearsed) -> tuple[str, str]:
        call.arguments["items"].clear()
        return "commit", ""

    items = ["tea"]
    gate = Gate({"buy": lambda items: made.append(list(items)) or items.append("kept")}, rehearse, rule=rule)
    gate("buy", items=items)
    assert (made, items, last(gate).arguments) == ([["tea"]], ["tea"], {"items": ["tea"]})


def test_an_argument_that_is_no_json_is_named() -> None:
    with pytest.raises(TypeError, match="/order"):
        Shop().gate()("refund", order=print)


def test_what_is_not_listed_as_a_read_is_rehearsed() -> None:
    gate = Gate({"peek": lambda: 1}, good)
    assert gate("peek")[0].rehearsed == "fine"


def positional(a: int, b: int = 2, /, *, name: str = "n", self: str = "s") -> tuple[int, int, str, str]:
    return a, b, name, self


def test_every_name_of_an_argument_can_be_used() -> None:
    gate = Gate({"f": positional, "max": max}, good)
    assert gate("f", a=5)[1] == (5, 2, "n", "s")
    assert gate("f", b=7, a=5, name="x", self="y")[1] == (5, 7, "x", "y")
    with pytest.raises(TypeError, match="'a'"):
        gate("f", b=1)


def test_a_rehearsal_that_takes_too_long_does_not_count() -> None:
    """And when it is over at last, it still cannot reach the session."""
    session = open_session(find_task("bank", "reach", "calls:2"))
    (call, *_) = planned_calls(session.task)
    may_go_on, outcome = threading.Event(), list[str]()

    def slow(call: ToolCall, history: Sequence[Exchange]) -> Result:
        may_go_on.wait(10)
        try:
            session.call(call)
        except ImaginedCall:
            outcome.append("refused")
        return Result("late")

    gate = Gate.around(session, slow, limit=0.02)
    decision, result = gate(call.name, **call.arguments)
    assert (decision.action, result) == ("ask", None)
    assert decision.reason == "the rehearsal does not know: no answer within 0.02 s"
    may_go_on.set()
    deadline = time.monotonic() + 10
    while not outcome and time.monotonic() < deadline:
        time.sleep(0.01)
    assert outcome == ["refused"]
    assert session.log == []


def test_a_rehearsal_in_time_counts_and_its_exception_passes() -> None:
    assert Shop().gate(limit=10.0)("refund", order="o4")[0].action == "commit"
    with pytest.raises(ZeroDivisionError):
        Shop().gate(limit=10.0)("refund", order="o3")


@pytest.mark.parametrize(("log_prob", "action"), [(-0.05, "commit"), (-0.2, "ask")])
def test_a_rule_that_wants_to_be_sure(log_prob: float, action: str) -> None:
    shop = Shop()
    gate = Gate({"refund": shop.refund}, lambda *_: Rehearsed(Result("ok"), log_prob), rule=if_sure(0.9))
    decision, _ = gate("refund", order="o4")
    assert (decision.action, decision.log_prob) == (action, log_prob)
    assert if_sure(0.5)(ToolCall("x"), Rehearsed(Result(None, "status")))[0] == "revise"


def test_the_imagined_response_is_set_against_the_real_one() -> None:
    real = {"order": "o1", "price": 12, "paid": True}
    told = {"order": "o1", "price": 10, "tip": 1, "paid": True}
    gate = Gate({"refund": lambda: real, "fail": lambda: 1 / 0}, lambda *_: Result(told))
    assert gate("refund")[0].surprises == {"/price": 12, "/tip": REMOVED}
    with pytest.raises(ZeroDivisionError):
        gate("fail")
    assert last(gate).surprises["error"] == "ZeroDivisionError"
    assert Gate({"refund": lambda: real}, lambda *_: Result(real))("refund")[0].surprises == {}


def test_secrets_reach_the_tool_alone() -> None:
    seen: list[str] = []

    def login(user: str, card: dict[str, Any]) -> dict[str, Any]:
        seen.append(f"tool {user} {card['number']}")
        if user == "bob":
            raise ValueError(f"no card {card['number']}")
        return {"user": user, "token": "t0ken-77", "note": f"charged {card['number']}"}

    def rehearse(call: ToolCall, history: Sequence[Exchange]) -> Result:
        seen.append(f"rehearser {call.full_text} {[result.text for _, result in history]}")
        return Result(None, ABSTAIN)

    def person(decision: GateDecision) -> bool:
        seen.append(f"person {decision.line} {decision.arguments}")
        return True

    gate = Gate({"login": login}, rehearse, ask=person, redact={"number", "token"})
    _, result = gate("login", user="ana", card={"number": 41117777, "month": 5})
    assert result["token"] == "t0ken-77"
    with pytest.raises(ValueError, match="41117777"):
        gate("login", user="bob", card={"number": 41117777, "month": 5})
    assert sum("41117777" in line for line in seen if line.startswith("tool")) == 2
    others = [*(line for line in seen if not line.startswith("tool")), *map(repr, gate.journal)]
    assert len(others) == 6
    assert not [line for line in others if "41117777" in line or "t0ken-77" in line]
    assert all("[hidden]" in line for line in others if "tool" not in line)


LIGHT = """
import sys, types
package = types.ModuleType("envace_lite")  # the front door opens on every floor, torch's too
package.__path__ = [sys.argv[1]]
sys.modules["envace_lite"] = package
from envace_lite.rehearsal import Gate
from envace_lite.world.tools import ToolResponse
gate = Gate({"refund": lambda order: order}, lambda call, history: ToolResponse({}, None, {}))
assert gate("refund", order="o1")[1] == "o1"
print([name for name in ("torch", "peft", "pandas", "matplotlib") if name in sys.modules])
"""


@pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.24"), reason="older transformers load torch themselves"
)
def test_the_gate_needs_no_torch() -> None:
    folder = Path(envace_lite.__file__).parent
    command = [sys.executable, "-c", LIGHT, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr
