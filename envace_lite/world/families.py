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

from envace_lite.world.tools import World, documented

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
def consume(kind: str, wallet: int, time: int) -> Function:
    """Take one of a stock (`stock`) and pay with money (`wallet`) and hours (`time`)."""

    @documented(f"{kind} less 1 wallet less price:{wallet} time less hours:{time}", target=kind)
    def function(world: World, target: str) -> None:
        world.add(target, -1, rule="stock")
        for resource, name, amount in (("wallet", "price", wallet), ("time", "hours", time)):
            world.see(resource)
            world.show(name, amount)
            world.add(resource, -amount, rule=resource)

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
