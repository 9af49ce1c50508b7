"""An anchor for words: the rehearse role stays near what it was some steps ago.

The paper has no such term. The words of a response that no decision reads may wander, and take with them words that a
decision does read (`count_sent` tells `wires` instead of `count`). A fixed reference would pull the beliefs back with
the words; one that follows lets them change, a little at a time. Whether it is needed is another matter: in the
recorded runs the same schedule without it does as well (docs/results/training.md).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from envace_lite.experiments.gradients import add_gradients, with_response_tokens
from envace_lite.model.policy import Policy
from envace_lite.rollout import Trajectory


@dataclass
class SlowReference:
    """An extra loss: a KL term to the policy of some steps ago, on the tokens of the rehearse role alone.

    Of each token it takes `exp(d) - 1 - d` with `d = log ref - log p`, which is never negative and has the
    Kullback-Leibler divergence as its mean over sampled tokens. It keeps the reference of a run, so each run needs its
    own; a continued run takes its reference anew, which is the same one if checkpoints are written every `every` steps.

    Args:
        weight: of the mean over these tokens, beside the loss of a step.
        every: steps after which the reference is the policy as it stands.

    Raises:
        ValueError: a run is continued between two references.
    """

    weight: float
    every: int
    reference: Policy | None = field(default=None, repr=False)

    @property
    def identity(self) -> str:
        """What a run with it depends on."""
        return repr(self)

    def __call__(self, policy: Policy, step: int, trajectories: Sequence[Trajectory]) -> None:
        """Add the gradients of this term to those that the policy's parameters have."""
        if step % self.every == 0:
            # A copy: where all weights are trained, a folded policy is the policy itself.
            self.reference = Policy(copy.deepcopy(policy.folded().model), policy.chat)
        if self.reference is None:
            raise ValueError(
                f"the reference of step {step - step % self.every} is not there: checkpoints have to be written "
                f"every {self.every} steps (save_every)"
            )
        families, told = with_response_tokens(policy, trajectories)
        if not told.any():
            return
        before, _ = self.reference.log_probs(families)

        def divergence(log_p: Tensor, _: Tensor, where: Tensor) -> Tensor:
            d = (before[where] - log_p)[told[where]]
            return self.weight * (d.exp() - 1 - d).sum() / told.sum()

        add_gradients(policy, families, divergence)
