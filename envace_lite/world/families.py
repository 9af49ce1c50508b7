"""Families of dynamics: factories that make documented, typed tool functions.

A domain's tools are members of these families, with the names and numbers of that domain. The traces that the
base model is made from also use random members under random names, so that a policy has to read a tool's
documentation; the tools that are held out are members that no trace and no training task uses.

The documentation is written in the compact language of the course and says exactly what the function does, in
the order in which it does it: `order needs:pending gives:cancelled`. An argument's description is its kind, which a
domain maps to the names that exist (`Domain.pools`).

A function shows what it looked up and what it demands before it decides (`o1:sent needs:pending error status`), so that
each word of a response is one step away from the words before it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from envace_lite.world.tools import Value, World, documented

Function = Callable[..., None]

MONTH_LENGTHS = dict(
    zip(
        "jan feb mar apr may jun jul aug sep oct nov dec".split(),
        (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31),
        strict=True,
    )
)


@cache
def look(kind: str) -> Function:
    """Read one record."""

    @documented(f"{kind} shown", target=kind)
    def function(world: World, target: str) -> None:
        world.see(target)

    return function


@cache
def look_from(key: str, start: Value) -> Function:
    """Read one fixed record, which no system message shows; it starts as the documentation says."""

    @documented(f"{key} shown from:{start}")
    def function(world: World) -> None:
        world.see(key)

    return function


@cache
def reveal(key: str) -> Function:
    """Read one fixed record, which no system message shows and nothing else tells."""

    @documented(f"{key} shown")
    def function(world: World) -> None:
        world.see(key)

    return function


@cache
def find(kind: str, names: tuple[str, ...]) -> Function:
    """Name the first record of a kind that has a status (`found`); refused with `none` where there is none."""

    @documented(f"first {kind} of {kind}_status found", status=f"{kind}_status")
    def function(world: World, status: str) -> None:
        # The order of the records is that of the prompt, so "first" can be seen there.
        for key, value in world.records.items():
            if key in names and value == status:
                world.see(key)
                world.show("found", key)
                return
        world.refuse("none")

    return function


@cache
def count(kind: str, names: tuple[str, ...]) -> Function:
    """Show the records of a kind that have a status, and how many they are (`count`)."""

    @documented(f"each {kind} of {kind}_status count", status=f"{kind}_status")
    def function(world: World, status: str) -> None:
        matching = [key for key, value in world.records.items() if key in names and value == status]
        for key in matching:
            world.see(key)
        world.show("count", len(matching))

    return function


@cache
def add_up(kind: str) -> Function:
    """Show two records and their sum (`total`)."""

    @documented(f"{kind} more {kind} total", one=kind, other=kind)
    def function(world: World, one: str, other: str) -> None:
        world.show("total", world.amount(one) + world.amount(other))

    return function


@cache
def least(kind: str, names: tuple[str, ...]) -> Function:
    """Show two records and name the one that holds less (`found`), the first of equal ones; `type` for another kind."""

    @documented(f"least {kind} {kind} found", one=kind, other=kind)
    def function(world: World, one: str, other: str) -> None:
        # A record that does not exist is not refused here: looking it up says `unknown`.
        if not {one, other} & world.records.keys() <= {*names}:
            world.refuse("type")
        world.show("found", one if world.amount(one) <= world.amount(other) else other)

    return function


@cache
def left_after(key: str, amount: int) -> Function:
    """Show what would be left of a fixed record (`left`); refused with the record's name below zero."""

    @documented(f"{key} less amount:{amount} left")
    def function(world: World) -> None:
        # What the documentation names is shown before the rule is looked at, so that a refusal says it too.
        left = world.amount(key) - amount
        world.show("amount", amount)
        if left < 0:
            world.refuse(key)
        world.show("left", left)

    return function


@cache
def transition(kind: str, needs: str, gives: str, asks: str = "") -> Function:
    """Move a record from one status to another; refused with `status` in any other state."""

    @documented(f"{asks} {kind} needs:{needs} gives:{gives}".strip(), target=kind)
    def function(world: World, target: str) -> None:
        world.see(target)
        world.show("needs", needs)
        world.need(target, needs)
        world.set(target, gives)

    return function


@cache
def transition_with(
    kind: str, needs: str, gives: str, other: str, other_needs: str, other_gives: str, asks: str = ""
) -> Function:
    """Move a record and, on the side, a fixed one, which has to be ready for it; refused with `status` or `busy`."""
    words = f"{kind} needs:{needs} gives:{gives} {other} needs:{other_needs} gives:{other_gives}"

    @documented(f"{asks} {words}".strip(), target=kind)
    def function(world: World, target: str) -> None:
        world.see(target)
        world.show("needs", needs)
        world.need(target, needs)
        world.need(other, other_needs, rule="busy")
        world.set(target, gives)
        world.set(other, other_gives)

    return function


@cache
def consume(kind: str, wallet: int, time: int, counter: str = "") -> Function:
    """Take one of a stock (`stock`) and pay with money (`wallet`) and hours (`time`); `counter` goes up by one."""
    words = f" {counter} more 1" if counter else ""

    @documented(f"{kind} less 1 wallet less price:{wallet} time less hours:{time}{words}", target=kind)
    def function(world: World, target: str) -> None:
        world.add(target, -1, rule="stock")
        # The stock first, then money, then hours: the first rule that is broken is the one that a refusal names.
        for resource, name, amount in (("wallet", "price", wallet), ("time", "hours", time)):
            world.see(resource)
            world.show(name, amount)
            world.add(resource, -amount, rule=resource)
        if counter:
            world.add(counter, 1)

    return function


