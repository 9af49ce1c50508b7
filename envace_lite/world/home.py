"""`home`: single, parallel and multi-step calls of everyday functions, in the shape of BFCL-v4.

Arguments are validated: a day that does not exist, a number out of range and an unknown name are refused. Some
tasks fit none of the listed tools, and the right answer is to say so. The number of messages sent starts at zero, and
the weather is known to nobody who has not asked.
"""

from random import Random
from typing import ClassVar

from envace_lite.world.families import (
    MONTH_LENGTHS,
    Function,
    adjust,
    book,
    copy,
    count,
    find,
    look,
    look_from,
    mark,
    reveal,
    tell,
    transition,
)
from envace_lite.world.tools import MAX_VALUE, Tool, Value
from envace_lite.world.toy import ToyDomain

ROOMS = ("r1", "r2", "r3", "r4")
NAMES = ("ana", "bob", "cem", "dee", "eva")
DEVICES = ("lamp", "fan", "oven", "radio")
ROOM_STATUSES = ("free", "taken", "closed")
DEVICE_STATUSES = ("on", "off", "muted", "locked")
WEATHER = ("sun", "rain")


class Home(ToyDomain):
    """Rooms, contacts, devices, a calendar, an alarm and the weather; see the module's docstring."""

    name = "home"
    title = "everyday functions with validated arguments (in the shape of BFCL-v4)"
    tools: ClassVar = {
        "find_contact": Tool("find_contact", look("contact"), write=False),
        "find_room": Tool("find_room", find("room", ROOMS), write=False),
        "find_device": Tool("find_device", find("device", DEVICES), write=False),
        "count_devices": Tool("count_devices", count("device", DEVICES), write=False),
        "count_sent": Tool("count_sent", look_from("sent", 0), write=False),
        "get_weather": Tool("get_weather", reveal("weather"), write=False),
        "send_message": Tool("send_message", tell("contact", "sent")),
        "book_room": Tool("book_room", book("room", "taken")),
        "free_room": Tool("free_room", transition("room", "taken", "free")),
        "add_event": Tool("add_event", mark("event")),
        "set_alarm": Tool("set_alarm", adjust("alarm", 23)),
        "set_volume": Tool("set_volume", adjust("volume", 9)),
        "turn_on": Tool("turn_on", transition("device", "off", "on")),
        "turn_off": Tool("turn_off", transition("device", "on", "off")),
        "unlock": Tool("unlock", transition("device", "locked", "off")),
        "text_contact": Tool("text_contact", tell("contact", "sent")),
        "start_device": Tool("start_device", transition("device", "off", "on")),
        "switch_off": Tool("switch_off", transition("device", "muted", "off")),
        "open_room": Tool("open_room", transition("room", "closed", "free")),
        "set_early": Tool("set_early", adjust("alarm", 12)),
        "copy_room": Tool("copy_room", copy("room", ROOMS)),
        "hold_room": Tool("hold_room", book("room", "held")),
        "set_heat": Tool("set_heat", adjust("heat", 15)),
    }
    news: ClassVar = {
        "text_contact": "name",
        "start_device": "name",
        "switch_off": "combination",
        "open_room": "combination",
        "set_early": "combination",
        "copy_room": "dynamics",
        "hold_room": "words",
        "set_heat": "words",
    }
    held_out = frozenset(news)
    pools: ClassVar = {
        "contact": NAMES,
        "room": ROOMS,
        "device": DEVICES,
        "month": tuple(MONTH_LENGTHS),
        "day": range(1, 32),
        "number": range(32),
        "room_status": ROOM_STATUSES,
        "device_status": DEVICE_STATUSES,
    }
    constants = frozenset({"month", "room_status", "device_status"})
    values: ClassVar = {
        **dict.fromkeys(ROOMS, (*ROOM_STATUSES, "held")),
        **dict.fromkeys((*NAMES, "sent", "from"), range(MAX_VALUE + 1)),
        **dict.fromkeys(DEVICES, DEVICE_STATUSES),
        "weather": WEATHER,
        **dict.fromkeys(("needs", "gives"), (*ROOM_STATUSES, "held", *DEVICE_STATUSES)),
        **dict.fromkeys(MONTH_LENGTHS, (28, 30, 31)),
        **dict.fromkeys(("event", "trip", "day", "alarm", "volume", "heat", "cook", "most"), range(32)),
        "found": ROOMS + DEVICES,
        "count": range(5),
    }
    hidden = frozenset({"sent", "weather"})
    secret = frozenset({"weather"})
    parallel = 0.3
    no_tool = 0.06
    unread = frozenset({"held"})
    depends = 0.75
    chooses = 0.6

    def sample_state(self, rng: Random) -> dict[str, Value]:
        """Some rooms, contacts and devices; no message sent; the weather."""
        state: dict[str, Value] = {
            room: rng.choice(("free", "free", "taken", "taken", "closed"))
            for room in rng.sample(ROOMS, rng.randint(2, 3))
        }
        state |= {name: rng.randint(1, 9) for name in rng.sample(NAMES, 2)}
        state |= {device: rng.choice(DEVICE_STATUSES) for device in rng.sample(DEVICES, rng.randint(2, 3))}
        return {**state, "sent": 0, "weather": rng.choice(WEATHER)}

    def sample_function(self, rng: Random) -> Function:
        """A random member of the families that training may know."""
        family = rng.choice(("read", "read", "tell", "book", "mark", "adjust", "transition", "transition"))
        if family == "read":
            reads = [look(kind) for kind in ("contact", "room", "device")]
            finds = [find("room", ROOMS), find("device", DEVICES)]
            counts = [count("device", DEVICES), count("room", ROOMS), look_from("sent", 0), reveal("weather")]
            return rng.choice([*reads, *finds, *finds, *counts])
        if family == "tell":
            return tell("contact", "sent")
        if family == "book":
            return book("room", rng.choice(("taken", "closed")))
        if family == "mark":
            return mark(rng.choice(("event", "trip")))
        if family == "adjust":
            return adjust(rng.choice(("alarm", "volume", "cook")), rng.randint(3, 30))
        if rng.random() < 0.3:
            return transition("room", *rng.sample(ROOM_STATUSES, 2))
        return transition("device", *rng.sample(DEVICE_STATUSES, 2))
