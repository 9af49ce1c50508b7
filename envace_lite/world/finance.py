"""`finance`: accounts, quotes, transfers and limits behind namespaced tools, in the shape of FinMCP-Bench.

The names are those an MCP server lists (`bank.transfer`); the domain is scored also by tool precision, recall, F1.
"""

from random import Random
from typing import ClassVar

from envace_lite.world.families import Function, buy, change, look, sell, transfer, transition
from envace_lite.world.task import Domain
from envace_lite.world.tools import MAX_VALUE, Tool, Value

ACCOUNTS = ("checking", "savings", "cash")
SHARES = ("abc", "kly", "xyz", "qrs")
CARDS = ("visa", "amex")
CARD_STATUSES = ("active", "frozen", "blocked", "expired")


class Finance(Domain):
    """Accounts, a transfer `limit`, quoted shares with a `depot`, and cards; see the module's docstring."""

    name = "finance"
    title = "namespaced bank and market tools (in the shape of FinMCP-Bench)"
    tools: ClassVar = {
        "bank.balance": Tool("bank.balance", look("account"), write=False),
        "bank.transfer": Tool("bank.transfer", transfer("account", limited=True)),
        "bank.deposit": Tool("bank.deposit", change("account", +1)),
        "bank.withdraw": Tool("bank.withdraw", change("account", -1)),
        "card.freeze": Tool("card.freeze", transition("card", "active", "frozen")),
        "card.block": Tool("card.block", transition("card", "frozen", "blocked")),
        "market.quote": Tool("market.quote", look("share"), write=False),
        "market.buy": Tool("market.buy", buy("share", "cash", "depot")),
        "market.sell": Tool("market.sell", sell("share", "cash", "depot")),
        "bank.wire": Tool("bank.wire", transfer("account", limited=False)),
        "market.invest": Tool("market.invest", buy("share", "savings", "depot")),
        "card.renew": Tool("card.renew", transition("card", "expired", "active")),
    }
    held_out = frozenset({"bank.wire", "market.invest", "card.renew"})
    pools: ClassVar = {"account": ACCOUNTS, "share": SHARES, "card": CARDS, "amount": range(1, 8)}
    values: ClassVar = {
        **dict.fromkeys((*ACCOUNTS, *SHARES, "limit", "depot"), range(MAX_VALUE + 1)),
        **dict.fromkeys((*CARDS, "needs", "gives"), CARD_STATUSES),
    }
    chooses = 0.5

    def sample_state(self, rng: Random) -> dict[str, Value]:
        """Two or three accounts (always `cash`), two quotes, a card or two, a depot and a limit."""
        state: dict[str, Value] = {"limit": rng.randint(2, 6)}
        for account in (*rng.sample(ACCOUNTS[:2], rng.randint(1, 2)), "cash"):
            state[account] = rng.randint(0, 9)
        for share in rng.sample(SHARES, 2):
            state[share] = rng.randint(1, 6)
        state["depot"] = rng.choice((0, 0, 1, 2))
        for card in rng.sample(CARDS, rng.randint(1, 2)):
            state[card] = rng.choice(CARD_STATUSES)
        return state

    def sample_function(self, rng: Random) -> Function:
        """A random member of the families above."""
        family = rng.choice(("look", "transfer", "change", "buy", "sell", "transition"))
        if family == "look":
            return look(rng.choice(("account", "share", "card")))
        if family == "transfer":
            return transfer("account", limited=rng.random() < 0.7)
        if family == "change":
            return change("account", rng.choice((1, -1)))
        if family == "transition":
            return transition("card", *rng.sample(CARD_STATUSES, 2))
        return (buy if family == "buy" else sell)("share", rng.choice(ACCOUNTS), "depot")
