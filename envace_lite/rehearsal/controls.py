"""Controls: the same tokens, spent without a rehearsed response.

Whether imagining helps can only be said beside other uses of what it costs. Each control takes a token budget: the
most tokens before one committed message, beyond one reading of the conversation. All read and written tokens count,
discarded ones too. With a token budget of 0 each of them is plain execution, bit for bit.

What is simplified: candidates are written side by side, and those that the budget would not have paid for are dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from envace_lite.model.policy import Policy
from envace_lite.rehearsal.choice import Choice, messages_of
from envace_lite.rehearsal.episode import Deliberation, Episode
from envace_lite.rollout import Rehearse, Trajectory
from envace_lite.world.verifier import BROKEN, request_status

CALL = 3
"""Tokens of a short call; so many tokens of the budget buy one more candidate."""


class Control(Deliberation):
    """A way of spending a token budget; the other arguments are those of `Plain`."""

    def __init__(self, policy: Policy, token_budget: int, *, temperature: float = 1.0, seed: int = 0):
        super().__init__(policy, temperature=temperature, seed=seed)
        self.budget = token_budget

    @property
    def most(self) -> int:
        """The most messages that the token budget can buy."""
        return max(self.budget // CALL, 1)


class SelfConsistency(Control):
    """Best of N: many candidates without a response, and the majority's is committed; the earlier one in a tie.

    Args:
        verified: whether the verifier reads each candidate, and those that it calls broken have no vote. It knows the
            real responses so far and no rehearsed one: what a verifier is worth without imagination.
    """

    def __init__(self, policy: Policy, token_budget: int, *, verified: bool = False, **options: Any):
        super().__init__(policy, token_budget, **options)
        self.verified = verified

    def decide(self, episodes: Sequence[Episode], generator: torch.Generator) -> list[Choice]:
        """Draw, and count."""
        language, choices = self.policy.chat, []
        situations = [episode.situation() for episode in episodes]
        for drawn in self.draw(situations, Rehearse(horizon=0), self.most, generator):
            choice = Choice()
            choice.add(self.affordable(drawn), memory=0)
            texts = [next((m.text for m in messages_of(t, language)), "") for t in choice.drawn]
            votes = Counter(
                text
                for text, t in zip(texts, choice.drawn, strict=True)
                if t.said and not (self.verified and request_status(t.task, t.said) == BROKEN)
            )
            best = texts.index(max(votes, key=votes.__getitem__)) if votes else 0
            reasons = {i: f"{votes[text]} of {votes.total()} votes" for i, text in enumerate(texts)}
            choice.settle(language, best, reasons)
            choices.append(choice)
        return choices

    def affordable(self, drawn: Sequence[Trajectory]) -> list[Trajectory]:
        """What the token budget pays for when candidates are written one after another; the first in any case.

        They are drawn side by side because the engine does so. To stop all of them when the tokens are used up would
        leave the short ones alone to vote.
        """
        spent = accumulate(len(trajectory.ids) for trajectory in drawn)
        return list(drawn[: max(1, sum(tokens <= self.budget for tokens in spent))])
