"""The journal: a program is killed at any moment, and nothing is lost or doubled."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import envace_lite
from envace_lite.rehearsal import Gate, Journal, JournalError
from envace_lite.world.result import Result
from envace_lite.world.tools import Exchange, ToolCall

PACKAGE = Path(envace_lite.__file__).parent


def good(call: ToolCall, history: Sequence[Exchange]) -> Result:
    return Result("fine")


def test_what_was_decided_is_there_when_the_file_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    gate = Gate({"pay": lambda to, sum: {"paid": sum}}, good, journal=Journal(path))
    gate("pay", to="ana", sum=3)
    rows = list(gate.journal)
    gate.journal.close()
    seen: list[Exchange] = []

    def rehearse(call: ToolCall, history: Sequence[Exchange]) -> Result:
        seen.extend(history)
        return Result(None, "LookupError")

    again = Gate({"pay": print}, rehearse, journal=Journal(path))
    again("pay", to="bob", sum=4)
    assert list(again.journal)[:1] == rows
    assert rows[0].surprises == {"/paid": 3}
    assert [(call.full_text, result.value) for call, result in seen] == [
        ('pay {"to": "ana", "sum": 3}', {"paid": 3})
    ]
    assert [(row.number, row.stage) for row in again.journal] == [(1, "done"), (2, "held")]


def test_a_key_is_carried_out_once(tmp_path: Path) -> None:
    made: list[int] = []
    path = tmp_path / "journal.sqlite"

    def pay(sum: int) -> int:
        made.append(sum)
        return -sum

    for _ in range(2):
        gate = Gate({"pay": pay}, good, journal=Journal(path))
        for _ in range(2):
            decision, result = gate.call("pay", {"sum": 3}, key="invoice 7")
            assert decision.number == 1
            assert (result.value if isinstance(result, Result) else result) == -3
        gate.journal.close()
    assert made == [3]


def test_a_key_cannot_be_used_within_its_own_call() -> None:
    """A tool that sends its own request again would carry it out twice."""
    made: list[str] = []

    def pay() -> str:
        made.append("paid")
        if len(made) == 1:
            with pytest.raises(JournalError, match="is being carried out"):
                gate.call("pay", {}, key="a")
        return "done"

    gate = Gate({"pay": pay}, good)
    assert gate.call("pay", {}, key="a")[1] == "done"
    assert made == ["paid"]


def test_a_call_that_was_held_back_may_be_tried_again_under_its_key() -> None:
    answers = [Result(None, "LookupError"), Result("fine")]
    gate = Gate({"pay": lambda: 1}, lambda call, history: answers.pop(0))
    assert [gate.call("pay", {}, key="a")[0].action for _ in range(2)] == ["revise", "commit"]


class Payments:
    def __init__(self, made: list[int]):
        self.made = made

    def pay(self, sum: int) -> None:
        self.made.append(sum)


def cut_off(path: Path, name: str = "pay") -> None:
    """A journal as a program leaves it that was killed while a tool ran."""
    journal = Journal(path)
    gate = Gate({name: lambda sum: sum}, good, journal=journal)
    decision, _ = gate.call(name, {"sum": 1}, key="k")
    journal.save(replace(decision, stage="committing", real="", after=""))
    journal.close()


@pytest.mark.parametrize("happened", [True, False])
def test_a_call_that_was_cut_off_is_settled_by_hand(happened: bool, tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    cut_off(path)
    made: list[int] = []
    gate = Gate({"pay": Payments(made).pay, "look": lambda: 2}, good, reads={"look"}, journal=Journal(path))
    assert gate("look")[1] == 2  # reads pass
    with pytest.raises(JournalError, match=r"call 1, pay 1; .*gate.settle\(1, None\)"):
        gate("pay", sum=2)
    assert made == []
    gate.settle(1, Result("paid") if happened else None)
    gate.call("pay", {"sum": 1}, key="k")
    assert made == ([] if happened else [1])
    assert [row.stage for row in gate.journal][:1] == (["done"] if happened else ["held"])
    assert ("pay 1", "paid") in [(call.text, result.text) for call, result in gate.history] or not happened
    with pytest.raises(KeyError):
        gate.settle(1, None)


def test_a_tool_that_was_interrupted_leaves_its_call_unsettled() -> None:
    """Nobody knows what it did: neither the journal nor the history says that it failed."""
    made: list[str] = []

    def pay(to: str) -> None:
        made.append(to)
        if to == "ana":
            raise KeyboardInterrupt

    gate = Gate({"pay": pay}, good)
    with pytest.raises(KeyboardInterrupt):
        gate("pay", to="ana")
    assert (list(gate.unsettled), gate.history, next(iter(gate.journal)).stage) == ([1], [], "committing")
    with pytest.raises(JournalError, match="pay ana"):
        gate("pay", to="bob")
    gate.settle(1, Result(None))
    gate("pay", to="bob")
    assert made == ["ana", "bob"]
    assert [call.text for call, _ in gate.history] == ["pay ana", "pay bob"]


def test_a_read_that_was_cut_off_stops_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    cut_off(path, "look")
    gate = Gate({"pay": lambda: 5, "look": print}, good, reads={"look"}, journal=Journal(path))
    assert gate("pay")[1] == 5


def test_a_second_program_is_told(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    first = Journal(path)
    with pytest.raises(JournalError, match="another program is writing it"):
        Journal(path)
    first.close()
    assert len(Journal(path)) == 0


def test_a_file_that_is_no_journal_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("dear diary, " * 100, encoding="utf-8")
    with pytest.raises(JournalError, match="name another file"):
        Journal(path)
    assert path.read_text(encoding="utf-8") == "dear diary, " * 100
    with pytest.raises(JournalError, match="cannot be opened"):
        Journal(tmp_path / "missing" / "journal.sqlite")


PROGRAM = """
import os, random, signal, sys, time, types
package = types.ModuleType("envace_lite")  # the front door opens on every floor, torch's too
package.__path__ = [sys.argv[1]]
sys.modules["envace_lite"] = package
from envace_lite.rehearsal import Gate, Journal
from envace_lite.world.result import Result

