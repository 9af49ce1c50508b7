"""`functions`: single, parallel and multi-step calls of everyday functions, in the shape of BFCL-v4.

Arguments are validated: a day that does not exist, a number out of range and an unknown name are refused. Some
tasks fit none of the listed tools, and the right answer is to say so.
"""

from random import Random
from typing import ClassVar

from envace_lite.world.families import MONTH_LENGTHS, Function, adjust, book, look, mark, tell, transition
from envace_lite.world.task import Domain
from envace_lite.world.tools import MAX_VALUE, Tool, Value

ROOMS = ("r1", "r2", "r3", "r4")
NAMES = ("ana", "bob", "cem", "dee", "eva")
DEVICES = ("lamp", "fan", "oven", "radio")
ROOM_STATUSES = ("free", "taken", "held", "closed")
DEVICE_STATUSES = ("on", "off", "muted", "locked")


class Functions(Domain):
    """Rooms, contacts, devices, a calendar and an alarm; see the module's docstring."""

    name = "functions"
    title = "everyday functions with validated arguments (in the shape of BFCL-v4)"
    tools: ClassVar = {
        "find_contact": Tool("find_contact", look("contact"), write=False),
        "send_message": Tool("send_message", tell("contact", "sent")),
        "book_room": Tool("book_room", book("room", "taken")),
        "free_room": Tool("free_room", transition("room", "taken", "free")),
        "add_event": Tool("add_event", mark("event")),
        "set_alarm": Tool("set_alarm", adjust("alarm", 23)),
        "set_volume": Tool("set_volume", adjust("volume", 9)),
        "turn_on": Tool("turn_on", transition("device", "off", "on")),
        "turn_off": Tool("turn_off", transition("device", "on", "off")),
        "unlock": Tool("unlock", transition("device", "locked", "off")),
        "hold_room": Tool("hold_room", book("room", "held")),
        "mute": Tool("mute", transition("device", "on", "muted")),
        "set_heat": Tool("set_heat", adjust("heat", 15)),
    }
    held_out = frozenset({"hold_room", "mute", "set_heat"})
    pools: ClassVar = {
        "contact": NAMES,
        "room": ROOMS,
        "device": DEVICES,
        "month": tuple(MONTH_LENGTHS),
        "day": range(1, 32),
        "number": range(32),
    }
    values: ClassVar = {
        **dict.fromkeys(ROOMS, ROOM_STATUSES),
        **dict.fromkeys((*NAMES, "sent"), range(MAX_VALUE + 1)),
        **dict.fromkeys(DEVICES, DEVICE_STATUSES),
        **dict.fromkeys(("needs", "gives"), ROOM_STATUSES + DEVICE_STATUSES),
        **dict.fromkeys(MONTH_LENGTHS, (28, 30, 31)),
        **dict.fromkeys(("event", "trip", "day", "alarm", "volume", "heat", "cook", "most"), range(32)),
    }
    parallel = 0.3
    no_tool = 0.08
    chooses = 0.6

    def sample_state(self, rng: Random) -> dict[str, Value]:
        """Some rooms, contacts and devices, and a counter of messages sent."""
        state: dict[str, Value] = {
            room: rng.choice(("free", "free", "taken")) for room in rng.sample(ROOMS, 2)
        }
        state |= {name: rng.randint(1, 9) for name in rng.sample(NAMES, 2)}
        state |= {device: rng.choice(DEVICE_STATUSES) for device in rng.sample(DEVICES, 2)}
        return {**state, "sent": rng.randint(0, 9)}

    def sample_function(self, rng: Random) -> Function:
        """A random member of the families above."""
        family = rng.choice(("look", "tell", "book", "mark", "adjust", "transition", "transition"))
        if family == "look":
            return look(rng.choice(("contact", "room", "device")))
        if family == "tell":
            return tell("contact", "sent")
        if family == "book":
            return book("room", rng.choice(("taken", "closed")))
        if family == "mark":
            return mark(rng.choice(("event", "trip")))
        if family == "adjust":
            return adjust(rng.choice(("alarm", "volume", "cook")), rng.randint(3, 30))
        if rng.random() < 0.3:
            return transition("room", *rng.sample(("free", "taken", "closed"), 2))
        return transition("device", *rng.sample(DEVICE_STATUSES, 2))
