"""One call of a gate at a time: from threads, from event loops, and from within another call."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from envace_lite.rehearsal import Gate, GateDecision
from envace_lite.world.result import Result
from envace_lite.world.tools import Exchange, ToolCall


def good(call: ToolCall, history: Sequence[Exchange]) -> Result:
    return Result("fine")


class Counted:
    """A tool that notes who is inside, and that would mix up two calls if they were let in together."""

    def __init__(self) -> None:
        self.made: Counter[int] = Counter()
        self.inside = self.most = 0

    def __enter__(self) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)

    def __exit__(self, *_: object) -> None:
        self.inside -= 1

    def pay(self, number: int) -> int:
        with self:
            self.made[number] += 1
            return -number

    async def apay(self, number: int) -> int:
        with self:
            self.made[number] += 1
            await asyncio.sleep(0)
            return -number

    def rehearse(self, call: ToolCall, history: Sequence[Exchange]) -> Result:
        """Every third call should be refused."""
        with self:
            number = call.arguments["number"]
            return Result(None, f"E{number}") if number % 3 == 0 else Result(-number)

    def check(self, outcomes: list[tuple[GateDecision, Any]], journal: Sequence[GateDecision]) -> None:
        """Each call got its own decision, and was carried out exactly once or not at all."""
        for number, (decision, result) in enumerate(outcomes):
            assert decision.candidate == f"pay {number}"
            refused = number % 3 == 0
            assert (decision.action, result) == (("revise", None) if refused else ("commit", -number))
            assert decision.reason == (f"it should be refused: E{number}" if refused else "it should go well")
            assert decision.surprises == {}
        assert self.made == Counter(number for number in range(len(outcomes)) if number % 3)
        assert sorted(row.candidate for row in journal) == sorted(f"pay {n}" for n in range(len(outcomes)))
        assert self.most == 1


def test_ten_thousand_calls_from_many_threads() -> None:
    shop = Counted()
    gate = Gate({"pay": shop.pay}, shop.rehearse)
    with ThreadPoolExecutor(64) as threads:
        outcomes = list(threads.map(lambda number: gate("pay", number=number), range(10_000)))
    shop.check(outcomes, list(gate.journal))


def test_two_thousand_calls_from_an_event_loop_and_threads_beside_it() -> None:
    shop = Counted()
    gate = Gate({"pay": shop.apay}, shop.rehearse)

    async def everybody() -> list[tuple[GateDecision, Any]]:
        calls = (
            gate.acall("pay", {"number": n}) if n % 2 else asyncio.to_thread(gate.call, "pay", {"number": n})
            for n in range(2_000)
        )
        return await asyncio.gather(*calls)

    shop.check(asyncio.run(everybody()), list(gate.journal))


def test_a_tool_may_call_the_gate_it_stands_behind() -> None:
    """The inner call has a decision of its own, and does not take the outer one's."""

    def outer() -> str:
        decision, result = gate("inner", number=4)
        return f"{decision.candidate} {decision.action} {result}"

    gate = Gate({"outer": outer, "inner": lambda number: number + 1}, good)
    decision, result = gate("outer")
    assert (decision.candidate, result) == ("outer", "inner 4 commit 5")
    assert [(row.number, row.real) for row in gate.journal] == [(1, "inner 4 commit 5"), (2, "5")]


def test_an_async_tool_may_do_so_too_several_times_at_once() -> None:
    async def outer() -> list[int]:
        told = await asyncio.gather(*(gate.acall("inner", {"number": n}) for n in range(20)))
        assert gate("inner", number=20)[1] == 21  # also a call that blocks the loop for a moment
        return [result for _, result in told]

    async def inner(number: int) -> int:
        await asyncio.sleep(0)
        return number + 1

    async def everybody() -> Any:
        return await asyncio.wait_for(asyncio.gather(gate.acall("outer", {}), gate.acall("outer", {})), 60)

    gate = Gate({"outer": outer, "inner": inner}, good)
    assert [result for _, result in asyncio.run(everybody())] == [list(range(1, 21))] * 2


def test_async_tools_run_on_the_callers_loop_and_without_one_too() -> None:
    async def which() -> int:
        return id(asyncio.get_running_loop())

    async def main() -> tuple[int, int]:
        (_, there) = await gate.acall("which", {})
        return there, id(asyncio.get_running_loop())

    gate = Gate({"which": which}, good)
    assert len(set(asyncio.run(main()))) == 1
    assert isinstance(gate("which")[1], int)


def test_a_call_that_would_block_its_own_loop_for_ever_is_refused() -> None:
    async def main() -> None:
        slow = asyncio.create_task(gate.acall("slow", {}))
        await asyncio.sleep(0.05)
        with pytest.raises(RuntimeError, match="use `await"):
            gate("slow")
        assert (await asyncio.wait_for(slow, 10))[1] == "done"

    async def slow() -> str:
        await asyncio.sleep(0.2)
        return "done"

    gate = Gate({"slow": slow}, good)
    asyncio.run(main())
    assert len(gate.journal) == 1


@pytest.mark.parametrize("served", [True, False])
def test_a_cancelled_call_is_either_carried_out_and_noted_or_not_made(served: bool) -> None:
    async def main() -> None:
        first = asyncio.create_task(gate.acall("slow", {"number": 1}))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(gate.acall("slow", {"number": 2}))
        await asyncio.sleep(0.05)
        victim = first if served else second
        victim.cancel()
        with pytest.raises(asyncio.CancelledError):
            await victim
        await asyncio.wait([first, second])
        await gate.acall("slow", {"number": 3})

    async def slow(number: int) -> int:
        await asyncio.sleep(0.2)
        made.append(number)
        return number

    made: list[int] = []
    gate = Gate({"slow": slow}, good)
    asyncio.run(main())
    assert made == ([1, 2, 3] if served else [1, 3])
    assert [(row.candidate, row.stage) for row in gate.journal] == [(f"slow {n}", "done") for n in made]


def test_what_a_tool_leaves_behind_waits_like_everybody_else() -> None:
    """A task that outlives the call that began it is no longer part of that call."""
    inside = most = 0
    left: list[asyncio.Task[Any]] = []

    async def main() -> None:
        over = asyncio.Event()

        async def slow() -> None:
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.1)
            inside -= 1

        async def later() -> None:
            await over.wait()
            await gate.acall("slow", {})

        async def outer() -> None:
            left.append(asyncio.create_task(later()))

        gate = Gate({"outer": outer, "slow": slow}, good)
        await gate.acall("outer", {})
        over.set()
        await asyncio.wait_for(asyncio.gather(left[0], gate.acall("slow", {})), 30)

    asyncio.run(main())
    assert most == 1
