"""`retail`: orders with a status and a written policy, in the shape of tau2-bench.

Each write is allowed in one state only and cannot be undone. The user may come back with a second request, the
policy may forbid a tool that the environment itself would allow, and one step belongs to the user: the agent can
only ask for it (dual control).
"""

from random import Random
from typing import ClassVar

from envace_lite.world.families import Function, look, transition
from envace_lite.world.task import Domain
from envace_lite.world.tools import Tool, Value

ORDERS = ("o1", "o2", "o3", "o4", "o5", "o6")
STATUSES = ("pending", "paid", "packed", "sent", "delivered", "returned", "refunded", "cancelled")


class Retail(Domain):
    """Orders `o1` to `o6`; see the module's docstring."""

    name = "retail"
    title = "orders with a status and a policy (in the shape of tau2-bench)"
    tools: ClassVar = {
        "get_order": Tool("get_order", look("order"), write=False),
        "ask_user_pay": Tool("ask_user_pay", transition("order", "pending", "paid", "user"), owner="user"),
        "cancel_order": Tool("cancel_order", transition("order", "pending", "cancelled")),
        "pack_order": Tool("pack_order", transition("order", "paid", "packed")),
        "send_order": Tool("send_order", transition("order", "packed", "sent")),
        "deliver_order": Tool("deliver_order", transition("order", "sent", "delivered")),
        "recall_order": Tool("recall_order", transition("order", "sent", "returned")),
        "return_order": Tool("return_order", transition("order", "delivered", "returned")),
        "refund_order": Tool("refund_order", transition("order", "returned", "refunded")),
        "void_order": Tool("void_order", transition("order", "paid", "cancelled")),
        "swap_order": Tool("swap_order", transition("order", "delivered", "packed")),
        "ask_user_return": Tool(
            "ask_user_return", transition("order", "packed", "returned", "user"), owner="user"
        ),
    }
    held_out = frozenset({"void_order", "swap_order", "ask_user_return"})
    pools: ClassVar = {"order": ORDERS}
    values: ClassVar = {**dict.fromkeys(ORDERS, STATUSES), "needs": STATUSES, "gives": STATUSES}
    forbids = 0.25
    second_turn = 0.3
    chooses = 0.3

    def sample_state(self, rng: Random) -> dict[str, Value]:
        """Three or four orders, each with a status."""
        orders = sorted(rng.sample(ORDERS, rng.randint(3, 4)))
        return {order: rng.choice(STATUSES) for order in orders}

    def sample_function(self, rng: Random) -> Function:
        """A transition between two random statuses, now and then a read."""
        if rng.random() < 0.1:
            return look("order")
        needs, gives = rng.sample(STATUSES, 2)
        return transition("order", needs, gives, "user" if rng.random() < 0.15 else "")
