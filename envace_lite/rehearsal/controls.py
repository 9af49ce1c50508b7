"""Controls: the same tokens, spent without a rehearsed response.

Whether imagining helps can only be said beside other uses of what it costs. Each control takes an allowance: the most
tokens before one committed message, beyond one reading of the conversation. All read and written tokens count,
discarded ones too. With an allowance of 0 each of them is plain execution, bit for bit.

    Vote        many candidates, and the call that most of them are; with `judged`, of those that pass the judge
    Refine      a candidate is shown again and written anew, as often as the allowance lets
    Scratch     free thinking before each call; for a policy that was trained with it

What is simplified: nobody trained the compact policy to look at its own candidate, so `Refine` meets a policy that is
not used to it; `Scratch` is the trained form of the same. Its thinking has a fixed number of messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from envace_lite.model.policy import Policy
from envace_lite.rehearsal.choice import Choice, messages_of, parsed
from envace_lite.rehearsal.episode import Deliberation, Episode, Plain
from envace_lite.rollout import Rehearse, Trajectory
from envace_lite.world.verifier import BROKEN, judge

DRAFTS = 2
"""Messages of free thinking before each one that counts."""
CALL = 3
"""Tokens of a short call; an allowance of so many tokens buys one more candidate."""


class Control(Deliberation):
    """A way of spending an allowance.

    Args:
        policy: acts.
        allowance: most tokens before one message, beyond one reading of the conversation.
        temperature, seed: as for `Plain`.
    """

    def __init__(self, policy: Policy, allowance: int, *, temperature: float = 1.0, seed: int = 0):
        super().__init__(policy, temperature=temperature, seed=seed)
        self.budget = allowance

    @property
    def most(self) -> int:
        """The most messages that the allowance can buy."""
        return max(self.budget // CALL, 1)


class Vote(Control):
    """Best of N: many candidates without a response, and the majority's is committed; the earlier one in a tie.

    Args:
        judged: whether the judge reads each candidate, and those that it calls broken have no vote. It knows the real
            responses so far and no rehearsed one: what a judge is worth without imagination.
        policy, allowance, temperature, seed: as for `Control`.
    """

    def __init__(self, policy: Policy, allowance: int, *, judged: bool = False, **options: Any):
        super().__init__(policy, allowance, **options)
        self.judged = judged

    def decide(self, episodes: Sequence[Episode], generator: torch.Generator) -> list[Choice]:
        """Draw, and count."""
        chat, choices = self.policy.chat, []
        situations = [episode.situation() for episode in episodes]
        for drawn in self.draw(situations, Rehearse(horizon=0), self.most, generator):
            choices.append(Choice())
            choices[-1].add(self.affordable(drawn), memory=0)
        for choice in choices:
            texts = [next((text for _, text in messages_of(t, chat)), "") for t in choice.drawn]
            votes = Counter(
                text
                for text, t in zip(texts, choice.drawn, strict=True)
                if t.said and not (self.judged and judge(t.task, t.said) == BROKEN)
            )
            best = texts.index(max(votes, key=votes.__getitem__)) if votes else 0
            verdicts = {i: f"{votes[text]} of {votes.total()} votes" for i, text in enumerate(texts)}
            choice.settle(chat, best, verdicts)
        return choices

    def affordable(self, drawn: Sequence[Trajectory]) -> list[Trajectory]:
        """What the allowance pays for when candidates are written one after another; the first in any case.

        They are drawn side by side because the engine does so. To stop all of them when the tokens are used up would
        leave the short ones alone to vote.
        """
        kept, left = list(drawn[:1]), self.budget - len(drawn[0].ids)
        for trajectory in drawn[1:]:
            left -= len(trajectory.ids)
            if left < 0:
                break
            kept.append(trajectory)
        return kept


class Refine(Control):
    """Self-refinement without a rehearsed response: the latest version that is a message is committed."""

    def decide(self, episodes: Sequence[Episode], generator: torch.Generator) -> list[Choice]:
        """Write, look, and write again."""
        chat, choices = self.policy.chat, []
        situations = [episode.situation() for episode in episodes]
        responder, allowance = Rehearse(horizon=0, drafts=self.most), [self.budget] * len(episodes)
        for drawn in self.draw(situations, responder, 1, generator, allowance):
            choices.append(Choice())
            choices[-1].add(drawn, memory=0)
        for choice in choices:
            texts = [text for _, text in messages_of(choice.drawn[0], chat)]
            task = choice.drawn[0].task
            place = max((i for i, text in enumerate(texts) if parsed(text, task) is not None), default=0)
            choice.settle(chat, 0, {0: f"version {place + 1}"}, place)
        return choices


class Scratch(Plain):
    """Free thinking before each call, by a policy that was trained with the responder `Rehearse(drafts=...)`.

    Args:
        policy: trained so.
        drafts: messages of thinking before each one that counts, as in training.
        temperature, seed: as for `Plain`.
    """

    def __init__(self, policy: Policy, drafts: int = DRAFTS, *, temperature: float = 1.0, seed: int = 0):
        super().__init__(policy, drafts=drafts, temperature=temperature, seed=seed)
