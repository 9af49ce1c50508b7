"""`orders`: orders with a status, one courier and a written policy, in the shape of tau2-bench.

Each write is allowed in one state only and cannot be undone. One courier carries one order at a time: sending an order
makes it busy, and delivering one frees it. The user may come back with a second request, the policy may forbid a tool
that the environment itself would allow, and one step belongs to the user: the agent can only ask for it (dual control).
"""

from random import Random
from typing import ClassVar

from envace_lite.world.families import Function, copy, count, find, look, transition, transition_with
from envace_lite.world.tools import Tool, Value
from envace_lite.world.toy import ToyDomain

ORDERS = ("o1", "o2", "o3", "o4", "o5", "o6")
STATUSES = ("pending", "paid", "packed", "sent", "delivered", "returned", "refunded", "cancelled")
COURIER = ("free", "busy")
TAKES, GIVES_BACK = ("courier", "free", "busy"), ("courier", "busy", "free")


class Orders(ToyDomain):
    """Orders `o1` to `o6` and a `courier`; see the module's docstring."""

    name = "orders"
    title = "orders with a status, a courier and a policy (in the shape of tau2-bench)"
    tools: ClassVar = {
        "get_order": Tool("get_order", look("order"), write=False),
        "find_order": Tool("find_order", find("order", ORDERS), write=False),
        "count_orders": Tool("count_orders", count("order", ORDERS), write=False),
        "ask_user_pay": Tool("ask_user_pay", transition("order", "pending", "paid", "user"), owner="user"),
        "cancel_order": Tool("cancel_order", transition("order", "pending", "cancelled")),
        "pack_order": Tool("pack_order", transition("order", "paid", "packed")),
        "send_order": Tool("send_order", transition_with("order", "packed", "sent", *TAKES)),
        "deliver_order": Tool("deliver_order", transition_with("order", "sent", "delivered", *GIVES_BACK)),
        "recall_order": Tool("recall_order", transition_with("order", "sent", "returned", *GIVES_BACK)),
        "return_order": Tool("return_order", transition("order", "delivered", "returned")),
        "refund_order": Tool("refund_order", transition("order", "returned", "refunded")),
        "ship_order": Tool("ship_order", transition_with("order", "packed", "sent", *TAKES)),
        "box_order": Tool("box_order", transition("order", "paid", "packed")),
        "void_order": Tool("void_order", transition("order", "paid", "cancelled")),
        "swap_order": Tool("swap_order", transition("order", "delivered", "packed")),
        "copy_order": Tool("copy_order", copy("order", ORDERS)),
        "lose_order": Tool("lose_order", transition("order", "sent", "lost")),
    }
    news: ClassVar = {
        "ship_order": "name",
        "box_order": "name",
        "void_order": "combination",
        "swap_order": "combination",
        "copy_order": "dynamics",
        "lose_order": "words",
    }
    held_out = frozenset(news)
    pools: ClassVar = {"order": ORDERS, "order_status": STATUSES}
    constants = frozenset({"order_status"})
    values: ClassVar = {
        **dict.fromkeys(ORDERS, (*STATUSES, "lost")),
        "courier": COURIER,
        **dict.fromkeys(("needs", "gives"), (*STATUSES, "lost", *COURIER)),
        "found": ORDERS,
        "count": range(5),
    }
    forbids = 0.25
    second_turn = 0.3
    unread = frozenset({"lost"})
    depends = 0.75
    chooses = 0.3

    def sample_state(self, rng: Random) -> dict[str, Value]:
        """Three or four orders, each with a status that few of them have, and the courier."""
        orders = sorted(rng.sample(ORDERS, rng.randint(3, 4)))
        # Some orders share a status, so that there is something to count and to find.
        common = rng.sample(STATUSES, 3)
        state = {order: rng.choice(common if rng.random() < 0.6 else STATUSES) for order in orders}
        return {**state, "courier": rng.choice(COURIER)}

    def sample_function(self, rng: Random) -> Function:
        """A transition between two random statuses, with or without the courier; now and then a read."""
        if (roll := rng.random()) < 0.2:
            return look("order") if roll < 0.06 else (find if roll < 0.13 else count)("order", ORDERS)
        needs, gives = rng.sample(STATUSES, 2)
        side = rng.choice((None, None, TAKES, GIVES_BACK))
        asks = "user" if rng.random() < 0.15 else ""
        if side:
            return transition_with("order", needs, gives, *side, asks)
        return transition("order", needs, gives, asks)
