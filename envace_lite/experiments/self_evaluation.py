"""Self-evaluation: the policy learns to say whether imagined continuations succeed, by nothing but task success.

What is simplified against the paper, whose policy writes its judgement in words: here it is one of two words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from random import Random

import torch
from torch import Tensor

from envace_lite.model.policy import Family, Policy, with_lora
from envace_lite.reward import task_success
from envace_lite.rollout import Trajectory, rollout
from envace_lite.world import Task


class SelfEvaluation:
    """The policy's own judgement: after a continuation it writes `ok` or `error`. Scores are probabilities of `ok`.

    The judgement is written after the header `<user>`, with adapters of its own, so that judging does not change how
    the policy acts. Other adapters cannot read what is in the cache: the continuation is read again, and that is paid
    for (`reads`).

    Args:
        judge: the policy with these adapters; see `fit_self_evaluation`.
    """

    __name__ = "verdict"

    def __init__(self, judge: Policy):
        self.judge = judge
        self.header = [judge.compact.user]
        self.words = judge.compact.encode("error ok")

    def family(self, continuations: Sequence[Trajectory], words: Sequence[int]) -> Family:
        """Continuations of one prompt, each with its judgement (0 or 1) written after it."""
        rows = zip(continuations, words, strict=True)
        return Family(continuations[0].prompt, [[*t.ids, *self.header, self.words[word]] for t, word in rows])

    def __call__(self, continuations: Sequence[Trajectory]) -> list[float]:
        """Probabilities of success."""
        families = [self.family(same, [1] * len(same)) for same in _by_prompt(continuations)]
        log_p, _ = self.judge.log_probs(families)
        return [float(value) for value in log_p[_last(families)].exp()]

    def reads(self, continuations: Sequence[Trajectory]) -> int:
        """Tokens that a judgement on these costs: each prompt and continuation once more, and the judgement itself."""
        prompts = sum(len(same[0].prompt) for same in _by_prompt(continuations))
        return prompts + sum(len(t.ids) + 2 for t in continuations)


def _by_prompt(continuations: Sequence[Trajectory]) -> list[list[Trajectory]]:
    return [list(same) for _, same in groupby(continuations, attrgetter("prompt"))]


def _last(families: Sequence[Family]) -> Tensor:
    """Where each completion ends among the tokens of all."""
    lengths = [len(completion) for family in families for completion in family.completions]
    return torch.tensor(lengths).cumsum(0) - 1


def fit_self_evaluation(
    policy: Policy,
    tasks: Sequence[Task],
    *,
    group_size: int = 4,
    steps: int = 150,
    families: int = 12,
    lr: float = 2e-3,
    seed: int = 0,
) -> SelfEvaluation:
    """Train the judgement on the policy's own rollouts and their task success. No environment is opened.

    Only groups that hold a success and a failure are learned from, where there are any: what is wanted is to tell
    continuations of one conversation apart. Half of the examples break off after an earlier message, so that
    continuations of any depth can be judged.

    Args:
        policy: stays as it is.
        tasks: training tasks.
        group_size: rollouts of each.
        steps, families, lr: updates, groups an update, the highest rate (it warms up, and falls linearly).
        seed: of everything that is drawn.
    """
    generator, rng = torch.Generator().manual_seed(seed), Random(seed)
    made = rollout(policy, tasks, group_size=group_size, generator=generator)
    groups = [made[i : i + group_size] for i in range(0, len(made), group_size)]
    mixed = [group for group in groups if len({task_success(t) for t in group}) > 1]
    judgement = SelfEvaluation(with_lora(policy.folded(), seed=seed))
    parameters = [p for p in judgement.judge.model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, weight_decay=0.0)
    for step in range(steps):
        for options in optimizer.param_groups:
            options["lr"] = lr * min(1.0, (step + 1) / 10) * (1 - step / steps)
        batch = [
            judgement.family(
                [_broken_off(t, policy.compact.end, rng) for t in group],
                [int(task_success(t)) for t in group],
            )
            for group in rng.choices(mixed or groups, k=families)
        ]
        last = torch.zeros(sum(len(row) for family in batch for row in family.completions), dtype=torch.bool)
        last[_last(batch)] = True

        def objective(log_p: Tensor, _: Tensor, where: Tensor, last: Tensor = last) -> Tensor:
            return -log_p[last[where]].sum() / last.sum()

        judgement.judge.backward(batch, objective)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    return judgement


def _broken_off(trajectory: Trajectory, end: int, rng: Random) -> Trajectory:
    """Every other time only the part up to the end of some message."""
    ends = [i for i, token in enumerate(trajectory.ids, 1) if token == end]
    if not ends or rng.random() < 0.5:
        return trajectory
    return replace(trajectory, ids=trajectory.ids[: rng.choice(ends)])
