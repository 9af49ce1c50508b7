"""Scorers: which of several imagined continuations of one conversation looks best.

A scorer is a plain function from the continuations to a number each; the highest is chosen, the earlier one in a tie.
It sees no environment and no label.

What is simplified against the paper, whose policy writes its verdict in words: the compact language has no words for a
verdict. `VerdictHead` is a small one on the policy's own last hidden state, trained by nothing but task success.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, groupby
from operator import attrgetter

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from envace_lite.attention import Branches
from envace_lite.chat import GIVEN
from envace_lite.domains import Task
from envace_lite.policy import Family, Policy
from envace_lite.reward import believed_writes, task_success
from envace_lite.rollout import Trajectory, rollout

Scorer = Callable[[Sequence[Trajectory]], Sequence[float]]


def agreement(continuations: Sequence[Trajectory]) -> list[float]:
    """Share of the continuations that imagine the same outcome: the same believed writes, the same answers.

    One that breaks off has no outcome and gets 0.
    """
    outcomes = [
        (believed_writes(t), tuple(t.answers)) if t.ending in ("answer", "horizon") else None
        for t in continuations
    ]
    counts = Counter(outcomes)
    return [counts[outcome] / len(outcomes) if outcome is not None else 0.0 for outcome in outcomes]


def likelihood(continuations: Sequence[Trajectory]) -> list[float]:
    """Mean log-probability of the tokens that the policy wrote."""
    return [sum(t.log_probs) / max(len(t.roles) - t.roles.count(GIVEN), 1) for t in continuations]


def no_errors(continuations: Sequence[Trajectory]) -> list[float]:
    """Minus the number of imagined errors; breaking off counts as one."""
    return [
        -float(
            sum(response.error is not None for _, response in t.exchanges)
            + (t.ending not in ("answer", "horizon"))
        )
        for t in continuations
    ]


SCORERS: dict[str, Scorer] = {"agreement": agreement, "likelihood": likelihood, "no_errors": no_errors}
"""The scorers that need no training."""


class VerdictHead:
    """The policy's own judgement of a continuation: the probability of task success, read off its last hidden state.

    The hidden state is there when the last token is written, so a verdict costs no token. (Here it is computed again,
    since the rollout engine does not keep it.)

    Args:
        policy: whose states are read.
        mean, scale: of the states, (width,) each.
        weight: (width + 1,); the last one is the bias.
    """

    __name__ = "verdict"

    def __init__(self, policy: Policy, mean: Tensor, scale: Tensor, weight: Tensor):
        self.policy, self.mean, self.scale, self.weight = policy, mean, scale, weight

    def __call__(self, continuations: Sequence[Trajectory]) -> list[float]:
        """Probabilities of success."""
        families = [
            Family(prompt, [t.ids for t in same])
            for prompt, same in groupby(continuations, attrgetter("prompt"))
        ]
        ends = [torch.tensor([*accumulate(map(len, family.completions))]) - 1 for family in families]
        last = [states[end] for states, end in zip(hidden_states(self.policy, families), ends, strict=True)]
        logits = ((torch.cat(last) - self.mean) / self.scale) @ self.weight[:-1] + self.weight[-1]
        return [float(value) for value in logits.sigmoid()]


@torch.inference_mode()
def hidden_states(policy: Policy, families: Iterable[Family]) -> list[Tensor]:
    """For each family the last hidden states of the tokens of its completions, (C, width)."""
    states = []
    with policy.sampler() as model:
        for family in families:
            branches = Branches([(len(family.prompt), [*map(len, family.completions)])])
            ids = torch.tensor([token for row in (family.prompt, *family.completions) for token in row])
            read = model.model(
                ids[None], branches.mask, branches.places[None], use_cache=False, branches=branches
            )
            states.append(read.last_hidden_state[0, branches.own])
    return states


def fit_verdict(
    policy: Policy, tasks: Sequence[Task], *, group_size: int = 4, weight_decay: float = 1e-2, seed: int = 0
) -> VerdictHead:
    """Train a verdict head on the policy's own rollouts and their task success. No environment is opened.

    Each message that the policy ends is one example, so that continuations of any depth can be judged.

    Args:
        tasks: training tasks.
        group_size: rollouts of each.
        weight_decay: of the logistic regression.
        seed: of the rollouts.
    """
    generator = torch.Generator().manual_seed(seed)
    trajectories = rollout(policy, tasks, group_size=group_size, generator=generator)
    groups = [trajectories[i : i + group_size] for i in range(0, len(trajectories), group_size)]
    states = hidden_states(policy, (Family(group[0].prompt, [t.ids for t in group]) for group in groups))
    ended = torch.tensor([token == policy.chat.end for t in trajectories for token in t.ids])
    success = torch.tensor([task_success(t) for t in trajectories for _ in t.ids])[ended]
    examples = torch.cat(states)[ended].clone()  # a tensor of the inference mode has no gradients
    mean, scale = examples.mean(0), examples.std(0) + 1e-6
    features = torch.cat([(examples - mean) / scale, torch.ones(len(examples), 1)], 1)
    weight = torch.zeros(features.shape[1], requires_grad=True)
    optimizer = torch.optim.LBFGS([weight], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = binary_cross_entropy_with_logits(features @ weight, success)
        value = value + weight_decay * weight[:-1].square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return VerdictHead(policy, mean, scale, weight.detach())
