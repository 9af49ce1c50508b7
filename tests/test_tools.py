"""Tools: schemas, calls as data, responses as sentences, and a refused call that leaves no trace."""

from __future__ import annotations

import builtins
import string
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envace_lite.pretraining.traces import READS
from envace_lite.world import DOMAINS
from envace_lite.world.families import (
    add_up,
    convert,
    copy,
    count,
    empty,
    find,
    least,
    left_after,
    look_from,
    pay,
    send,
    transition_with,
)
from envace_lite.world.orders import GIVES_BACK, ORDERS, TAKES
from envace_lite.world.tools import (
    MAX_VALUE,
    Tool,
    ToolCall,
    ToolError,
    ToolResponse,
    Value,
    World,
    documented,
    parse_calls,
)
from helpers import EVERY_DOMAIN

BOOK = DOMAINS["home"].tools["book_room"]
TRANSFER = DOMAINS["bank"].tools["bank.transfer"]
ALARM = DOMAINS["home"].tools["set_alarm"]
SCHEMAS = [BOOK.schema, TRANSFER.schema, DOMAINS["home"].tools["find_contact"].schema]


# Schemas ---------------------------------------------------------------------------------------------------


def test_schemas_of_real_tools() -> None:
    assert BOOK.schema == {
        "type": "function",
        "function": {
            "name": "book_room",
            "description": "room month day exists needs:free gives:taken day",
            "parameters": {
                "type": "object",
                "properties": {
                    "target": {"type": "string", "description": "room"},
                    "month": {"type": "string", "description": "month"},
                    "day": {"type": "integer", "description": "day"},
                },
                "required": ["target", "month", "day"],
            },
        },
    }
    assert TRANSFER.schema["function"] == {
        "name": "bank.transfer",
        "description": "amount most limit account less amount account more amount",
        "parameters": {
            "type": "object",
            "properties": {
                "source": {"type": "string", "description": "account"},
                "target": {"type": "string", "description": "account"},
                "amount": {"type": "integer", "description": "amount"},
            },
            "required": ["source", "target", "amount"],
        },
    }


def test_the_same_function_under_another_name() -> None:
    other = BOOK.renamed("word_3")
    assert other.schema["function"] == {**BOOK.schema["function"], "name": "word_3"}
    assert BOOK.schema["function"]["name"] == "book_room"


def test_a_function_without_documentation_is_no_tool() -> None:
    def silent(world: World, target: str) -> None:
        """Says nothing about its argument."""

    with pytest.raises(Exception, match="no description for the argument"):
        _ = Tool("silent", silent).schema


# Calls -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("find_contact ana", [("find_contact", {"target": "ana"})]),
        ("book_room r1 feb 30", [("book_room", {"target": "r1", "month": "feb", "day": 30})]),
        ("book_room feb r1 x", [("book_room", {"target": "feb", "month": "r1", "day": "x"})]),
        (
            "bank.transfer cash savings 3 and find_contact bob",
            [
                ("bank.transfer", {"source": "cash", "target": "savings", "amount": 3}),
                ("find_contact", {"target": "bob"}),
            ],
        ),
    ],
)
def test_calls_are_read(text: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    parsed = parse_calls(text, SCHEMAS)
    assert [(call.name, call.arguments) for call in parsed] == calls
    assert " and ".join(call.text for call in parsed) == text
    assert [ToolCall.from_message(call.to_message()) for call in parsed] == parsed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "and",
        "say",
        "find_contact",
        "find_contact ana bob",
        "book_room r1 feb",
        "cancel_order o1",  # a tool, but not a listed one
        "find_contact ana and",
        "and find_contact ana",
        "find_contact ana and and find_contact bob",
        "find_contact ana then find_contact bob",
        "Find_contact ana",
        '{"name": "find_contact", "arguments": {"target": "ana"}}',
        "find_contact(ana)",
    ],
)
def test_what_is_no_call_is_malformed(text: str) -> None:
    with pytest.raises(ToolError) as caught:
        parse_calls(text, SCHEMAS)
    assert caught.value.rule == "malformed"


@given(st.text(string.printable))
def test_any_text_is_calls_or_malformed(text: str) -> None:
    with suppress(ToolError):
        assert {call.name for call in parse_calls(text, SCHEMAS)} <= {
            "book_room",
            "bank.transfer",
            "find_contact",
        }


