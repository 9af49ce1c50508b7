"""Real responses whose likelihood is part of the loss: a departure from the paper, which uses task success alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from torch import Tensor

from envace_lite.experiments.gradients import add_gradients, with_response_tokens
from envace_lite.model.policy import Family, Policy
from envace_lite.rollout import Trajectory


@dataclass(frozen=True)
class Grounding:
    """An extra loss for `train`: a few real responses are imitated beside world rehearsal.

    Args:
        examples: each the tokens up to the header of a response, with the tokens of the real one.
        weight: of their mean negative log-probability, beside the loss of a step.
        per_step: so many are drawn for each step.
        seed: of these draws.
    """

    examples: Sequence[tuple[Sequence[int], Sequence[int]]]
    weight: float = 0.1
    per_step: int = 8
    seed: int = 0

    @property
    def identity(self) -> str:
        """What a run with it depends on."""
        return repr(self)

    def draw(self, step: int) -> list[Family]:
        """The examples of a step."""
        rng = Random(f"{self.seed}/{step}/grounding")
        chosen = rng.sample(list(self.examples), min(self.per_step, len(self.examples)))
        return [Family(prompt, [response]) for prompt, response in chosen]

    def __call__(self, policy: Policy, step: int, _: object) -> None:
        """Add the gradients of the examples of a step to those that the policy's parameters have."""
        families = self.draw(step)
        tokens = sum(len(response) for family in families for response in family.completions)

        def imitation(log_p: Tensor, *_: Tensor) -> Tensor:
            return -self.weight * log_p.sum() / tokens

        add_gradients(policy, families, imitation)


@dataclass(frozen=True)
class RealResponses:
    """An extra loss: the real responses that the environment has given in the rollouts of this step are imitated.

    Args:
        weight: of their mean negative log-probability, beside the loss of a step.
    """

    weight: float

    @property
    def identity(self) -> str:
        """What a run with it depends on."""
        return repr(self)

    def __call__(self, policy: Policy, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Add the gradients of these responses to those that the policy's parameters have."""
        families, told = with_response_tokens(policy, trajectories)
        if not told.any():
            return

        def imitation(log_p: Tensor, _: Tensor, where: Tensor) -> Tensor:
            return -self.weight * log_p[told[where]].sum() / told.sum()

        add_gradients(policy, families, imitation)
