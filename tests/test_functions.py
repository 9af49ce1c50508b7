"""Tools from plain functions: whatever the state is made of, a call is a transaction, and no exception escapes."""

from __future__ import annotations

import copy
import inspect
import json
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from random import Random
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envace_lite.fidelity import compare, probe_pairs
from envace_lite.fidelity.baselines import always_success, copy_arguments, most_frequent, oracle
from envace_lite.fidelity.grounding import groundings
from envace_lite.reward import task_success
from envace_lite.rollout import Trajectory
from envace_lite.world import Domain, Task, get_domain, load_tasks, register, save_tasks
from envace_lite.world.domain import plan_calls
from envace_lite.world.functions import DomainError, FunctionTool
from envace_lite.world.result import NotJSON, Result, as_json, canonical, differences, leaves
from envace_lite.world.tools import ToolCall, parse_calls
from worlds import (
    WORLDS,
    AddressBook,
    Library,
    address_ask,
    kitchen_ask,
    library_ask,
    make_kitchen,
    make_library,
    start_timer,
    wait,
)

JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
every_world = pytest.mark.parametrize("name", WORLDS)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envace_lite.world._OTHERS", {})
    for make in WORLDS.values():
        register(make())


def lending(days: Any = 7, title: str = "Dune", to: str = "Bob") -> ToolCall:
    return ToolCall("lend", {"title": title, "to": to, "days": days})


def library_task(copies: int = 1) -> Task:
    members = {"Bob": {"loans": {}}, "Ana Lee": {"loans": {}}}
    ask = {"state": {"books": {"Dune": copies}, "members": members}, "ask": "Lend Dune to Bob."}
    return get_domain("library").task(
        {**ask, "calls": [("lend", dict(lending().arguments))], "answer": "done"}, "one"
    )


# Results ---------------------------------------------------------------------------------------------------


@given(JSONS)
def test_a_value_is_read_back_as_it_was(value: Any) -> None:
    """Unless it looks like an error, which is what a tool returns to say one."""
    if not (isinstance(value, dict) and set(value) <= {"error", "message"}):
        read = Result.parse(Result(value).text)
        assert canonical(read.value) == canonical(value)
        assert read.error is None


@given(st.text(min_size=1), st.text())
def test_an_error_is_read_back_as_it_was(name: str, message: str) -> None:
    read = Result.parse(Result(None, name, message).text)
    assert (read.value, read.error, read.message, read.told) == (None, name, message, False)


@pytest.mark.parametrize("text", ["", '{"copies": ', "[1, 2", '"half'])
def test_broken_json_is_no_result(text: str) -> None:
    read = Result.parse(text)
    assert read.error == "malformed"
    assert read.parts() == {}
    assert not read.same(Result(None))


@given(JSONS, JSONS)
def test_differences_say_what_changed_and_nothing_else(before: Any, after: Any) -> None:
    changed = differences(before, after)
    assert (changed == {}) == (canonical(before) == canonical(after))
    assert all(path in leaves(before) or path in leaves(after) for path in changed)


def test_differences_are_by_path_and_kind() -> None:
    before = {"a/b": 1, "list": [1, 2], "gone": {"x": 0}, "same": None}
    after = {"a/b": True, "list": [1], "same": None, "new": {}}
    assert differences(before, after) == {
        "/a~1b": True,
        "/list/1": "(removed)",
        "/gone/x": "(removed)",
        "/new": {},
    }


class Colour(Enum):
    RED = "red"


@dataclass
class Box:
    size: float = 1.5
    tags: set[str] = field(default_factory=lambda: {"b", "a"})


def test_the_view_of_an_object_is_a_copy_without_private_parts() -> None:
    state = Library({"Dune": 1}, {})
    state.boxes, state._cache, state.day = [Box()], object(), date(2026, 1, 2)  # type: ignore[attr-defined]
    state.colour = Colour.RED  # type: ignore[attr-defined]
    view = as_json(state)
    assert view == {
        "books": {"Dune": 1},
        "members": {},
        "boxes": [{"size": 1.5, "tags": ["a", "b"]}],
        "day": "2026-01-02",
        "colour": "red",
    }
    state.books["Dune"] = 9
    assert view["books"] == {"Dune": 1}


def test_what_has_no_view_is_named_with_its_path() -> None:
    with pytest.raises(NotJSON, match="/shelf/1: a function has no JSON view"):
        as_json({"shelf": [1, print_nothing]})
    loop: dict[str, Any] = {}
    loop["self"] = loop
    with pytest.raises(NotJSON, match="holds itself"):
        as_json(loop)


