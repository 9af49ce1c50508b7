"""The user's language: what is written is read back, and the tasks are written in nothing else."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envace_lite.world import Domain
from envace_lite.world.phrases import (
    DEPENDING,
    FOUND,
    WORDS,
    Instruction,
    Request,
    forbidden_tool,
    situation,
)
from envace_lite.world.tools import RULES, Value
from helpers import EVERY_DOMAIN, splits

NAMES = st.sampled_from("cancel_order o1 cash:3 apr 7 lamp found".split())
SENTENCES = st.lists(NAMES, min_size=1, max_size=4).map(" ".join)
STEPS = st.builds(
    Instruction,
    SENTENCES,
    otherwise=st.one_of(st.just(""), SENTENCES),
    together=st.booleans(),
    condition=st.sampled_from(["", "weather:rain", "least count:2"]),
    rule=st.sampled_from(["", *RULES]),
).map(lambda step: step if step.otherwise else replace(step, rule=""))
REQUESTS = st.one_of(
    st.builds(
        lambda report, first, rest: Request(report, (replace(first, together=False), *rest)),
        NAMES,
        STEPS,
        st.lists(STEPS, max_size=3),
    ),
    st.builds(
        lambda report, options, keep: Request(report, options=tuple(options), keep=keep),
        NAMES,
        st.lists(SENTENCES, min_size=1, max_size=3),
        st.one_of(st.just(""), st.just("cash:3")),
    ),
    st.builds(lambda report: Request(report, goal="o4:returned"), NAMES),
)


@given(REQUESTS)
def test_what_is_written_is_read_back(request: Request) -> None:
    assert Request.read(request.text) == request


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        (
            "pack_order o1 else void_order o2 then send_order o1 report o1",
            Request("o1", (Instruction("pack_order o1", "void_order o2"), Instruction("send_order o1"))),
        ),
        (
            "set_alarm 7 and turn_on lamp report alarm",
            Request("alarm", (Instruction("set_alarm 7"), Instruction("turn_on lamp", together=True))),
        ),
        (
            "choose market.buy abc or bank.withdraw cash 2 keep cash:3 report cash",
            Request("cash", options=("market.buy abc", "bank.withdraw cash 2"), keep="cash:3"),
        ),
        ("reach o4:returned report o4", Request("o4", goal="o4:returned")),
        (
            "find_order paid then pack_order found else status recall_order o2 report found",
            Request(
                "found",
                (
                    Instruction("find_order paid"),
                    Instruction("pack_order found", "recall_order o2", rule="status"),
                ),
            ),
        ),
        (
            "count_orders sent then if least count:2 pack_order o1 else pack_order o2 report count",
            Request(
                "count",
                (
                    Instruction("count_orders sent"),
                    Instruction("pack_order o1", "pack_order o2", condition="least count:2"),
                ),
            ),
        ),
        (
            "get_weather then if weather:rain turn_off fan report fan",
            Request(
                "fan", (Instruction("get_weather"), Instruction("turn_off fan", condition="weather:rain"))
            ),
        ),
    ],
)
def test_examples(text: str, request_: Request) -> None:
    assert Request.read(text) == request_
    assert request_.text == text


@pytest.mark.parametrize(
    ("condition", "told", "holds"),
    [
        ("", {}, True),
        ("weather:rain", {"weather": "rain"}, True),
        ("weather:rain", {"weather": "sun"}, False),
        ("weather:rain", {}, False),
        ("least count:2", {"count": 2}, True),
        ("least count:2", {"count": 1}, False),
        ("least total:10", {"total": 9}, False),  # numbers, not words
        ("least count:2", {}, False),
        ("least count:2", {"count": "o1"}, False),
    ],
)
def test_a_condition_holds_by_what_was_told(condition: str, told: dict[str, Value], holds: bool) -> None:
    assert Instruction("x", condition=condition).holds(told) == holds


@pytest.mark.parametrize("domain", EVERY_DOMAIN, ids=lambda domain: domain.name)
def test_every_shipped_request_is_of_this_language(domain: Domain) -> None:
    """It is read and written again word for word, and calls and records hold none of the language's own words."""
    for task in [task for tasks in splits(domain.name).values() for task in tasks]:
        for text in (task.messages[-1]["content"], *task.later_turns):
            request = Request.read(text)
            assert request.text == text
            parts = [request.report, request.keep, request.goal, *request.options]
            parts += [words for step in request.steps for words in (step.call, step.otherwise)]
            own = {*WORDS, *DEPENDING} - {FOUND}  # the one word that stands in a call, for a name
            assert not set(" ".join(parts).split()) & own, text
            for step in request.steps:
                assert not step.condition or re.fullmatch(r"(least )?[a-z]+:[a-z0-9]+", step.condition), text


def test_a_situation_and_what_it_forbids() -> None:
    text = situation("orders", ["o1:paid", "o2:sent"], "pack_order")
    assert text == "orders o1:paid o2:sent policy never pack_order"
    assert forbidden_tool(text) == "pack_order"
    assert situation("orders", ["o1:paid"]) == "orders o1:paid"
    assert forbidden_tool("orders o1:paid") == ""