@pytest.mark.parametrize("trick", ["__import__('os').getcwd()", "eval('1+1')", "{world}", "r1;exit()"])
def test_model_text_is_never_evaluated(trick: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("model text was evaluated")

    world = World({"r1": "free"})
    with monkeypatch.context() as patch:
        for name in ("eval", "exec", "compile"):
            patch.setattr(builtins, name, forbidden)
        (call,) = parse_calls(f"book_room {trick} feb 3", SCHEMAS)
        response = BOOK.call(world, call.arguments)
    assert call.arguments["target"] == trick
    assert response.error == "unknown"
    assert world.records == {"r1": "free"}


# Responses -------------------------------------------------------------------------------------------------

WORDS = st.text("abz09_.", max_size=5).map(lambda text: "k" + text)
PAIRS = st.dictionaries(WORDS, st.one_of(WORDS, st.integers(0, 31)), max_size=4)
SUCCESSES = st.builds(ToolResponse, PAIRS, st.none(), PAIRS)
ERRORS = st.builds(ToolResponse, PAIRS, WORDS, st.just({}))


@given(st.one_of(SUCCESSES, ERRORS))
def test_a_response_is_its_sentence(response: ToolResponse) -> None:
    again = ToolResponse.parse(response.text)
    assert again == response
    assert again.text == response.text


@pytest.mark.parametrize(
    ("text", "response"),
    [
        ("ok", ToolResponse({}, None, {})),
        ("error unknown", ToolResponse({}, "unknown", {})),
        ("o3:sent error status", ToolResponse({"o3": "sent"}, "status", {})),
        ("cash:3 abc:2 ok cash:1", ToolResponse({"cash": 3, "abc": 2}, None, {"cash": 1})),
    ],
)
def test_known_responses(text: str, response: ToolResponse) -> None:
    assert ToolResponse.parse(text) == response
    assert response.text == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "o3",
        "o3:sent",
        "error",
        "o3 ok",
        "ok o3",
        "o3:sent error status o3:lost",
        "o3:sent error",
        "error status ok",
        "o3:sent o3:sent ok",  # a record twice: not a sentence that any tool says
        "ok o3:sent o3:packed",
    ],
)
def test_a_response_that_is_not_well_formed(text: str) -> None:
    assert ToolResponse.parse(text) == ToolResponse({}, "malformed", {})


@given(st.text(string.printable))
def test_any_text_is_a_response(text: str) -> None:
    assert isinstance(ToolResponse.parse(text), ToolResponse)


# Transactions ----------------------------------------------------------------------------------------------


@documented("account less amount account more amount", first="account", second="account", amount="amount")
def move(world, first: str, second: str, amount: int) -> None:
    world.add(first, -amount)
    world.add(second, amount)


@pytest.mark.parametrize(
    ("amount", "text", "after"),
    [
        (2, "a:3 b:8 error full", {"a": 3, "b": 8}),  # the first half of the call had gone well
        (4, "a:3 error funds", {"a": 3, "b": 8}),
        (1, "a:3 b:8 ok a:2 b:9", {"a": 2, "b": 9}),
    ],
)
def test_a_refused_call_leaves_no_trace(amount: int, text: str, after: dict[str, int]) -> None:
    world = World({"a": 3, "b": 8})
    tool = Tool("move", move)
    assert tool.call(world, {"first": "a", "second": "b", "amount": amount}).text == text
    assert world.records == after
    assert tool.call(world, {"first": "b", "second": "a", "amount": 1}).error is None


def test_a_call_sees_its_own_changes() -> None:
    world = World({"a": 3})
    response = Tool("move", move).call(world, {"first": "a", "second": "a", "amount": 3})
    assert response.text == "a:3 ok a:3"


def test_amounts_stay_within_single_digits() -> None:
    world = World({"a": MAX_VALUE, "word": "x"})
    for key, amount, rule in [
        ("a", 1, "full"),
        ("a", -10, "funds"),
        ("word", 1, "type"),
        ("none", 1, "unknown"),
    ]:
        with pytest.raises(ToolError) as caught:
            world.add(key, amount)
        assert caught.value.rule == rule


def test_a_world_keeps_its_own_records() -> None:
    records = {"a": 3}
    World(records).records["a"] = 4
    assert records == {"a": 3}


# Arguments -------------------------------------------------------------------------------------------------

GOOD = {"target": "r1", "month": "feb", "day": 3}


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"target": "r1", "month": "feb"},
        {**GOOD, "year": 2},
        {**GOOD, "day": "3"},
        {**GOOD, "day": None},
        {**GOOD, "day": True},
        {**GOOD, "day": 3.0},  # a whole number for JSON Schema, but not for the records
        {**GOOD, "day": 3.5},
        {**GOOD, "day": [3]},
        {**GOOD, "day": float("nan")},
        {**GOOD, "target": 1},
        {**GOOD, "target": ["r1"]},
        {**GOOD, 4: 5},
    ],
    ids=str,
)
def test_wrong_arguments_are_a_typed_error(arguments: dict[str, Any]) -> None:
    world = World({"r1": "free"})
    assert BOOK.call(world, arguments) == ToolResponse({}, "type", {})
    assert world.records == {"r1": "free"}
    assert BOOK.call(world, GOOD).error is None