def print_nothing() -> None: ...


# Sessions --------------------------------------------------------------------------------------------------


def test_a_refused_call_changes_nothing_anywhere() -> None:
    """`lend` writes into nested state before it raises."""
    task = library_task(copies=0)
    before = copy.deepcopy(task.state)
    session, other = (get_domain("library").reset(task) for _ in range(2))
    snapshot, digest = session.snapshot(), session.digest()
    assert session.call(lending()).error == "ValueError"
    assert session.call(lending(days=99)).message == "no copy is left"
    assert session.digest() == digest == other.digest()
    assert as_json(snapshot) == session.view() == before == task.state


def test_what_a_call_changed_is_found_by_comparison() -> None:
    session = get_domain("library").reset(library_task())
    result = session.call(lending())
    assert result.value == "due in 7 days"
    assert result.changed == {"/books/Dune": 0, "/members/Bob/loans/Dune": 7}
    back = session.call(ToolCall("give_back", {"title": "Dune", "by": "Bob"}))
    assert back.value is None
    assert back.changed["/books/Dune"] == 1
    assert session.view() == library_task().state


def test_a_snapshot_and_a_view_are_cut_off_from_the_session() -> None:
    session = get_domain("library").reset(library_task())
    snapshot, view = session.snapshot(), session.view()
    session.call(lending())
    view["books"]["Dune"] = 77
    session.restore(snapshot)
    assert session.view()["books"] == {"Dune": 1}
    session.state.books["Dune"] = 5
    session.restore(snapshot)
    assert session.view()["books"] == {"Dune": 1}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"title": "Dune"}, "'to' is a required property"),
        ({"title": "Dune", "to": "Bob", "days": "7"}, "'7' is not of type 'integer'"),
        ({"title": "Dune", "to": "Bob", "colour": "red"}, "unexpected"),
        ({"title": None, "to": "Bob"}, "None is not of type 'string'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments: dict[str, Any], why: str) -> None:
    session = get_domain("library").reset(library_task())
    result = session.call(ToolCall("lend", arguments))
    assert result.error == "BadArguments"
    assert why in result.message


def test_a_left_out_option_takes_its_default() -> None:
    session = get_domain("library").reset(library_task())
    assert session.call(ToolCall("lend", {"title": "Dune", "to": "Bob"})).value == "due in 14 days"


def test_an_unknown_tool_is_a_result() -> None:
    session = get_domain("library").reset(library_task())
    assert session.call(ToolCall("burn", {})).error == "UnknownTool"
    assert [call.name for call, _ in session.log] == ["burn"]


def raising(error: BaseException) -> FunctionTool:
    def fail(state: dict[str, Any]) -> None:
        """Fail."""
        state["broken"] = True
        raise error

    return FunctionTool("fail", fail)


class Custom(Exception):
    pass


@pytest.mark.parametrize(
    "error", [ValueError("no"), KeyError("no"), Custom("no"), ZeroDivisionError("no"), OSError("no")]
)
def test_any_exception_is_a_typed_error(error: Exception) -> None:
    result = raising(error).call({}, {})
    assert (result.error, result.message) == (type(error).__name__, "no")


def test_an_interrupt_is_no_result() -> None:
    with pytest.raises(KeyboardInterrupt):
        raising(KeyboardInterrupt()).call({}, {})


def test_a_returned_error_is_an_error() -> None:
    def look(state: dict[str, Any]) -> dict[str, str]:
        """Look."""
        return {"error": "no such file"}

    result = FunctionTool("look", look).call({}, {})
    assert result.error == "no such file"
    assert json.loads(result.text) == {"error": "no such file"}


@given(st.dictionaries(st.sampled_from(["a", "b"]), JSONS, min_size=2, max_size=2))
@settings(max_examples=60)
def test_arguments_of_any_json_arrive_as_they_are(arguments: dict[str, Any]) -> None:
    """Also as the text of a plan: blanks, lists, floats, negatives, booleans, None, "007"."""
    got: list[Any] = []

    def take(state: Any, a: Any, b: Any) -> None:
        """Take.

        Args:
            a: one
            b: other
        """
        got.append(copy.deepcopy([a, b]))

    anything = {"type": "object", "properties": {"a": {}, "b": {}}}
    tool = FunctionTool("take", take, schema={"description": "Take.", "parameters": anything})
    call = ToolCall("take", arguments)
    (read,) = parse_calls(call.text, [tool.schema]) if call.text.startswith("take {") else [call]
    assert canonical(dict(read.arguments)) == canonical(arguments)
    if call.text.startswith("take {") or all(isinstance(value, str | int) for value in arguments.values()):
        assert tool.call({}, read.arguments).error is None
        assert canonical(got[-1]) == canonical([arguments["a"], arguments["b"]])


def test_a_function_cannot_change_the_call() -> None:
    def spoil(state: Any, items: list[int]) -> None:
        """Spoil.

        Args:
            items: some
        """
        items.append(1)

    arguments = {"items": [3]}
    FunctionTool("spoil", spoil).call({}, arguments)
    assert arguments == {"items": [3]}


# Tools -----------------------------------------------------------------------------------------------------


def test_the_schema_comes_from_hints_and_docstring() -> None:
    def paint(state: Any, colour: Literal["red", "blue"], coats: int = 1, note: str | None = None) -> None:
        """Paint it.

        Args:
            colour: which
            coats: how many
            note: what else
        """

    body = FunctionTool("paint", paint).schema["function"]
    assert (body["name"], body["description"]) == ("paint", "Paint it.")
    assert body["parameters"]["required"] == ["colour"]
    assert body["parameters"]["properties"]["colour"]["enum"] == ["red", "blue"]


class Order:
    """As pydantic's models do, as far as a tool needs it."""

    def __init__(self, item: str, count: int = 1):
        self.item, self.count = item, count

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        counted = {"type": "integer", "minimum": 1, "description": "how many"}
        properties = {"item": {"type": "string", "description": "what"}, "count": counted}
        return {"type": "object", "properties": properties, "required": ["item"]}


def buy(state: dict[str, int], order: Order) -> int:
    """Buy something."""
    state[order.item] = state.get(order.item, 0) + order.count
    return state[order.item]


def test_a_pydantic_model_is_a_schema() -> None:
    tool, state = FunctionTool("buy", buy), {"tea": 1}
    assert tool.call(state, {"item": "tea", "count": 2}).value == 3
    assert tool.call(state, {"item": "tea", "count": 0}).error == "BadArguments"


def test_an_async_tool_runs_with_and_without_a_loop() -> None:
    import asyncio

    domain = get_domain("kitchen")
    task = next(t for t in domain.draw(20) if "wait" in str(t.plan))

    def outcome() -> list[str]:
        session = domain.reset(task)
        return [session.call(call).text for call in plan_calls(task)]

    async def within() -> list[str]:
        return outcome()

    assert outcome() == asyncio.run(within())


def undocumented(state: Any, count: int) -> None:
    """Count."""


def untyped(state: Any, count) -> None:  # type: ignore[no-untyped-def]
    """Count.

    Args:
        count: how many
    """


def scattered(state: Any, *counts: int) -> None:
    """Count."""


def stateless() -> None:
    """Nothing."""


@pytest.mark.parametrize("function", [undocumented, untyped, scattered, stateless], ids=lambda f: f.__name__)
def test_what_does_not_say_what_it_takes_is_named_with_its_place(function: Any) -> None:
    with pytest.raises(DomainError, match=rf"test_functions\.py:\d+: {function.__name__}"):
        FunctionTool("tool", function)


# Domains ---------------------------------------------------------------------------------------------------


@every_world
def test_the_label_is_what_the_plan_really_does(name: str) -> None:
    domain = get_domain(name)
    tasks = domain.draw(40, seed=1)
    assert [t.to_json() for t in tasks] == [t.to_json() for t in domain.draw(40, seed=1)]
    changed = 0
    for task in tasks:
        session = domain.reset(task)
        exchanges = [(call, session.call(call)) for call in plan_calls(task)]
        answers = list(task.outcomes[0].answers)
        assert session.verify(answers).success
        assert not session.verify(["something else"]).answer
        changed += bool(task.outcomes[0].state)
        told = [(call, domain.read(result.text)) for call, result in exchanges]
        for known in (
            exchanges,
            told,
        ):  # real results say what changed; rehearsed ones are judged by the write flag
            trajectory = Trajectory(task, [], exchanges=known, answers=answers, stop_reason="answer")
            assert task_success(trajectory) == 1.0
        if task.outcomes[0].writes:
            assert not domain.reset(task).verify(answers).state
            refused = [(call, Result(None, "ValueError", told=False)) for call, _ in exchanges]
            assert task_success(Trajectory(task, [], exchanges=refused, answers=answers)) == 0.0
    assert changed > 10


def test_a_write_that_changes_nothing_is_a_write_everywhere() -> None:
    """The label, the environment and a rehearsal, which does not tell what changed, have to agree about it."""

    def light(state: dict[str, bool]) -> str:
        """Switch the light on."""
        state["on"] = True
        return "on"

    ask = {"state": {"on": True}, "ask": "Light, please.", "calls": [("light", {})], "answer": "done"}
    domain = Domain.from_tools("lamp", [light], tasks=[ask])
    register(domain)
    (task,) = domain.draw(1)
    (call,) = plan_calls(task)
    real = domain.reset(task).call(call)
    assert real.changed == {}
    for told in (real, domain.read(real.text)):
        assert task_success(Trajectory(task, [], exchanges=[(call, told)], answers=["done"])) == 1.0
    assert task_success(Trajectory(task, [], exchanges=[], answers=["done"])) == 0.0


def test_a_domain_cannot_take_the_name_of_a_toy_world() -> None:
    with pytest.raises(ValueError, match="there is a toy domain 'orders'; give yours another name"):
        register(Domain.from_tools("orders", Library, tasks=library_ask))


@pytest.mark.parametrize(
    "parts", [(Library, library_ask), (start_timer, wait, kitchen_ask), (AddressBook, address_ask)]
)
def test_a_world_of_a_users_own_is_short(parts: tuple[Any, ...]) -> None:
    assert sum(len(inspect.getsource(part).splitlines()) for part in parts) < 60


@every_world
def test_tasks_survive_a_file(name: str, tmp_path: Any) -> None:
    tasks = get_domain(name).draw(10)
    save_tasks(tmp_path / "tasks.jsonl", tasks)
    for read, task in zip(load_tasks(tmp_path / "tasks.jsonl"), tasks, strict=True):
        assert canonical(as_json(vars(read))) == canonical(as_json(vars(task)))
        assert plan_calls(read) == plan_calls(task)


def test_a_check_has_the_last_word() -> None:
    domain = make_library(check=lambda library, task: library.books["Dune"] == 0)
    task = library_task()
    session = domain.reset(task)
    assert not session.verify(["done"]).state
    session.state.books["Dune"] = 0
    assert session.verify(["Done."]).success


def test_an_ask_that_lacks_something_is_named() -> None:
    def ask(rng: Random) -> dict[str, Any]:
        return {key: value for key, value in library_ask(rng).items() if key != "answer"}

    with pytest.raises(DomainError, match=r"worlds.py|test_functions.py:\d+: the ask .* lacks answer"):
        make_library(tasks=ask)


def test_names_that_are_no_tools_are_refused() -> None:
    with pytest.raises(DomainError, match=r"the ask library-0-0 calls 'burn', which is no tool"):
        make_library(tasks=lambda rng: {**library_ask(rng), "calls": [("burn", {})]})
    with pytest.raises(DomainError, match="no tool is called look; there are find, lend, give_back"):
        make_library(reads={"look"})
    with pytest.raises(DomainError, match="several tools are called wait"):
        make_kitchen_twice()


def make_kitchen_twice() -> Domain:
    domain = make_kitchen()
    return Domain.from_tools("twice", [*domain.tools.values(), domain.tools["wait"]], tasks=[])


# Fidelity --------------------------------------------------------------------------------------------------


@every_world
def test_the_oracle_is_right_and_the_trivial_baselines_are_not(name: str) -> None:
    pairs = probe_pairs(get_domain(name).draw(30))
    assert 0.3 < sum(pair.real.error is not None for pair in pairs) / len(pairs) < 0.7
    assert compare(pairs, oracle(pairs)).exact.all()
    for baseline in (always_success, copy_arguments, most_frequent(pairs)):
        frame = compare(pairs, baseline(pairs))
        assert frame.exact.mean() < 0.8
    frame = compare(pairs, always_success(pairs))
    assert frame.rehearsed_success.all()
    assert not frame[frame.real_error].exact.any()


def test_leaves_are_grounded_by_where_their_value_stands() -> None:
    pairs = probe_pairs(get_domain("addresses").draw(30))
    read = next(p for p in pairs if p.planned and p.call.name == "read_note" and p.real.error is None)
    assert groundings(read) == {"error": "initial", "": "hidden"}  # put together from two sentences
    found = next(
        p for p in probe_pairs(get_domain("library").draw(30)) if p.call.name == "find" and not p.real.error
    )
    assert groundings(found)["/copies"] == "initial"
