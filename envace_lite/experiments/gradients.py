"""What extra losses are made of: the tokens of responses, and gradients that add to those of the rollouts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from envace_lite.model.language import REHEARSE
from envace_lite.model.policy import Family, Objective, Policy
from envace_lite.rollout import Trajectory


def with_response_tokens(policy: Policy, trajectories: Sequence[Trajectory]) -> tuple[list[Family], Tensor]:
    """Trajectories as families, and which of their tokens belong to a response, (N,) in the order of the families."""
    groups: dict[tuple[int, ...], list[Sequence[int]]] = {}
    for trajectory in trajectories:
        groups.setdefault(tuple(trajectory.prompt), []).append(trajectory.ids)
    families = [Family(prompt, group) for prompt, group in groups.items()]
    told = [
        role == REHEARSE
        for prompt, group in groups.items()
        for ids in group
        for role in policy.chat.role_ids([*prompt, *ids])[len(prompt) :]
    ]
    return families, torch.tensor(told)


def add_gradients(policy: Policy, families: Sequence[Family], objective: Objective) -> None:
    """Add the gradients of an objective to those that the parameters have: `Policy.backward` alone would set them."""
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    before = [p.grad for p in parameters]
    policy.backward(families, objective)
    for parameter, grad in zip(parameters, before, strict=True):
        if grad is not None and parameter.grad is not None:
            parameter.grad += grad
