"""Conversation <-> token ids and role ids."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envace_lite.model.compact import Compact, build_tokenizer, vocabulary
from envace_lite.model.language import ACT, GIVEN, REHEARSE, VocabularyError
from envace_lite.model.policy import CONTEXT
from envace_lite.pretraining.traces import RECIPES, Retelling, draw_script_for_trace
from envace_lite.rollout import HORIZON
from envace_lite.world import DOMAINS, Domain
from envace_lite.world.request import as_messages, play
from envace_lite.world.tools import ToolCall
from helpers import CHAT, EVERY_DOMAIN, conversation, some_tasks

ORDERS = DOMAINS["orders"].tools
every_domain = pytest.mark.parametrize("domain", EVERY_DOMAIN, ids=lambda domain: domain.name)


def called(*calls: ToolCall) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [call.to_message() for call in calls]}


MESSAGES = [
    {"role": "system", "content": "orders o1:pending o3:sent"},
    {"role": "user", "content": "cancel_order o1 report o1"},
    called(ToolCall("cancel_order", {"target": "o1"})),
    {"role": "tool", "name": "cancel_order", "content": "o1:pending ok o1:cancelled"},
    {"role": "assistant", "content": "cancelled"},
    {"role": "user", "content": "cancel_order o3 report o3"},
    called(ToolCall("cancel_order", {"target": "o3"}), ToolCall("get_order", {"target": "o3"})),
    {"role": "tool", "name": "cancel_order", "content": "o3:sent error status"},
    {"role": "tool", "name": "get_order", "content": "o3:sent ok"},
    {"role": "assistant", "content": "sent"},
]
SCHEMAS = [ORDERS["cancel_order"].schema, ORDERS["get_order"].schema]
RENDERED = """
<system> orders o1:pending o3:sent <end>
<def> cancel_order order needs:pending gives:cancelled
<def> get_order order shown
<user> cancel_order o1 report o1 <end>
<assistant> cancel_order o1 <end>
<tool> cancel_order o1:pending ok o1:cancelled <end>
<assistant> say cancelled <end>
<user> cancel_order o3 report o3 <end>
<assistant> cancel_order o3 and get_order o3 <end>
<tool> cancel_order o3:sent error status <end>
<tool> get_order o3:sent ok <end>
<assistant> say sent <end>
"""
ROLES = """
0 0 0 0 0
0 0 0 0 0
0 0 0 0
0 0 0 0 0 0
0 1 1 1
0 0 2 2 2 2
0 1 1 1
0 0 0 0 0 0
0 1 1 1 1 1 1
0 0 2 2 2 2
0 0 2 2 2
0 1 1 1
"""


def test_a_known_conversation() -> None:
    ids = CHAT.render(MESSAGES, SCHEMAS)
    assert CHAT.decode(ids) == " ".join(RENDERED.split())
    assert CHAT.role_ids(ids) == [int(role) for role in ROLES.split()]


def test_generation_prompts() -> None:
    assert CHAT.decode(CHAT.render(MESSAGES[:2], SCHEMAS, prompt="act")).endswith(
        "report o1 <end> <assistant>"
    )
    rehearse = CHAT.render(MESSAGES[:3], SCHEMAS, prompt="cancel_order")
    assert CHAT.decode(rehearse).endswith("<assistant> cancel_order o1 <end> <tool> cancel_order")


def test_the_tokenizer_works_as_usual() -> None:
    ids = CHAT.tokenizer.apply_chat_template(MESSAGES, tools=SCHEMAS, return_dict=False)
    assert list(ids) == CHAT.render(MESSAGES, SCHEMAS)
    assert CHAT.tokenizer.encode("say cancelled <end>") == CHAT.encode("say cancelled <end>")


def test_pad_is_not_the_ending() -> None:
    assert CHAT.pad != CHAT.end
    assert CHAT.tokenizer.pad_token_id == CHAT.pad
    assert CHAT.tokenizer.eos_token_id == CHAT.end


def trace(seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Messages and schemas of a random trace."""
    rng = Random(seed)
    script = draw_script_for_trace(rng.choice(EVERY_DOMAIN), RECIPES["habits"], rng)
    world = Retelling(script.state, RECIPES["habits"], rng, script.domain)
    episode = play(script, world, RECIPES["habits"].slips, rng)
    return as_messages(script, episode), [tool.schema for tool in script.toolbox]


