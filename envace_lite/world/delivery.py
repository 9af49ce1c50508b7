"""`delivery`: food, in-store and travel in one episode, in the shape of VitaBench.

Everything is paid from one wallet and one clock (hours left), stock runs out, and nothing can be undone.
"""

from random import Random
from typing import ClassVar

from envace_lite.world.families import Function, change, consume, look
from envace_lite.world.task import Domain
from envace_lite.world.tools import MAX_VALUE, Tool, Value

DISHES = ("pizza", "soup", "sushi", "tea")
PLACES = ("table", "cinema", "spa", "museum")
TRIPS = ("bus", "train", "flight", "ferry")


class Delivery(Domain):
    """Stocks of dishes, places and trips, a `wallet` and a `time`; see the module's docstring."""

    name = "delivery"
    title = "food, in-store and travel with one wallet and one clock (in the shape of VitaBench)"
    tools: ClassVar = {
        "check_stock": Tool("check_stock", look("item"), write=False),
        "top_up": Tool("top_up", change("money", +1)),
        "order_food": Tool("order_food", consume("dish", 2, 1)),
        "pick_up_food": Tool("pick_up_food", consume("dish", 1, 3)),
        "send_gift": Tool("send_gift", consume("dish", 4, 1)),
        "book_place": Tool("book_place", consume("place", 3, 2)),
        "join_queue": Tool("join_queue", consume("place", 1, 4)),
        "buy_ticket": Tool("buy_ticket", consume("trip", 4, 3)),
        "buy_return": Tool("buy_return", consume("trip", 5, 2)),
        "rush_food": Tool("rush_food", consume("dish", 3, 1)),
        "reserve_place": Tool("reserve_place", consume("place", 2, 3)),
        "share_ride": Tool("share_ride", consume("trip", 2, 4)),
    }
    held_out = frozenset({"rush_food", "reserve_place", "share_ride"})
    pools: ClassVar = {
        "dish": DISHES,
        "place": PLACES,
        "trip": TRIPS,
        "item": DISHES + PLACES + TRIPS,
        "money": ("wallet",),
        "amount": range(1, 6),
    }
    values: ClassVar = dict.fromkeys(
        (*DISHES, *PLACES, *TRIPS, "wallet", "time", "price", "hours"), range(MAX_VALUE + 1)
    )
    chooses = 1.0

    def sample_state(self, rng: Random) -> dict[str, Value]:
        """Two or three kinds of thing in stock, money and hours left."""
        items = [item for pool in (DISHES, PLACES, TRIPS) for item in rng.sample(pool, rng.randint(1, 2))]
        stock: dict[str, Value] = {item: rng.choice((0, 1, 2, 3)) for item in items}
        return {**stock, "wallet": rng.randint(3, 9), "time": rng.randint(3, 9)}

    def sample_function(self, rng: Random) -> Function:
        """Something to consume at a random price in money and time, now and then a read or a top-up."""
        if (roll := rng.random()) < 0.15:
            return look("item") if roll < 0.08 else change("money", +1)
        return consume(rng.choice(("dish", "place", "trip")), rng.randint(1, 6), rng.randint(1, 5))
