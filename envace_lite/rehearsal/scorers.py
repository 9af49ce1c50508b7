"""Scorers: which of several imagined continuations of one conversation looks best.

A scorer is a plain function from the continuations to a number each; the highest is chosen, the earlier one in a tie.
It sees no environment and no label.

What is simplified against the paper, whose policy reads its rehearsals: here a plain function judges them. A verdict
that the policy learns to write itself is in `experiments.self_evaluation`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from envace_lite.model.language import GIVEN
from envace_lite.reward import believed_writes
from envace_lite.rollout import Trajectory
from envace_lite.world.verifier import BROKEN, DONE, OPEN, request_status

Scorer = Callable[[Sequence[Trajectory]], Sequence[float]]


def agreement(continuations: Sequence[Trajectory]) -> list[float]:
    """Share of the continuations that imagine the same outcome: the same believed writes, the same answers.

    One that breaks off has no outcome and gets 0.
    """
    outcomes = [None if _broke_off(t) else (believed_writes(t), tuple(t.answers)) for t in continuations]
    counts = Counter(outcomes)
    return [counts[outcome] / len(outcomes) if outcome is not None else 0.0 for outcome in outcomes]


def likelihood(continuations: Sequence[Trajectory]) -> list[float]:
    """Mean log-probability of the tokens that the policy wrote."""
    return [sum(t.log_probs) / max(len(t.roles) - t.roles.count(GIVEN), 1) for t in continuations]


def no_errors(continuations: Sequence[Trajectory]) -> list[float]:
    """Minus the number of imagined errors; breaking off counts as one."""
    errors = [sum(response.error is not None for _, response in t.exchanges) for t in continuations]
    return [-float(number + _broke_off(t)) for number, t in zip(errors, continuations, strict=True)]


def _broke_off(continuation: Trajectory) -> bool:
    return continuation.stop_reason not in ("answer", "horizon")


CONTENT = 2.0
"""What `carried_out` gives at least to requests that are carried out."""


def carried_out(continuations: Sequence[Trajectory]) -> list[float]:
    """The verifier's word on each imagined end: 2 for requests carried out, 1 for unfinished ones, 0 for anything else.

    The geometric mean of the probabilities of the tokens, which is less than 1, decides between equals.
    """
    worth = {DONE: CONTENT, OPEN: 1.0, BROKEN: 0.0}
    likely = likelihood(continuations)
    status = [request_status(t.task, t.said) for t in continuations]
    return [worth[word] + math.exp(p) for word, p in zip(status, likely, strict=True)]


SCORERS: dict[str, Scorer] = {s.__name__: s for s in (agreement, likelihood, no_errors, carried_out)}
"""The scorers that need no training."""
