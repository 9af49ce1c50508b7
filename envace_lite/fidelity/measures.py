"""Rehearsed responses next to real ones, pair by pair, and what is measured on them.

The paper asserts that the dynamics move into the parameters and never compares them with the real ones; this package
does. It looks on from outside: nothing here feeds back into training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import pandas as pd
from scipy.stats import bootstrap

from envace_lite.fidelity.grounding import GROUNDINGS, groundings
from envace_lite.fidelity.pairs import ProbePair
from envace_lite.world import get_domain
from envace_lite.world.result import ABSTAIN, MALFORMED, Result, canonical

COLUMNS = {
    **dict.fromkeys(("task", "domain"), object),
    "depth": int,
    "mutation": object,
    "planned": bool,
    **dict.fromkeys(("call", "real", "rehearsed", "rule", "rehearsed_rule"), object),
    **dict.fromkeys(("exact", "valid", "real_error", "rehearsed_error", "rehearsed_success"), bool),
    "confidence": float,
    **{f"{what}_{g}": int for g in GROUNDINGS for what in ("leaves", "right", "wrong")},
    **dict.fromkeys(("changed_real", "changed_rehearsed", "changed_both"), int),
}
"""Columns of `compare` with their types, which also hold when there is nothing to compare."""

PAIR_METRICS = {
    "fidelity": "share of the rehearsed responses that equal the real one in every word",
    "fidelity_success": "the same where the real response is a success",
    "fidelity_error": "the same where the real response is an error",
    "error_recall": "share of the real errors that are rehearsed as an error",
    "error_precision": "share of the rehearsed errors that are real",
    "optimism": "P(rehearsed success | real error)",
    "pessimism": "P(rehearsed error | real success)",
    "validity": "share of the rehearsed responses that are well formed, with records that exist",
    "leaf_initial": "share of the parts of real responses known from the prompt that are rehearsed right",
    "leaf_history": "the same for parts known from an earlier response",
    "leaf_hidden": "the same for parts that the conversation does not tell",
    "state_f1": "agreement of the changed records, harmonic mean of precision and recall",
}
"""What is measured on pairs, in this order.