@pytest.mark.parametrize(
    ("number", "rules"), [(-1, {"type", "range"}), (24, {"range"}), (10**400, {"range"})]
)
def test_a_number_out_of_range_is_refused(number: int, rules: set[str]) -> None:
    world = World({})
    assert ALARM.call(world, {"number": number}).error in rules
    assert world.records == {}


def test_a_negative_amount_moves_nothing() -> None:
    world = World({"limit": 2, "cash": 5, "savings": 5})
    response = TRANSFER.call(world, {"source": "cash", "target": "savings", "amount": -3})
    assert response.error
    assert world.records == {"limit": 2, "cash": 5, "savings": 5}


@pytest.mark.parametrize("domain", EVERY_DOMAIN, ids=lambda domain: domain.name)
def test_documentation_says_whether_a_tool_writes(domain: Any) -> None:
    for tool in domain.tools.values():
        assert tool.write == READS.isdisjoint(tool.documentation.split()), tool


# Families --------------------------------------------------------------------------------------------------

STATE: dict[str, Value] = {"o1": "paid", "o2": "sent", "o4": "paid", "courier": "busy"}


@pytest.mark.parametrize(
    ("function", "state", "arguments", "response"),
    [
        (find("order", ORDERS), STATE, {"status": "paid"}, "o1:paid found:o1 ok"),
        (find("order", ORDERS), STATE, {"status": "packed"}, "error none"),
        (find("order", ORDERS), STATE, {"status": "busy"}, "error none"),  # the courier is no order
        (count("order", ORDERS), STATE, {"status": "paid"}, "o1:paid o4:paid count:2 ok"),
        (count("order", ORDERS), STATE, {"status": "packed"}, "count:0 ok"),
        (add_up("account"), {"a": 9, "b": 4}, {"one": "a", "other": "b"}, "a:9 b:4 total:13 ok"),
        (add_up("account"), {"a": 9}, {"one": "a", "other": "b"}, "a:9 b:unknown error unknown"),
        (least("share", ("a", "b")), {"a": 5, "b": 3}, {"one": "a", "other": "b"}, "a:5 b:3 found:b ok"),
        (least("share", ("a", "b")), {"a": 3, "b": 3}, {"one": "b", "other": "a"}, "b:3 a:3 found:b ok"),
        (left_after("wallet", 4), {"wallet": 6}, {}, "wallet:6 amount:4 left:2 ok"),
        (left_after("wallet", 4), {"wallet": 3}, {}, "wallet:3 amount:4 error wallet"),
        (look_from("points", 0), {"points": 2}, {}, "points:2 ok"),
        (
            pay("dish", 3, 1),
            {"tea": 2, "wallet": 4},
            {"target": "tea"},
            "tea:2 wallet:4 price:3 tip:1 cost:4 ok tea:1 wallet:0",
        ),
        (
            pay("dish", 3, 1),
            {"tea": 2, "wallet": 3},
            {"target": "tea"},
            "tea:2 wallet:3 price:3 tip:1 cost:4 error wallet",
        ),
        (pay("dish", 3, 1), {"tea": 0, "wallet": 9}, {"target": "tea"}, "tea:0 error stock"),
        (
            send("account", 1, "wires"),
            {"a": 5, "b": 2, "wires": 0},
            {"source": "a", "target": "b", "amount": 4},
            "a:5 fee:1 cost:5 b:2 wires:0 ok a:0 b:6 wires:1",
        ),
        (
            send("account", 1, "wires"),
            {"a": 4, "b": 2, "wires": 0},
            {"source": "a", "target": "b", "amount": 4},
            "a:4 fee:1 cost:5 error funds",
        ),
        (empty("account"), {"a": 5, "b": 2}, {"source": "a", "target": "b"}, "a:5 b:2 ok a:0 b:7"),
        (copy("order", ORDERS), STATE, {"source": "o2", "target": "o1"}, "o2:sent o1:paid ok o1:sent"),
        (copy("order", ORDERS), STATE, {"source": "courier", "target": "o1"}, "error type"),
        (least("share", ("a",)), {"a": 5, "cash": 3}, {"one": "a", "other": "cash"}, "error type"),
        (
            convert("wallet", "time", 2),
            {"wallet": 1, "time": 3},
            {},
            "wallet:1 time:3 amount:2 ok wallet:0 time:5",
        ),
        (
            transition_with("order", "sent", "delivered", *GIVES_BACK),
            STATE,
            {"target": "o2"},
            "o2:sent needs:sent courier:busy ok o2:delivered courier:free",
        ),
        (
            transition_with("order", "paid", "sent", *TAKES),
            STATE,
            {"target": "o1"},
            "o1:paid needs:paid courier:busy error busy",
        ),
    ],
)
def test_what_a_tool_answers(
    function: Any, state: dict[str, Value], arguments: dict[str, Value], response: str
) -> None:
    world = World(state)
    assert world.run(function, arguments).text == response
    if " error " in f" {response}":
        assert world.records == state
