"""`bank`: accounts, quotes, transfers and limits behind namespaced tools, in the shape of FinMCP-Bench.

The names are those an MCP server lists (`bank.transfer`); the domain is scored also by tool precision, recall, F1. A
wire costs a fee, and the number of wires is a record that no system message shows: it starts at zero.
"""

from random import Random
from typing import ClassVar

from envace_lite.world.families import (
    Function,
    add_up,
    buy,
    change,
    empty,
    least,
    look,
    look_from,
    sell,
    send,
    transfer,
    transition,
)
from envace_lite.world.tools import MAX_VALUE, Tool, Value
from envace_lite.world.toy import ToyDomain

ACCOUNTS = ("checking", "savings", "cash")
SHARES = ("abc", "kly", "xyz", "qrs")
CARDS = ("visa", "amex")
CARD_STATUSES = ("active", "frozen", "blocked", "expired")


class Bank(ToyDomain):
    """Accounts, a transfer `limit`, quoted shares with a `depot`, cards, and `wires`; see the module's docstring."""

    name = "bank"
    title = "namespaced bank and market tools (in the shape of FinMCP-Bench)"
    tools: ClassVar = {
        "bank.balance": Tool("bank.balance", look("account"), write=False),
        "bank.total": Tool("bank.total", add_up("account"), write=False),
        "bank.wires": Tool("bank.wires", look_from("wires", 0), write=False),
        "bank.transfer": Tool("bank.transfer", transfer("account", limited=True)),
        "bank.wire": Tool("bank.wire", send("account", 1, "wires")),
        "bank.deposit": Tool("bank.deposit", change("account", +1)),
        "bank.withdraw": Tool("bank.withdraw", change("account", -1)),
        "card.freeze": Tool("card.freeze", transition("card", "active", "frozen")),
        "card.block": Tool("card.block", transition("card", "frozen", "blocked")),
        "card.thaw": Tool("card.thaw", transition("card", "frozen", "active")),
        "market.quote": Tool("market.quote", look("share"), write=False),
        "market.cheaper": Tool("market.cheaper", least("share", SHARES), write=False),
        "market.buy": Tool("market.buy", buy("share", "cash", "depot")),
        "market.sell": Tool("market.sell", sell("share", "cash", "depot")),
        "bank.move": Tool("bank.move", transfer("account", limited=True)),
        "bank.sum": Tool("bank.sum", add_up("account"), write=False),
        "bank.send": Tool("bank.send", send("account", 2, "wires")),
        "market.cash_in": Tool("market.cash_in", sell("share", "savings", "depot")),
        "card.renew": Tool("card.renew", transition("card", "expired", "active")),
        "bank.empty": Tool("bank.empty", empty("account")),
        "card.report": Tool("card.report", transition("card", "active", "stolen")),
    }
    news: ClassVar = {
        "bank.move": "name",
        "bank.sum": "name",
        "bank.send": "words",  # a fee of two is read about nowhere else
        "market.cash_in": "combination",
        "card.renew": "combination",
        "bank.empty": "dynamics",
        "card.report": "words",
    }
    held_out = frozenset(news)
    pools: ClassVar = {"account": ACCOUNTS, "share": SHARES, "card": CARDS, "amount": range(1, 8)}
    values: ClassVar = {
        **dict.fromkeys((*ACCOUNTS, *SHARES, "limit", "depot"), range(MAX_VALUE + 1)),
        **dict.fromkeys(("wires", "from", "fee"), range(MAX_VALUE + 1)),
        **dict.fromkeys((*CARDS, "needs", "gives"), (*CARD_STATUSES, "stolen")),
        **dict.fromkeys(("total", "cost"), range(2 * MAX_VALUE + 1)),
        "found": SHARES,
    }
    hidden = frozenset({"wires"})
    unread = frozenset({"stolen"})
    depends = 0.75
    chooses = 0.5

    def sample_state(self, rng: Random) -> dict[str, Value]:
        """Two or three accounts (always `cash`), two or three quotes, a card or two, a depot, a limit, no wires."""
        state: dict[str, Value] = {"limit": rng.randint(2, 6)}
        for account in (*rng.sample(ACCOUNTS[:2], rng.randint(1, 2)), "cash"):
            state[account] = rng.randint(0, 9)
        for share in rng.sample(SHARES, rng.randint(2, 3)):
            state[share] = rng.randint(1, 6)
        state["depot"] = rng.choice((0, 0, 1, 2))
        for card in rng.sample(CARDS, rng.randint(1, 2)):
            state[card] = rng.choice(CARD_STATUSES)
        return {**state, "wires": 0}

    def sample_function(self, rng: Random) -> Function:
        """A random member of the families that training may know."""
        family = rng.choice(
            ("read", "read", "transfer", "send", "send", "change", "buy", "sell", "transition")
        )
        if family == "read":
            reads = [look(kind) for kind in ("account", "share", "card")]
            sums = [add_up("account"), add_up("account"), add_up("share")]
            return rng.choice([*reads, *sums, least("share", SHARES), look_from("wires", 0)])
        if family == "transfer":
            return transfer("account", limited=rng.random() < 0.7)
        if family == "send":
            return send("account", rng.randint(1, 4), "wires")
        if family == "change":
            return change("account", rng.choice((1, -1)))
        if family == "transition":
            return transition("card", *rng.sample(CARD_STATUSES, 2))
        return (buy if family == "buy" else sell)("share", rng.choice(ACCOUNTS), "depot")
