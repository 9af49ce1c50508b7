"""The user's language: what is written is read back, and the tasks are written in nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envace_lite.world import Domain
from envace_lite.world.language import WORDS, Instruction, Request, forbidden_tool, situation
from helpers import EVERY_DOMAIN, splits

NAMES = st.sampled_from("cancel_order o1 cash:3 apr 7 lamp".split())
SENTENCES = st.lists(NAMES, min_size=1, max_size=4).map(" ".join)
STEPS = st.builds(Instruction, SENTENCES, st.one_of(st.just(""), SENTENCES), st.booleans())
REQUESTS = st.one_of(
    st.builds(
        lambda report, first, rest: Request(report, (Instruction(*first), *rest)),
        NAMES,
        st.tuples(SENTENCES, st.one_of(st.just(""), SENTENCES)),
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
    ],
)
def test_examples(text: str, request_: Request) -> None:
    assert Request.read(text) == request_
    assert request_.text == text


@pytest.mark.parametrize("domain", EVERY_DOMAIN, ids=lambda domain: domain.name)
def test_every_shipped_request_is_of_this_language(domain: Domain) -> None:
    """It is read and written again word for word, and calls and records hold none of the language's own words."""
    for task in [task for tasks in splits(domain.name).values() for task in tasks]:
        for text in (task.messages[-1]["content"], *task.later_turns):
            request = Request.read(text)
            assert request.text == text
            parts = [request.report, request.keep, request.goal, *request.options]
            parts += [words for step in request.steps for words in (step.call, step.otherwise)]
            assert not set(" ".join(parts).split()) & set(WORDS), text


def test_a_situation_and_what_it_forbids() -> None:
    text = situation("retail", ["o1:paid", "o2:sent"], "pack_order")
    assert text == "retail o1:paid o2:sent policy never pack_order"
    assert forbidden_tool(text) == "pack_order"
    assert situation("retail", ["o1:paid"]) == "retail o1:paid"
    assert forbidden_tool("retail o1:paid") == ""
