"""Alarms: what a training log shows before it is seen in the world.

Under world rehearsal the reward comes from the policy's own responses, so it can rise while the rehearsed world turns
away from the real one. The log of the rollouts shows some of these ways without asking any environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Rows = Sequence[Mapping[str, float]]


def alarms(rows: Rows) -> list[str]:
    """What looks wrong in a training log, one sentence each; an empty list if nothing does.

    The last fifth of the steps is held against the first fifth.

    Args:
        rows: of `TrainLog.rows` (see `train.metrics`), all of them or some in their order.
    """
    share = max(len(rows) // 5, 1)
    told = []
    for name, (wrong, sentence) in _RULES.items():
        first, last = _mean(rows[:share], name), _mean(rows[-share:], name)
        if first is not None and last is not None and wrong(first, last):
            told.append(f"{sentence} ({name} {first:.3f} to {last:.3f})")
    return told


def _mean(rows: Rows, name: str) -> float | None:
    values = [row[name] for row in rows if name in row]
    return sum(values) / len(values) if values else None


_RULES = {
    "error_rate": (
        lambda first, last: last < first / 3,
        "errors vanish from the responses: the rehearsed world may have become a simpler one",
    ),
    "informative": (
        lambda first, last: last < 0.1,
        "hardly any group has both a success and a failure: nothing more is learned",
    ),
    "unfinished": (
        lambda first, last: last > 0.1 and last > 2 * first,
        "more and more episodes end without an answer",
    ),
    "entropy_rehearse": (
        lambda first, last: last > 1.5 * first,
        "responses become less certain: their words may drift",
    ),
    "length_rehearse": (
        lambda first, last: abs(last - first) > 0.3 * first,
        "responses change their length",
    ),
    "drift": (
        lambda first, last: max(first, last) > 1e-3,
        "the update computes other probabilities than the rollout did",
    ),
}
"""By metric: whether it is wrong, from its mean at the start and at the end; and what that means."""
