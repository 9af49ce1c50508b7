"""Role-wise GRPO: advantages and loss, and nothing else.

What is simplified against the paper (and its code, built on verl): one update on each batch of rollouts by default, no
reference model, no division by the standard deviation (as in the published configuration).

A group is several rollouts of one task. Each role has its own baseline, taken over that role's *outputs*: a rollout
with six calls counts six times in the baseline of the act role. With equal numbers of outputs it is plain GRPO.
"""

from __future__ import annotations

import torch
from torch import Tensor


def role_baseline(rewards: Tensor, outputs: Tensor) -> Tensor:
    """Baseline of one role in each group: mu = sum_j n_j R_j / sum_j n_j (EnvACE, role-wise GRPO).

    Args:
        rewards: (P, G), one row a group.
        outputs: (P, G), the number of messages that the role wrote in each rollout.

    Returns:
        (P, 1); the plain mean where the role wrote nothing at all.
    """
    # `clamp` only keeps the division quiet where the role wrote nothing; `where` then takes the other value.
    total = outputs.sum(-1, keepdim=True)
    weighted = (outputs * rewards).sum(-1, keepdim=True) / total.clamp(min=1)
    return torch.where(total > 0, weighted, rewards.mean(-1, keepdim=True))


def role_advantages(rewards: Tensor, outputs: Tensor) -> Tensor:
    """Advantage A = R - mu of one role's tokens in each rollout; both arguments and the result are (P, G)."""
    return rewards - role_baseline(rewards, outputs)


def clipped_loss(log_p: Tensor, old_log_p: Tensor, advantages: Tensor, clip: float = 0.2) -> Tensor:
    """The clipped policy-gradient objective of each token (PPO, eq. 7), to be averaged over all trained tokens.

    Args:
        log_p, old_log_p, advantages: (N,), for each trained token.
        clip: how far the ratio may leave 1 before the gradient stops.
    """
    # The worse of the two: a token gains nothing by moving further than the clip, but may always come back.
    ratio = (log_p - old_log_p).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
