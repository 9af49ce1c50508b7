"""A scratchpad: messages that the act role writes and sets aside before one that counts.

They are act tokens like others, stay in sight until the episode ends, and are trained. A *scratchpad* policy was
trained so; *self-refinement* asks a policy that was not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from envace_lite.model.policy import Policy
from envace_lite.rehearsal.choice import Choice, messages_of, parsed
from envace_lite.rehearsal.controls import Control
from envace_lite.rehearsal.episode import Episode, Plain
from envace_lite.rollout import HORIZON, Execute, Rehearse, Responder

DRAFTS = 2
"""Messages of thinking before each one that counts."""


class Thinking(Responder):
    """A responder that lets `drafts` messages be set aside before each one that counts."""

    drafts = DRAFTS

    @property
    def identity(self) -> str:
        """What a run with it depends on."""
        return f"{self.drafts} drafts"

    def aside(self, number: int) -> bool:
        """All but every third message, with two drafts."""
        return number % (self.drafts + 1) != 0


class ThinkingRehearse(Thinking, Rehearse):
    """World rehearsal with a scratchpad."""

    def __init__(self, drafts: int = DRAFTS, *, horizon: int = HORIZON):
        super().__init__(horizon=horizon)
        self.drafts = drafts


class ThinkingExecute(Thinking, Execute):
    """The real environment, for a policy with a scratchpad."""

    def __init__(self, drafts: int = DRAFTS):
        super().__init__()
        self.drafts = drafts


class Scratchpad(Plain):
    """Plain execution with a scratchpad before each call, by a policy that was trained with `ThinkingRehearse`.

    Args:
        policy: trained so.
        drafts: messages of thinking before each one that counts, as in training.
        temperature, seed: as for `Plain`.
    """

    def __init__(self, policy: Policy, drafts: int = DRAFTS, *, temperature: float = 1.0, seed: int = 0):
        super().__init__(policy, temperature=temperature, seed=seed)
        self.drafts = drafts

    def responder(self) -> Execute:
        """The real environment, which does not answer what is set aside."""
        return ThinkingExecute(self.drafts)


class Refine(Control):
    """Self-refinement without a rehearsed response: the latest version that is a message is committed.

    Nobody trained the compact policy to look at its own candidate; `Scratchpad` is the trained form of the same.
    """

    def decide(self, episodes: Sequence[Episode], generator: torch.Generator) -> list[Choice]:
        """Write, look, and write again, as often as the token budget lets."""
        language, choices = self.policy.chat, []
        situations = [episode.situation() for episode in episodes]
        responder = ThinkingRehearse(self.most, horizon=0)
        for drawn in self.draw(situations, responder, 1, generator, max_tokens=self.budget):
            choices.append(Choice())
            choices[-1].add(drawn, memory=0)
        for choice in choices:
            task, versions = choice.drawn[0].task, messages_of(choice.drawn[0], language)
            place = max((i for i, made in enumerate(versions) if parsed(made, task, language)), default=0)
            choice.settle(language, 0, {0: f"version {place + 1}"}, place)
        return choices
