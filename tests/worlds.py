"""Three domains as a user writes them: a library of loans, a kitchen with timers, an address book with free text."""

from __future__ import annotations

from random import Random
from typing import Any

from envace_lite.world import Domain

NAMES = ["Ana Lee", "Bob", "Cem", "Dee"]
BOOKS = ["Dune", "Emma", "Ulysses"]


class Library:
    """Books that members borrow."""

    def __init__(self, books: dict[str, int], members: dict[str, dict[str, Any]]):
        self.books, self.members = books, members

    def find(self, title: str) -> dict[str, Any]:
        """Look a book up.

        Args:
            title: the book's title
        """
        holders = [name for name, member in self.members.items() if title in member["loans"]]
        return {"copies": self.books[title], "holders": holders}

    def lend(self, title: str, to: str, days: int = 14) -> str:
        """Lend a copy of a book.

        Args:
            title: the book's title
            to: the member's name
            days: for how long, at most 28
        """
        member = self.members[to]
        member["loans"][title] = days  # too early on purpose: a refused call must not leave it there
        if self.books[title] < 1:
            raise ValueError("no copy is left")
        if days > 28:
            raise ValueError("28 days at most")
        self.books[title] -= 1
        return f"due in {days} days"

    def give_back(self, title: str, by: str) -> None:
        """Take a book back.

        Args:
            title: the book's title
            by: the member's name
        """
        del self.members[by]["loans"][title]
        self.books[title] += 1


def library_ask(rng: Random) -> dict[str, Any]:
    title, name, days = rng.choice(BOOKS), rng.choice(NAMES), rng.choice([7, 14, 30])
    members: dict[str, Any] = {member: {"loans": {}} for member in NAMES}
    state = {"books": {book: rng.randint(0, 2) for book in BOOKS}, "members": members}
    kind = rng.choice(["find", "give_back", "lend", "lend"])
    if kind == "lend":
        lent = state["books"][title] > 0 and days <= 28
        ask, answer = f"Lend {title} to {name} for {days} days.", "done" if lent else "not possible"
        calls = [(kind, {"title": title, "to": name, "days": days})]
        return {"state": state, "ask": ask, "calls": calls, "answer": answer}
    members[name]["loans"][title] = 7
    ask, answer = (f"Who has {title}?", name) if kind == "find" else (f"{name} brings {title} back.", "done")
    calls = [(kind, {"title": title, **({"by": name} if kind == "give_back" else {})})]
    return {"state": state, "ask": ask, "calls": calls, "answer": answer}


def make_library(**changes: Any) -> Domain:
    """The library; `changes` are arguments of `Domain.from_tools`."""
    return Domain.from_tools("library", Library, **{"tasks": library_ask, "reads": {"find"}, **changes})


def start_timer(kitchen: dict[str, Any], label: str, minutes: float) -> dict[str, Any]:
    """Start a timer.

    Args:
        label: what it is for
        minutes: how long
    """
    if label in kitchen["timers"]:
        raise RuntimeError(f"{label} is already timed")
    kitchen["timers"][label] = kitchen["now"] + minutes
    return {"label": label, "rings_at": kitchen["timers"][label]}


async def wait(kitchen: dict[str, Any], minutes: float) -> list[str]:
    """Wait, and hear which timers ring.

    Args:
        minutes: how long
    """
    if minutes > 60:
        raise ValueError("an hour at most")
    kitchen["now"] += minutes
    rung = sorted(label for label, time in kitchen["timers"].items() if time <= kitchen["now"])
    for label in rung:
        del kitchen["timers"][label]
    return rung


def kitchen_ask(rng: Random) -> dict[str, Any]:
    label, minutes = rng.choice(["eggs", "rice", "tea"]), rng.choice([2.5, 5.0, 8.0, 90.0])
    running = rng.random() < 0.4
    state = {"now": 0.0, "timers": {label: 3.0} if running else {}}
    return {
        "state": state,
        "ask": f"Time the {label} for {minutes} minutes, and wait as long.",
        "calls": [("start_timer", {"label": label, "minutes": minutes}), ("wait", {"minutes": minutes})],
        "answer": label if minutes < 60 and (minutes >= 3 or not running) else "nothing",
    }


def make_kitchen(**changes: Any) -> Domain:
    """The kitchen; `changes` are arguments of `Domain.from_tools`."""
    return Domain.from_tools("kitchen", [start_timer, wait], **{"tasks": kitchen_ask, **changes})


class AddressBook:
    """People with notes in plain words."""

    def __init__(self, people: list[dict[str, str]]):
        self.people = people

    def _person(self, name: str) -> dict[str, str]:
        found = [person for person in self.people if person["name"] == name]
        if not found:
            raise KeyError(f"nobody is called {name}")
        return found[0]

    def read_note(self, name: str) -> str:
        """What is noted about a person.

        Args:
            name: the person's name
        """
        return self._person(name)["note"]

    def add_note(self, name: str, text: str) -> None:
        """Add a sentence to the note about a person.

        Args:
            name: the person's name
            text: the sentence
        """
        person = self._person(name)
        person["note"] = f"{person['note']} {text}".strip()


def address_ask(rng: Random) -> dict[str, Any]:
    name, known = rng.choice(NAMES), rng.sample(NAMES, 3)
    text = rng.choice(["Likes tea, no sugar.", "Moved to 5 Elm Street.", 'Said: "call me".'])
    people = [{"name": person, "note": "Met in May."} for person in known]
    return {
        "state": {"people": people},
        "ask": f"Note about {name}: {text} Then read me the note.",
        "calls": [("add_note", {"name": name, "text": text}), ("read_note", {"name": name})],
        "answer": f"Met in May. {text}" if name in known else "unknown",
    }


def make_address_book(**changes: Any) -> Domain:
    """The address book; `changes` are arguments of `Domain.from_tools`."""
    return Domain.from_tools(
        "addresses", AddressBook, **{"tasks": address_ask, "reads": {"read_note"}, **changes}
    )


WORLDS = {"library": make_library, "kitchen": make_kitchen, "addresses": make_address_book}
