"""Controls that a sceptic asks for: what a constant, a scalar or a choice among samples would have given.

None of them learns anything from tasks. A scalar makes every error more or less likely while nothing else changes; it
is chosen on pairs of training tasks. The oracle picks among samples with the real response in hand, so it bounds what
selection alone could give.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch

from envace_lite.fidelity import ProbePair, rehearse
from envace_lite.model.policy import Policy
from envace_lite.world.tools import UNKNOWN

GRID = (-6.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 6.0)
"""The scalars that are tried."""


def with_bias(policy: Policy, bias: float) -> Policy:
    """The policy with a constant added to the logits of `error` and of every record that is told as `unknown`.

    Only responses hold these words, so the act role is untouched.
    """
    plain = policy.folded()
    model = copy.deepcopy(plain.model)
    words = torch.tensor([word == "error" or word.endswith(f":{UNKNOWN}") for word in policy.chat.words])
    head = torch.nn.Linear(model.config.hidden_size, len(policy.chat.words))
    head.weight, head.bias = model.lm_head.weight, torch.nn.Parameter(bias * words.float(), False)
    model.lm_head = head
    return Policy(model, policy.chat)


def best_scalar(policy: Policy, pairs: Sequence[ProbePair]) -> float:
    """The scalar of `GRID` with the highest fidelity on some pairs."""
    found = {bias: fidelity(with_bias(policy, bias), pairs) for bias in GRID}
    return max(GRID, key=lambda bias: (found[bias], -abs(bias)))


def fidelity(policy: Policy, pairs: Sequence[ProbePair]) -> float:
    """Share of the rehearsed responses that equal the real one."""
    return sum(mine == pair.real for mine, pair in zip(rehearse(policy, pairs), pairs, strict=True)) / len(
        pairs
    )
