"""The gate: reads pass, writes are rehearsed, nothing is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers
from packaging.version import Version

import envace_lite
from envace_lite.model.policy import Policy
from envace_lite.rehearsal import Decision, Gate, ImaginedCall
from envace_lite.rehearsal.private import rehearser
from envace_lite.world.tools import ToolCall, ToolResponse
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
        return Gate({"look": self.look, "refund": self.refund}, expected, writes={"refund"}, **options)


def expected(call: ToolCall) -> ToolResponse:
    """A rehearser by hand: o1 is refused, o2 makes no sense, o5 is not known, anything else goes well."""
    order = str(call.arguments["order"])
    if order == "o3":
        raise ZeroDivisionError
    rule = {"o1": "status", "o2": "malformed", "o5": "abstain"}.get(order)
    return ToolResponse({order: "paid"}, rule, {} if rule else {order: "refunded"})


def test_reads_pass() -> None:
    gate = Shop().gate()
    decision, result = gate("look", order="o1")
    assert result == "o1 is paid"
    assert decision.line == "commit `look o1`: a read passes; real `'o1 is paid'`"


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
    assert gate.ledger.responses("committed") == []
    assert gate.ledger.decisions == [decision]


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


@pytest.mark.parametrize(
    ("call", "kinds"),
    [
        (("look", "o1"), ["imagined act", "committed act", "committed real"]),
        (("refund", "o4"), ["imagined act", "imagined rehearse", "committed act", "committed real"]),
        (("refund", "o1"), ["imagined act", "imagined rehearse"]),
    ],
)
def test_the_ledger_holds_every_message(call: tuple[str, str], kinds: list[str]) -> None:
    gate = Shop().gate()
    gate(call[0], order=call[1])
    assert [f"{entry.kind} {entry.role}" for entry in gate.ledger] == kinds
    assert {entry.text for entry in gate.ledger if entry.role == "act"} == {" ".join(call)}


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
    assert gate.ledger.decisions[-1].real == "raised LookupError('no o9')"
    assert gate.ledger.world_errors == 1
    gate("look", order="o2")
    assert [d.candidate for d in gate.ledger.decisions] == ["look o1", "refund o9", "look o2"]
    assert repr(gate) == "<Gate: 2 tools, 3 commit, 0 revise, 0 ask>"


def test_a_rehearsers_exception_passes_and_commits_nothing() -> None:
    shop = Shop()
    gate = shop.gate()
    with pytest.raises(ZeroDivisionError):
        gate("refund", order="o3")
    assert shop.refunded == []
    assert gate.ledger.decisions[-1].reason == "held back: ZeroDivisionError()"


def test_no_call_is_lost() -> None:
    gate = Shop().gate()
    for order in ("o1", "o2", "o3", "o4", "o9"):
        try:
            gate("refund", order=order)
        except (ZeroDivisionError, LookupError):
            continue
    with pytest.raises(KeyError, match="there are look, refund"):
        gate("cancel", order="o1")
    assert [d.candidate for d in gate.ledger.decisions] == [
        *(f"refund o{i}" for i in (1, 2, 3, 4, 9)),
        "cancel o1",
    ]


def test_a_rule_of_ones_own() -> None:
    gate = Shop().gate(rule=lambda call, response: ("ask", "always"))
    assert gate("refund", order="o4")[0].line.endswith("always")
    with pytest.raises(ValueError, match="commit, revise, ask"):
        Shop().gate(rule=lambda call, response: ("perhaps", ""))("refund", order="o4")


def test_a_write_that_is_no_tool() -> None:
    with pytest.raises(KeyError, match="there are look"):
        Gate({"look": print}, expected, writes={"refund"})


def test_a_policy_before_a_session() -> None:
    """The policy rehearses each call of the plan; what it imagines is what then happens."""
    task = find_task("bank", "reach", "calls:2")
    policy: Policy = scripted((task, conversation(task)))
    session = open_session(task)
    gate = Gate.around(session, rehearser(policy, task))
    call = planned_calls(task)[0]
    decision, response = gate(call.name, **call.arguments)
    assert decision.rehearsed == decision.real == response.text
    imagined, committed = gate.ledger.responses("imagined"), gate.ledger.responses("committed")
    assert imagined[0].before == imagined[0].after == committed[0].before != committed[0].after
    assert committed[0].after == session.digest()


def test_a_rehearser_cannot_call_the_session() -> None:
    task = find_task("bank", "reach", "calls:2")
    session, (call, *_) = open_session(task), planned_calls(task)
    gate = Gate.around(session, session.call)
    with pytest.raises(ImaginedCall):
        gate(call.name, **call.arguments)
    assert session.log == []
    held_back = Gate.around(session, lambda call: ToolResponse({}, "funds", {}))
    assert held_back(call.name, **call.arguments)[1] is None
    assert session.log == []


def test_a_rule_cannot_call_the_session() -> None:
    """It decides on what was rehearsed. While it does, the session is guarded, and stays as it is."""
    session = open_session(find_task("orders", "reach", "calls:1"))
    (call,) = planned_calls(session.task)

    def rule(call: ToolCall, rehearsed: ToolResponse) -> tuple[str, str]:
        return "commit", session.call(call).text

    before = session.digest()
    gate = Gate.around(session, lambda _: ToolResponse({}, None, {"o1": "paid"}), rule=rule)
    with pytest.raises(ImaginedCall, match=call.name):
        gate(call.name, **call.arguments)
    assert session.digest() == before
    assert session.log == []


LIGHT = """
import sys, types
package = types.ModuleType("envace_lite")  # the front door opens on every floor, torch's too
package.__path__ = [sys.argv[1]]
sys.modules["envace_lite"] = package
from envace_lite.rehearsal import Gate
from envace_lite.world.tools import ToolResponse
gate = Gate({"refund": lambda order: order}, lambda call: ToolResponse({}, None, {}), writes={"refund"})
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
