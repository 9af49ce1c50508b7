"""Scorers: which of several imagined continuations of one conversation looks best.

A scorer is a plain function from the continuations to a number each; the highest is chosen, the earlier one in a tie.
It sees no environment and no label.

What is simplified against the paper, whose policy writes its verdict in words: the compact language has no words for a
verdict. `Verdict` is a small head on the policy's own last hidden state, trained by nothing but task success.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from envace_lite.chat import GIVEN
from envace_lite.domains import Task
from envace_lite.policy import Policy, pad_left, square_mask
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


class Verdict:
    """The policy's own judgement of a continuation: the probability of task success, read off its last hidden state.

    The hidden state is there when the last token is written, so a verdict costs no token. (Here it is computed again,
    since the rollout engine does not keep it.)

    Args:
        policy: whose states are read.
        mean, scale: of the states, (width,) each.
        weight: (width + 1,); the last one is the bias.
    """

    def __init__(self, policy: Policy, mean: Tensor, scale: Tensor, weight: Tensor):
        self.policy, self.mean, self.scale, self.weight = policy, mean, scale, weight

    def __call__(self, continuations: Sequence[Trajectory]) -> list[float]:
        """Probabilities of success."""
        states = last_states(self.policy, [[*t.prompt, *t.ids] for t in continuations])
        logits = ((states - self.mean) / self.scale) @ self.weight[:-1] + self.weight[-1]
        return [float(value) for value in logits.sigmoid()]


@torch.inference_mode()
def last_states(policy: Policy, rows: Sequence[Sequence[int]], at_once: int = 128) -> Tensor:
    """The last hidden state after each row of ids, (N, width)."""
    states = []
    with policy.sampler() as model:
        for start in range(0, len(rows), at_once):
            ids, real = pad_left(rows[start : start + at_once], policy.chat.pad)
            positions = (real.cumsum(1) - 1).clamp(min=0)
            read = model.model(ids, square_mask(real), positions, use_cache=False)
            states.append(read.last_hidden_state[:, -1])
    return torch.cat(states)


def fit_verdict(
    policy: Policy, tasks: Sequence[Task], *, group_size: int = 4, weight_decay: float = 1e-2, seed: int = 0
) -> Verdict:
    """Train a verdict head on the policy's own rollouts and their task success. No environment is opened.

    Each message that the policy ends is one example, so that continuations of any depth can be judged.

    Args:
        tasks: training tasks.
        weight_decay: of the logistic regression.
    """
    generator = torch.Generator().manual_seed(seed)
    rows, labels = [], []
    for trajectory in rollout(policy, tasks, group_size=group_size, generator=generator):
        ends = [i for i, token in enumerate(trajectory.ids, 1) if token == policy.chat.end]
        rows += [[*trajectory.prompt, *trajectory.ids[:end]] for end in ends]
        labels += [task_success(trajectory)] * len(ends)
    states, wanted = last_states(policy, rows).clone(), torch.tensor(labels)
    mean, scale = states.mean(0), states.std(0) + 1e-6
    features = torch.cat([(states - mean) / scale, torch.ones(len(states), 1)], 1)
    weight = torch.zeros(features.shape[1], requires_grad=True)
    optimizer = torch.optim.LBFGS([weight], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.binary_cross_entropy_with_logits(features @ weight, wanted)
        value = value + weight_decay * weight[:-1].square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return Verdict(policy, mean, scale, weight.detach())