Success and error apart: MirrorAPI-Bench. State differences: ByteSized32-SP (arXiv 2406.06485). The rest follows
from the question: an honest account of optimism needs the share of real errors in its denominator.
"""


def compare(
    pairs: Sequence[ProbePair], rehearsed: Sequence[Result], log_probs: Sequence[float] | None = None
) -> pd.DataFrame:
    """One row a pair: what was real, what was rehearsed (with its probability as `confidence`), and how they agree.

    Columns `exact`, `valid`, `real_error`, `rehearsed_error`, `rehearsed_success` are flags; a response that is not
    well formed, or abstains, is neither an error nor a success. `leaves_G`, `right_G`, `wrong_G` count the leaves of
    the real response by grounding; one that the rehearsed response does not have at all is neither right nor wrong.
    """
    certainties = [float("nan")] * len(pairs) if log_probs is None else np.exp(log_probs)
    rows = (_row(*columns) for columns in zip(pairs, rehearsed, certainties, strict=True))
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


def _row(pair: ProbePair, mine: Result, confidence: float) -> dict[str, object]:
    real_leaves, my_leaves = pair.real.parts(), mine.parts()
    counts = dict.fromkeys((f"{what}_{g}" for g in GROUNDINGS for what in ("leaves", "right", "wrong")), 0)
    for slot, grounding in groundings(pair).items():
        counts[f"leaves_{grounding}"] += 1
        if slot in my_leaves:
            counts[f"{'right' if my_leaves[slot] == real_leaves[slot] else 'wrong'}_{grounding}"] += 1
    # Where a rehearsed response does not tell what changed, nothing is compared.
    changed = [
        {f"{path} {canonical(value)}" for path, value in response.changed.items()} if mine.told else set()
        for response in (pair.real, mine)
    ]
    domain = get_domain(pair.task.domain)
    return {
        "task": pair.task.id,
        "domain": pair.task.domain,
        "depth": len(pair.history),
        "mutation": pair.mutation,
        "planned": pair.planned,
        "call": pair.call.text,
        "real": pair.real.text,
        "rehearsed": mine.text,
        "rule": pair.real.error or "",
        "rehearsed_rule": mine.error or "",
        "exact": mine.same(pair.real),
        "valid": mine.error != MALFORMED and domain.plausible(mine),
        "real_error": pair.real.error is not None,
        "rehearsed_error": mine.error not in (None, MALFORMED, ABSTAIN),
        "rehearsed_success": mine.error is None,
        "confidence": confidence,
        **counts,
        "changed_real": len(changed[0]),
        "changed_rehearsed": len(changed[1]),
        "changed_both": len(changed[0] & changed[1]),
    }


Counts = tuple[np.ndarray, np.ndarray]
_Column = Callable[[pd.DataFrame], pd.Series]
_PARTS: dict[str, tuple[_Column, _Column]] = {  # numerator and denominator of each metric, of each pair
    "fidelity": (lambda f: f.exact, lambda f: f.exact | True),
    "fidelity_success": (lambda f: f.exact & ~f.real_error, lambda f: ~f.real_error),
    "fidelity_error": (lambda f: f.exact & f.real_error, lambda f: f.real_error),
    "error_recall": (lambda f: f.rehearsed_error & f.real_error, lambda f: f.real_error),
    "error_precision": (lambda f: f.rehearsed_error & f.real_error, lambda f: f.rehearsed_error),
    "optimism": (lambda f: f.rehearsed_success & f.real_error, lambda f: f.real_error),
    "pessimism": (lambda f: f.rehearsed_error & ~f.real_error, lambda f: ~f.real_error),
    "validity": (lambda f: f.valid, lambda f: f.valid | True),
    **{f"leaf_{g}": (itemgetter(f"right_{g}"), itemgetter(f"leaves_{g}")) for g in GROUNDINGS},
    "state_f1": (lambda f: 2 * f.changed_both, lambda f: f.changed_real + f.changed_rehearsed),
}


def counts(frame: pd.DataFrame, metric: str) -> Counts:
    """Numerator and denominator of a metric, summed over the pairs of each task."""
    hit, where = (part(frame).astype(float) for part in _PARTS[metric])
    sums = pd.DataFrame({"hit": hit, "where": where, "task": frame.task}).groupby("task").sum()
    return sums.hit.to_numpy(), sums["where"].to_numpy()


def ratio(counts: Counts) -> float:
    """Sum of the numerators over that of the denominators; NaN when there is nothing to count."""
    numerator, denominator = (part.sum() for part in counts)
    return float(numerator / denominator) if denominator else float("nan")


def interval(counts: Counts, resamples: int = 1000) -> dict[str, float]:
    """`ratio` with its 95 % interval `low` to `high`, by a bootstrap over tasks: pairs of one are not independent."""
    numerator, denominator = counts
    value = ratio(counts)
    used = denominator > 0
    if used.sum() < 2 or len(set(numerator[used] / denominator[used])) == 1:
        return {"value": value, "low": value, "high": value}
    result = bootstrap(
        (numerator[used], denominator[used]),
        lambda n, d, axis: n.sum(axis) / d.sum(axis),
        paired=True,
        vectorized=True,
        n_resamples=resamples,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    low, high = result.confidence_interval
    return {"value": value, "low": float(low), "high": float(high)}


def summary(frame: pd.DataFrame, resamples: int = 1000) -> pd.DataFrame:
    """Each metric with the ends of its 95 % interval."""
    return pd.DataFrame({metric: interval(counts(frame, metric), resamples) for metric in PAIR_METRICS}).T


def beside(columns: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The metrics of several responders on the same pairs, one column each."""
    values = {name: {m: ratio(counts(frame, m)) for m in PAIR_METRICS} for name, frame in columns.items()}
    return pd.DataFrame(values)


def by_depth(frame: pd.DataFrame) -> pd.DataFrame:
    """Fidelity and optimism by the number of calls before, with the number of pairs."""
    names = ("fidelity", "optimism")
    parts = dict(list(frame.groupby("depth")))
    rows = {
        d: {"pairs": len(part), **{m: ratio(counts(part, m)) for m in names}} for d, part in parts.items()
    }
    table = pd.DataFrame(rows, index=["pairs", *names]).T
    return table.astype({"pairs": int}).rename_axis("depth")


@dataclass(frozen=True)
class Reliability:
    """How far a rehearse role's confidence can be relied on.

    `table` has for each bin of confidence its `pairs`, their mean `confidence`, and the share that is `right`. `error`
    is the mean distance of the two, weighted by the pairs: the expected calibration error (arXiv 1706.04599).
    """

    table: pd.DataFrame
    error: float


def reliability(frame: pd.DataFrame, bins: int = 10) -> Reliability:
    """Confidence (the probability of the whole response) against the share of responses that equal the real one."""
    known = frame.dropna(subset="confidence")
    edges = (known.confidence * bins).astype(int).clip(0, bins - 1).rename("bin")
    table = known.groupby(edges).agg(
        pairs=("exact", "size"), confidence=("confidence", "mean"), right=("exact", "mean")
    )
    distance = (table.confidence - table.right).abs()
    error = float((distance * table.pairs).sum() / table.pairs.sum()) if len(table) else float("nan")
    return Reliability(table, error)