SEEDS = st.integers(0, 10**6)


@given(SEEDS)
def test_a_conversation_is_a_prefix_of_a_longer_one(seed: int) -> None:
    messages, schemas = trace(seed)
    whole = CHAT.render(messages, schemas)
    for length in range(2, len(messages)):
        following = messages[length]
        header = {"assistant": "act", "tool": following.get("name"), "user": None}[following["role"]]
        part = CHAT.render(messages[:length], schemas, prompt=header)
        assert whole[: len(part)] == part
        assert part.count(CHAT.end) == length
        if header:
            assert CHAT.role_ids(whole)[len(part) - 1 : len(part) + 1] == [
                GIVEN,
                ACT if header == "act" else REHEARSE,
            ]


@given(SEEDS)
def test_role_ids(seed: int) -> None:
    """Each id has one, headers are given, and the ending of each message of a role is in the loss."""
    messages, schemas = trace(seed)
    ids = CHAT.render(messages, schemas)
    roles = CHAT.role_ids(ids)
    assert len(roles) == len(ids)
    counts = {"assistant": ACT, "tool": REHEARSE, "user": GIVEN, "system": GIVEN}
    endings = [role for token, role in zip(ids, roles, strict=True) if token == CHAT.end]
    assert endings == [counts[message["role"]] for message in messages]
    words = sum(len(m["content"].split()) + 1 for m in messages if m["role"] == "tool")
    assert roles.count(REHEARSE) == words
    headers = {CHAT.assistant, CHAT.tool, CHAT.user}
    assert all(role == GIVEN for token, role in zip(ids, roles, strict=True) if token in headers)


def test_unknown_words_are_named() -> None:
    with pytest.raises(VocabularyError, match=r"vocabulary: aubergine, zucchini"):
        CHAT.encode("say zucchini aubergine say zucchini")
    messages = [*MESSAGES[:1], {"role": "user", "content": "cancel_order o99 report o1"}]
    with pytest.raises(VocabularyError, match="o99"):
        CHAT.render(messages, SCHEMAS)


def test_a_foreign_tokenizer_is_refused() -> None:
    with pytest.raises(VocabularyError, match="<tool>"):
        Compact(
            build_tokenizer(["<pad>", "<unk>", "<system>", "<def>", "<user>", "<assistant>", "<end>", "say"])
        )


def test_the_vocabulary_holds_each_word_once() -> None:
    words = vocabulary()
    assert len(words) == len(set(words)) == len(CHAT.words)
    assert not any(" " in word for word in words)
    assert len(words) < 1500


@every_domain
def test_every_task_can_be_written_down_and_fits(domain: Domain) -> None:
    """Prompt, real responses and answers are in the vocabulary; and an episode that solves the task is possible."""
    for task in some_tasks(domain, 500):
        messages = conversation(task)
        ids = CHAT.render(messages, task.tools)
        assert len(ids) < CONTEXT
        assert sum(message["role"] == "tool" for message in messages) < HORIZON
        written = CHAT.decode(ids[len(CHAT.render(task.messages, task.tools)) :])
        assert max(len(message.split()) for message in written.split("<end>")) < Compact.longest_message


def test_traces_fit() -> None:
    for seed in range(200):
        assert len(CHAT.render(*trace(seed))) < CONTEXT


def test_a_chat_can_rename_its_words() -> None:
    renamed = CHAT.renamed({"o1": "bike", "pending": "dirty", "cancel_order": "repair"})
    assert renamed.encode("repair bike bike:dirty needs:dirty") == CHAT.encode(
        "cancel_order o1 o1:pending needs:pending"
    )
    assert renamed.decode(CHAT.encode("o1:pending o2:pending")) == "bike:dirty o2:dirty"
    assert len(renamed.words) == len(CHAT.words)
    with pytest.raises(VocabularyError, match="o1"):
        renamed.encode("o1")
    assert CHAT.encode("o1")


@pytest.mark.parametrize(
    ("names", "problem"), [({"nowhere": "bike"}, "no nowhere"), ({"o1": "o2"}, "twice: found:o2, o2")]
)
def test_names_that_do_not_fit_are_named(names: dict[str, str], problem: str) -> None:
    with pytest.raises(VocabularyError, match=problem):
        CHAT.renamed(names)
