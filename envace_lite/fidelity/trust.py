"""When to trust a rehearsed response: risk against coverage.

Who trusts only the responses above some score covers a share of the calls, the *coverage*, and is wrong in a share of
those, the *risk* (selective prediction: arXiv 1705.08500). Four responses with the scores .9, .8, .8, .3, of which one
of those at .8 is wrong: trust above .9 covers 1/4 at risk 0; above .8, 3/4 at risk 1/3; above .3, all at risk 1/4.

The score of interest is the probability of the rehearsed response. Other scores are controls: what the tool's name
alone tells, what the length of the response tells, and what somebody would make of it who knows which are wrong.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

WRONG = {
    "response": "the response is not the real one, to the last word",
    "verdict": "it says that the call goes well, or fails, and the reverse is true",
}
"""What it can mean that a response is wrong."""


def wrong(frame: pd.DataFrame, what: str) -> pd.Series:
    """Which rehearsed responses of `compare` are wrong; `what` is a key of `WRONG`."""
    if what == "response":
        return ~frame.exact
    verdict = frame.rehearsed_error | frame.rehearsed_success  # neither, where it is malformed or abstains
    return ~verdict | (frame.rehearsed_error != frame.real_error)


def scores(frame: pd.DataFrame, known: pd.DataFrame, what: str) -> dict[str, pd.Series]:
    """By name, what each response is trusted by: the more, the rather.

    Args:
        frame, known: of `compare`. What the tool's name tells is counted on `known`, which should hold other tasks.
        what: a key of `WRONG`.
    """

    def tool(calls: pd.Series) -> pd.Series:
        return calls.map(lambda call: call.split()[0])

    right = (~wrong(known, what)).groupby(tool(known.call)).mean()
    return {
        "probability": frame.confidence,
        # A tool that is not known is trusted last.
        "tool": tool(frame.call).map(right).fillna(-1.0),
        "shortness": -frame.rehearsed.map(lambda text: float(len(text.split()))),
        "best": (~wrong(frame, what)).astype(float),
    }


def risk_coverage(score: pd.Series, wrong: pd.Series) -> pd.DataFrame:
    """One row a score that occurs, from the highest: `threshold`, `coverage`, `risk` of trusting what reaches it.

    Raises:
        ValueError: there is nothing to trust.
    """
    if not len(score):
        raise ValueError("there are no responses")
    ordered = pd.DataFrame({"threshold": score, "wrong": wrong.astype(float)}).sort_values(
        "threshold", ascending=False, kind="stable"
    )
    count = np.arange(1, len(ordered) + 1)
    ordered["coverage"], ordered["risk"] = count / len(ordered), ordered.wrong.cumsum() / count
    # Equal scores are trusted together: the last of them tells.
    return ordered.drop(columns="wrong").drop_duplicates("threshold", keep="last").reset_index(drop=True)


def mean_risk(curve: pd.DataFrame) -> float:
    """The risk over all coverages (the area under the curve): equal scores count as if drawn in any order."""
    edges = np.concatenate([[0.0], curve.coverage])
    # Within a run of equal scores the expected share of wrong ones is a line: the mean of a few points will do.
    missed = np.concatenate([[0.0], curve.risk * curve.coverage])
    grid = np.linspace(0, 1, 501)[1:]
    return float((np.interp(grid, edges, missed) / grid).mean())


def threshold_for(curve: pd.DataFrame, risk: float) -> float:
    """The threshold that covers most at no more than this risk; infinite if none does."""
    allowed = curve[curve.risk <= risk]
    return float(allowed.threshold.iloc[-1]) if len(allowed) else float("inf")


def trusted(frame: pd.DataFrame, threshold: float, what: str) -> tuple[float, float]:
    """Coverage and risk of trusting the responses whose probability reaches a threshold; risk is NaN for none."""
    chosen = frame.confidence >= threshold
    return float(chosen.mean()), float(wrong(frame, what)[chosen].mean())
