"""`errands`: food, in-store and travel in one episode, in the shape of VitaBench.

Everything is paid from one wallet and one clock (hours left), stock runs out, and nothing can be undone. Some purchases
bring points, which no system message shows: they start at zero.
"""

from random import Random
from typing import ClassVar

from envace_lite.world.families import (
    Function,
    adjust,
    change,
    consume,
    convert,
    left_after,
    look,
    look_from,
    pay,
)
from envace_lite.world.tools import MAX_VALUE, Tool, Value
from envace_lite.world.toy import ToyDomain

DISHES = ("pizza", "soup", "sushi", "tea")
PLACES = ("table", "cinema", "spa", "museum")
TRIPS = ("bus", "train", "flight", "ferry")


class Errands(ToyDomain):
    """Stocks of dishes, places and trips, a `wallet`, a `time` and `points`; see the module's docstring."""

    name = "errands"
    title = "food, in-store and travel with one wallet and one clock (in the shape of VitaBench)"
    tools: ClassVar = {
        "check_stock": Tool("check_stock", look("item"), write=False),
        "check_wallet": Tool("check_wallet", left_after("wallet", 4), write=False),
        "check_time": Tool("check_time", left_after("time", 3), write=False),
        "get_points": Tool("get_points", look_from("points", 0), write=False),
        "top_up": Tool("top_up", change("money", +1)),
        "order_food": Tool("order_food", consume("dish", 2, 1, "points")),
        "pick_up_food": Tool("pick_up_food", consume("dish", 1, 3)),
        "send_gift": Tool("send_gift", pay("dish", 3, 1)),
        "book_place": Tool("book_place", consume("place", 3, 2)),
        "join_queue": Tool("join_queue", consume("place", 1, 4)),
        "hire_guide": Tool("hire_guide", pay("place", 4, 2)),
        "buy_ticket": Tool("buy_ticket", consume("trip", 4, 3, "points")),
        "buy_return": Tool("buy_return", consume("trip", 5, 2)),
        "order_meal": Tool("order_meal", consume("dish", 2, 1, "points")),
        "check_budget": Tool("check_budget", left_after("wallet", 4), write=False),
        "rush_food": Tool("rush_food", consume("dish", 3, 1)),
        "reserve_place": Tool("reserve_place", consume("place", 2, 3, "points")),
        "share_ride": Tool("share_ride", pay("trip", 1, 1)),
        "save_time": Tool("save_time", convert("wallet", "time", 2)),
        "set_tip": Tool("set_tip", adjust("gift", 5)),
    }
    news: ClassVar = {
        "order_meal": "name",
        "check_budget": "name",
        "rush_food": "combination",
        "reserve_place": "combination",
        "share_ride": "combination",
        "save_time": "dynamics",
        "set_tip": "words",
    }
    held_out = frozenset(news)
    pools: ClassVar = {
        "dish": DISHES,
        "place": PLACES,
        "trip": TRIPS,
        "item": DISHES + PLACES + TRIPS,
        "money": ("wallet",),
        "amount": range(1, 6),
        "number": range(MAX_VALUE + 1),
    }
    values: ClassVar = {
        **dict.fromkeys((*DISHES, *PLACES, *TRIPS, "wallet", "time"), range(MAX_VALUE + 1)),
        **dict.fromkeys(("points", "from", "left", "price", "hours", "tip", "cost"), range(MAX_VALUE + 1)),
        **dict.fromkeys(("amount", "gift", "most"), range(MAX_VALUE + 1)),
    }
    hidden = frozenset({"points"})
    depends = 0.75
    chooses = 1.0

    def sample_state(self, rng: Random) -> dict[str, Value]:
        """Two or three kinds of thing in stock, money and hours left, and no points."""
        items = [item for pool in (DISHES, PLACES, TRIPS) for item in rng.sample(pool, rng.randint(1, 2))]
        stock: dict[str, Value] = {item: rng.choice((0, 1, 2, 3)) for item in items}
        return {**stock, "wallet": rng.randint(3, 9), "time": rng.randint(3, 9), "points": 0}

    def sample_function(self, rng: Random) -> Function:
        """Something to buy at a random price, now and then a read or a top-up."""
        if (roll := rng.random()) < 0.3:
            if roll < 0.1:
                return left_after(rng.choice(("wallet", "time")), rng.randint(1, 6))
            return (
                look("item")
                if roll < 0.16
                else change("money", +1)
                if roll < 0.22
                else look_from("points", 0)
            )
        kind = rng.choice(("dish", "place", "trip"))
        if rng.random() < 0.3:
            return pay(kind, rng.randint(1, 5), rng.randint(1, 3))
        return consume(kind, rng.randint(1, 6), rng.randint(1, 5), rng.choice(("", "points")))
