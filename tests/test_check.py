"""`check_domain` names what is wrong with a domain, and is silent about one that is right."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from envace_lite.world import Domain, register
from envace_lite.world.check import KINDS, Finding, check_domain
from envace_lite.world.functions import FunctionTool
from helpers import CHAT
from worlds import NAMES, WORLDS, Library, library_ask, make_kitchen, make_library

Ask = dict[str, Any]


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envace_lite.world._OTHERS", {})


def found(domain: Domain, **options: Any) -> dict[str, list[Finding]]:
    register(domain)
    findings: dict[str, list[Finding]] = {}
    for finding in check_domain(domain, **options):
        assert finding.kind in KINDS
        assert finding.where
        findings.setdefault(finding.kind, []).append(finding)
    return findings


@pytest.mark.parametrize("name", WORLDS)
def test_nothing_is_found_in_a_domain_that_is_right(name: str) -> None:
    assert found(WORLDS[name]()) == {}


def asked(**changes: Any) -> Callable[[Random], Ask]:
    """A generator of the library's asks, with something changed in each; a function makes it from the ask."""

    def ask(rng: Random) -> Ask:
        made = library_ask(rng)
        return {**made, **{key: value(made) if callable(value) else value for key, value in changes.items()}}

    return ask


class Shared(Library):
    lent: dict[str, int] = {}  # noqa: RUF012 (the mistake)

    def lend(self, title: str, to: str, days: int = 14) -> str:
        """Lend a copy of a book.

        Args:
            title: the book's title
            to: the member's name
            days: for how long
        """
        self.lent[title] = self.lent.get(title, 0) + 1
        return f"lent {self.lent[title]} times"


class Moody(Library):
    def lend(self, title: str, to: str, days: int = 14) -> str:
        """Lend a copy of a book.

        Args:
            title: the book's title
            to: the member's name
            days: for how long
        """
        super().lend(title, to, days)
        return f"due at {time.perf_counter_ns()}"


class Private(Library):
    def lend(self, title: str, to: str, days: int = 14) -> str:
        """Lend a copy of a book.

        Args:
            title: the book's title
            to: the member's name
            days: for how long
        """
        if self.books[title] < 1:
            raise ValueError("no copy is left")
        self._lent = title
        return "lent"


class Closed(Library):
    def lend(self, title: str, to: str, days: int = 14) -> str:
        """Lend a copy of a book.

        Args:
            title: the book's title
            to: the member's name
            days: for how long
        """
        raise PermissionError("the library is closed")


class Open(Library):
    def lend(self, title: str, to: str, days: int = 14) -> str:
        """Lend a copy of a book.

        Args:
            title: the book's title
            to: the member's name
            days: for how long
        """
        self.books[title] -= 1
        return "lent"


class Careless(Library):
    def find(self, title: str) -> dict[str, Any]:
        """Look a book up.

        Args:
            title: the book's title
        """
        return {"copies": len(self.books[title])}  # type: ignore[arg-type]


class Wordy(Library):
    def find(self, title: str) -> dict[str, Any]:
        """Look a book up.

        Args:
            title: the book's title
        """
        return {"copies": self.books[title], "story": "Once upon a time. " * 200}


class Curious(Library):
    def find(self, title: str) -> dict[str, Any]:
        """Look a book up.

        Args:
            title: the book's title
        """
        self.books["asked"] = self.books.get("asked", 0) + 1
        return super().find(title)


class Opaque(Library):
    def find(self, title: str) -> Any:
        """Look a book up.

        Args:
            title: the book's title
        """
        return object.__new__(type("Handle", (), {"__slots__": ()}))


def same(_: Random) -> Ask:
    return library_ask(Random(3))


def negative(made: Ask) -> list[tuple[str, dict[str, Any]]]:
    return [(name, {**arguments, "days": "soon"}) for name, arguments in made["calls"]]


def idle_plan(made: Ask) -> list[tuple[str, dict[str, Any]]]:
    """Lends a book and takes it back."""
    made["state"]["books"]["Emma"] = 1
    made["state"]["members"]["Bob"]["loans"].pop("Emma", None)
    lend, give = {"title": "Emma", "to": "Bob"}, {"title": "Emma", "by": "Bob"}
    return [("lend", lend), ("give_back", give)]


def no_lending(rng: Random) -> Ask:
    while True:
        made = library_ask(rng)
        if made["calls"][0][0] != "lend":
            return made


