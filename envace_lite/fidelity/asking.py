"""Asking a model for the responses it rehearses, and for what it would do next. Greedy, and never trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from envace_lite.fidelity.pairs import ProbePair
from envace_lite.model.decoding import complete
from envace_lite.model.language import Message, Schemas
from envace_lite.model.policy import Policy
from envace_lite.world import get_domain
from envace_lite.world.result import Rehearsed, Result
from envace_lite.world.tools import Exchange


@dataclass(frozen=True)
class Prompt:
    """A conversation in the standard form, the tools' JSON schemas, and who is to write the next message.

    `role` is `"act"`, or the name of the tool that the rehearse role is to play.
    """

    messages: Sequence[Message]
    tools: Schemas
    role: str = "act"


def write(model: Policy, prompts: Sequence[Prompt]) -> list[tuple[str, float]]:
    """The message that a model writes greedily after each prompt, with its log-probability."""
    prefixes = [model.chat.render(p.messages, p.tools, prompt=p.role) for p in prompts]
    return complete(model, prefixes, roles=[p.role for p in prompts])


def ask(model: Policy, pairs: Sequence[ProbePair]) -> list[Rehearsed]:
    """What the model's rehearse role answers to each call."""
    prompts = [Prompt(pair.messages, pair.task.tools, pair.call.name) for pair in pairs]
    written = zip(pairs, write(model, prompts), strict=True)
    return [Rehearsed(get_domain(pair.task.domain).read(text), log_p) for pair, (text, log_p) in written]


def rehearse(model: Policy, pairs: Sequence[ProbePair]) -> list[Result]:
    """The responses that the model's rehearse role writes to each call."""
    return [rehearsed.response for rehearsed in ask(model, pairs)]


def open_loop(model: Policy, pairs: Sequence[ProbePair]) -> tuple[list[ProbePair], list[Rehearsed]]:
    """The planned calls of each task once more, after the responses that the model itself has rehearsed before.

    On the probe's own histories (*teacher-forced*) every state is a real one. Here an early mistake stays in the
    conversation, as it does in a rollout.

    Returns:
        The planned pairs, by depth, with rehearsed histories; and what was rehearsed.
    """
    waiting = [pair for pair in pairs if pair.planned]
    told: dict[str, tuple[Exchange, ...]] = {}
    asked: list[ProbePair] = []
    rehearsed: list[Rehearsed] = []
    for depth in range(max((len(pair.history) for pair in waiting), default=-1) + 1):
        now = [replace(p, history=told.get(p.task.id, ())) for p in waiting if len(p.history) == depth]
        answers = ask(model, now)
        for pair, answer in zip(now, answers, strict=True):
            told[pair.task.id] = (*pair.history, (pair.call, answer.response))
        asked += now
        rehearsed += answers
    return asked, rehearsed


def same_decisions(model: Policy, pairs: Sequence[ProbePair], rehearsed: Sequence[Result]) -> list[bool]:
    """Whether the act role would write the same next message after the rehearsed response as after the real one.

    A response can differ in a word that decides nothing, or be right in all but the one word that decides (behaviour
    consistency: arXiv 2604.13824).
    """

    def after(pair: ProbePair, response: Result) -> Prompt:
        told: dict[str, Any] = {"role": "tool", "name": pair.call.name, "content": response.text}
        return Prompt([*pair.messages, told], pair.task.tools)

    differ = [i for i, (pair, mine) in enumerate(zip(pairs, rehearsed, strict=True)) if mine != pair.real]
    prompts = [after(pairs[i], response) for i in differ for response in (pairs[i].real, rehearsed[i])]
    texts = [text for text, _ in write(model, prompts)]
    same = {i: told == mine for i, told, mine in zip(differ, texts[::2], texts[1::2], strict=True)}
    return [same.get(i, True) for i in range(len(pairs))]