@cache
def pay(kind: str, price: int, tip: int) -> Function:
    """Take one of a stock (`stock`) and pay a price and a tip, both from `wallet`."""

    @documented(f"{kind} less 1 wallet less price:{price} less tip:{tip}", target=kind)
    def function(world: World, target: str) -> None:
        world.add(target, -1, rule="stock")
        world.see("wallet")
        world.show("price", price)
        world.show("tip", tip)
        world.show("cost", price + tip)
        world.add("wallet", -(price + tip), rule="wallet")

    return function


@cache
def change(kind: str, sign: int) -> Function:
    """Add an amount to a record (`full` above the maximum) or take it away (`funds` below zero)."""

    @documented(f"{kind} {'more' if sign > 0 else 'less'} amount", target=kind, amount="amount")
    def function(world: World, target: str, amount: int) -> None:
        world.add(target, sign * amount)

    return function


@cache
def transfer(kind: str, limited: bool) -> Function:
    """Move an amount between two records; `limit` if it is above the record `limit`, then `funds`, `full`."""
    words = f"{kind} less amount {kind} more amount"

    @documented(f"amount most limit {words}" if limited else words, source=kind, target=kind, amount="amount")
    def function(world: World, source: str, target: str, amount: int) -> None:
        if limited and amount > world.amount("limit"):
            world.refuse("limit")
        world.add(source, -amount)
        world.add(target, amount)

    return function


@cache
def send(kind: str, fee: int, counter: str) -> Function:
    """Move an amount between two records and take a fee besides (`funds`, `full`); `counter` goes up by one."""

    @documented(
        f"{kind} less amount less fee:{fee} {kind} more amount {counter} more 1",
        source=kind,
        target=kind,
        amount="amount",
    )
    def function(world: World, source: str, target: str, amount: int) -> None:
        world.see(source)
        world.show("fee", fee)
        world.show("cost", amount + fee)
        world.add(source, -(amount + fee))
        world.add(target, amount)
        world.add(counter, 1)

    return function


@cache
def empty(kind: str) -> Function:
    """Move everything from one record to another."""

    @documented(f"{kind} less all {kind} more all", source=kind, target=kind)
    def function(world: World, source: str, target: str) -> None:
        amount = world.amount(source)
        world.add(source, -amount)
        world.add(target, amount)

    return function


@cache
def copy(kind: str, names: tuple[str, ...]) -> Function:
    """Give a record what another one holds; refused with `type` for a record of another kind."""

    @documented(f"{kind} gives {kind}", source=kind, target=kind)
    def function(world: World, source: str, target: str) -> None:
        if not {source, target} & world.records.keys() <= {*names}:
            world.refuse("type")
        value = world.see(source)
        world.see(target)
        world.set(target, value)

    return function


@cache
def convert(source: str, target: str, amount: int) -> Function:
    """Give one of a fixed record for an amount of another."""

    @documented(f"{source} less 1 {target} more amount:{amount}")
    def function(world: World) -> None:
        world.add(source, -1, rule=source)
        world.see(target)
        world.show("amount", amount)
        world.add(target, amount)

    return function


@cache
def buy(kind: str, account: str, depot: str) -> Function:
    """Pay the quoted price of one share from an account and put the share in the depot."""

    @documented(f"{account} less {kind} {depot} more 1", target=kind)
    def function(world: World, target: str) -> None:
        world.add(account, -world.amount(target))
        world.add(depot, 1)

    return function


@cache
def sell(kind: str, account: str, depot: str) -> Function:
    """Take one share from the depot and put its quoted price on an account."""

    @documented(f"{depot} less 1 {account} more {kind}", target=kind)
    def function(world: World, target: str) -> None:
        price = world.amount(target)
        world.add(depot, -1, rule="stock")
        world.add(account, price)

    return function


@cache
def book(kind: str, gives: str) -> Function:
    """Book a free record for a day that exists, and note the day; refused with `date` (February has 28) or `status`."""

    @documented(
        f"{kind} month day exists needs:free gives:{gives} day", target=kind, month="month", day="day"
    )
    def function(world: World, target: str, month: str, day: int) -> None:
        _check_date(world, month, day)
        world.need(target, "free")
        world.set(target, gives)
        world.set("day", day)

    return function


@cache
def mark(key: str) -> Function:
    """Note a day that exists under a fixed key; refused with `date`."""

    @documented(f"month day exists gives {key}", month="month", day="day")
    def function(world: World, month: str, day: int) -> None:
        _check_date(world, month, day)
        world.set(key, day)

    return function


@cache
def tell(kind: str, counter: str) -> Function:
    """Do something for a known record and count it."""

    @documented(f"{kind} known {counter} more 1", target=kind)
    def function(world: World, target: str) -> None:
        world.see(target)
        world.add(counter, 1)

    return function


@cache
def adjust(key: str, most: int) -> Function:
    """Set a fixed key to a number; refused with `range` above a maximum that the documentation names."""

    @documented(f"{key} gives number most:{most}", number="number")
    def function(world: World, number: int) -> None:
        world.show("most", most)
        if number > most:
            world.refuse("range")
        world.set(key, number)

    return function


def _check_date(world: World, month: str, day: int) -> None:
    if month not in MONTH_LENGTHS:
        world.refuse("date")
    length = MONTH_LENGTHS.get(month, 0)
    world.show(month, length)
    if not 1 <= day <= length:
        world.refuse("date")