def library_of(cls: type) -> Domain:
    return Domain.from_tools("library", cls, tasks=library_ask, reads={"find"})


def knock(state: Any, door: str) -> None:
    raise ValueError("nobody is in")


def with_silent_tool() -> Domain:
    schema = {
        "description": "Knock.",
        "parameters": {"type": "object", "properties": {"door": {"type": "string"}}},
    }
    silent = FunctionTool("knock", knock, schema=schema)
    return Domain.from_tools("kitchen", [*make_kitchen().tools.values(), silent], tasks=make_kitchen().asks)


MISTAKES: dict[str, tuple[str, str, Callable[[], Domain]]] = {
    "no tasks at all": ("no tasks", "library", lambda: make_library(tasks=[])),
    "two tasks of one name": ("same id", "library", lambda: make_library(tasks=asked(id="first"))),
    "always the same task": ("same task", "library", lambda: make_library(tasks=same)),
    "arguments of a wrong type": (
        "broken plan",
        "library-0-0",
        lambda: make_library(tasks=asked(calls=negative)),
    ),
    "names that nobody has": (
        "refused plans",
        "library",
        lambda: make_library(tasks=asked(calls=[("find", {"title": "Nothing"})])),
    ),
    "a check that nothing passes": (
        "missed label",
        "library-0-0",
        lambda: make_library(check=lambda *_: False),
    ),
    "a plan that ends where it began": (
        "idle",
        "library-0-0",
        lambda: make_library(tasks=asked(calls=idle_plan)),
    ),
    "a plan without calls": ("idle", "library-0-0", lambda: make_library(tasks=asked(calls=[]))),
    "one answer for reads alone": (
        "idle",
        "library",
        lambda: make_library(tasks=asked(calls=[("find", {"title": "Dune"})], answer="done")),
    ),
    "an empty answer": ("empty answer", "library-0-0", lambda: make_library(tasks=asked(answer=" "))),
    "state in the class": ("shared state", "lend (test_check.py:", lambda: library_of(Shared)),
    "the time in a response": ("nondeterministic", "lend (test_check.py:", lambda: library_of(Moody)),
    "a change that is not shown": ("idle write", "lend (test_check.py:", lambda: library_of(Private)),
    "a write among the reads": ("read writes", "find (test_check.py:", lambda: library_of(Curious)),
    "a read among the writes": ("idle write", "find (worlds.py:", lambda: make_library(reads=())),
    "a tool that always refuses": ("never succeeds", "lend (test_check.py:", lambda: library_of(Closed)),
    "a tool that never refuses": ("never fails", "lend (test_check.py:", lambda: library_of(Open)),
    "a tool that no task needs": ("never called", "lend (worlds.py:", lambda: make_library(tasks=no_lending)),
    "a function that fails on a type": ("bad types", "find (test_check.py:", lambda: library_of(Careless)),
    "a value that is no JSON": ("bad types", "find (test_check.py:", lambda: library_of(Opaque)),
    "a response without end": ("long response", "find (test_check.py:", lambda: library_of(Wordy)),
    "an argument without a description": (
        "undocumented",
        "knock (test_check.py:",
        with_silent_tool,
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_its_place(mistake: str) -> None:
    kind, place, make = MISTAKES[mistake]
    findings = found(make())
    assert kind in findings, findings
    assert any(finding.where.startswith(place) for finding in findings[kind]), findings[kind]


def test_words_that_the_language_lacks_are_named() -> None:
    (finding,) = found(make_library(), language=CHAT)["words"]
    assert '"Emma":' in finding.message


def test_a_conversation_that_does_not_fit_is_named() -> None:
    """In a language that has a token for each character."""

    class Letters:
        longest_message = 20

        def render(self, messages: Any, tools: Any, *, prompt: str | None = None) -> list[int]:
            return [ord(letter) for message in messages for letter in str(message)] + [0] * (
                prompt is not None
            )

    findings = found(make_library(), language=Letters(), context=400)
    assert "and the context 400" in findings["length"][0].message
    assert "a policy writes at most 20" in findings["long message"][0].message


def test_a_generator_that_fails_is_no_crash() -> None:
    calls = iter(range(150))

    def ask(rng: Random) -> Ask:
        if next(calls) > 100:
            raise KeyError("nothing left")
        return library_ask(rng)

    assert [f.kind for f in check_domain(make_library(tasks=ask))] == ["no tasks"]
    assert NAMES