COUNT, KILLS = 100, 30

def pay(number):
    time.sleep(random.random() / 500)
    with open("world.txt", "a", encoding="utf-8") as file:
        file.write(f"{number}\\n")
    time.sleep(random.random() / 500)
    return number

def rehearse(call, history):
    paid = [earlier.arguments["number"] for earlier, _ in history]
    assert paid == [number for number in range(max([*paid, 0]) + 1) if number % 5]
    return Result(None, "ValueError") if call.arguments["number"] % 5 == 0 else Result(call.arguments["number"])

def life():
    gate = Gate({"pay": pay}, rehearse, journal=Journal("journal.sqlite"))
    made = open("world.txt", encoding="utf-8").read().split() if os.path.exists("world.txt") else []
    for number, row in list(gate.unsettled.items()):
        # Whether the call was carried out, only the world can tell.
        told = row.arguments["number"]
        gate.settle(number, Result(told) if str(told) in made else None)
        print("settled", flush=True)
    for number in range(COUNT):
        gate.call("pay", {"number": number}, key=f"payment {number}")

for kill in range(KILLS + 1):
    child = os.fork()
    if not child:
        life()
        os._exit(0)
    if kill < KILLS:
        time.sleep(random.random() / 20)
        os.kill(child, signal.SIGKILL)
    print("ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the program kills its own copies")
def test_killed_at_random_moments_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    """A hundred payments, every fifth of them held back, by a program that is killed again and again."""
    command = [sys.executable, "-c", PROGRAM, str(PACKAGE)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True)
    ends = Counter(done.stdout.splitlines())
    assert set(ends) <= {"settled", "ended with -9", "ended with 0"}, done.stderr
    assert ends["ended with -9"] >= 5  # a quick machine may be through before
    assert ends["ended with 0"] >= 1
    made = Counter((tmp_path / "world.txt").read_text(encoding="utf-8").split())
    assert made == Counter(str(n) for n in range(100) if n % 5)
    rows = list(Journal(tmp_path / "journal.sqlite"))
    assert Counter(row.candidate for row in rows if row.stage == "done") == Counter(
        f"pay {n}" for n in range(100) if n % 5
    )
    assert {row.candidate for row in rows if row.stage == "held"} >= {f"pay {n}" for n in range(0, 100, 5)}
