"""When to trust a rehearsed response: risk against coverage, by hand, and as it is recorded."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from envace_lite.experiments import plots
from envace_lite.experiments.records import read_records
from envace_lite.experiments.trust import GRID, record_trust, trust_table
from envace_lite.fidelity import compare, oracle, probe_pairs
from envace_lite.fidelity.trust import mean_risk, risk_coverage, scores, threshold_for, trusted, wrong
from envace_lite.model.policy import Policy
from envace_lite.world import DOMAINS, Task, paths
from envace_lite.world.tools import ToolResponse

Lessons = list[tuple[Task, list[dict[str, Any]]]]
SCORE = pd.Series([0.9, 0.8, 0.8, 0.3])
WRONG = pd.Series([False, True, False, False])


def test_risk_and_coverage_by_hand() -> None:
    curve = risk_coverage(SCORE, WRONG)
    assert list(curve.threshold) == [0.9, 0.8, 0.3]
    assert list(curve.coverage) == [0.25, 0.75, 1.0]
    assert list(curve.risk) == pytest.approx([0, 1 / 3, 1 / 4])
    assert [threshold_for(curve, risk) for risk in (0.0, 0.25, 0.3, 0.4)] == [0.9, 0.3, 0.3, 0.3]
    assert threshold_for(risk_coverage(SCORE, ~WRONG), 0.1) == math.inf
    with pytest.raises(ValueError, match="no responses"):
        risk_coverage(SCORE[:0], WRONG[:0])


def test_the_order_of_equal_scores_makes_no_difference() -> None:
    rng = np.random.default_rng(0)
    score, false = pd.Series(rng.integers(0, 5, 200)), pd.Series(rng.random(200) < 0.3)
    mixed = rng.permutation(200)
    again = risk_coverage(score.iloc[mixed].reset_index(drop=True), false.iloc[mixed].reset_index(drop=True))
    assert mean_risk(again) == pytest.approx(mean_risk(risk_coverage(score, false)))


def test_a_constant_is_worth_nothing_and_knowing_is_worth_most() -> None:
    """A score that tells nothing has the risk of trusting all, at every coverage; the reverse of knowing is worst."""
    rng = np.random.default_rng(1)
    false = pd.Series(rng.random(1000) < 0.3)
    nothing, knows = pd.Series(0.5, index=false.index), (~false).astype(float)
    everything = false.mean()
    assert mean_risk(risk_coverage(nothing, false)) == pytest.approx(everything, abs=1e-6)
    noisy = knows + pd.Series(rng.normal(0, 1, 1000))
    risks = [mean_risk(risk_coverage(score, false)) for score in (knows, noisy, nothing, -knows)]
    assert risks == sorted(risks)
    # Known: no risk up to 1 - p, then 1 - (1 - p) / c; its mean over c is p + (1 - p) ln(1 - p).
    assert risks[0] == pytest.approx(everything + (1 - everything) * math.log(1 - everything), abs=2e-3)


def test_what_is_wrong(lessons: Lessons) -> None:
    pairs = probe_pairs([task for task, _ in lessons])
    told = oracle(pairs)
    told[0] = ToolResponse({}, "abstain", {})
    told[1] = ToolResponse({"x": 1}, pairs[1].real.error, {})
    frame = compare(pairs, told, [-0.5] * len(pairs))
    exact = [mine.same(pair.real) for mine, pair in zip(told, pairs, strict=True)]
    assert list(wrong(frame, "response")) == [not same for same in exact]
    assert list(wrong(frame, "verdict"))[:2] == [True, False]
    assert not wrong(frame, "verdict")[2:].any()
    assert trusted(frame, 0.6, "verdict") == (pytest.approx(1.0), pytest.approx(1 / len(pairs)))
    coverage, risk = trusted(frame, 0.7, "verdict")
    assert (coverage, math.isnan(risk)) == (0.0, True)


def test_a_tool_that_is_not_known_is_trusted_last(lessons: Lessons) -> None:
    pairs = probe_pairs([task for task, _ in lessons])
    frame = compare(pairs, oracle(pairs), [0.0] * len(pairs))
    names = frame.call.map(lambda call: call.split()[0])
    some = frame[names == names[0]]
    score = scores(frame, some, "response")["tool"]
    assert set(score[names == names[0]]) == {some.exact.mean()}
    assert set(score[names != names[0]]) == {-1.0}


def test_trust_is_recorded_drawn_and_shown(
    apt: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "RUNS", tmp_path)
    for seed in (0, 1):
        record = record_trust(
            f"apt-{seed}", apt, title="apt", domains=list(DOMAINS), limit=2, seed=seed, command="it"
        )
    recorded = [r for r in read_records(tmp_path) if r["kind"] == "trust" and r["title"] == "apt"]
    assert recorded[-1]["results"] == record["results"]
    measured = record["results"]["test"]["response"]
    assert measured["risk"]["probability"][-1] == measured["all"] == measured["risk"]["best"][-1]
    assert measured["mean_risk"]["best"] <= measured["mean_risk"]["probability"]
    table = trust_table([*recorded, {"kind": "other"}])
    assert table.loc["apt, test, response", "trusting all"].startswith(f"{measured['all']:.3f}")
    figure = plots.risk_over_coverage(recorded)
    line = figure.axes[0].lines[0]
    assert list(line.get_xdata()) == GRID
    assert list(line.get_ydata()) == pytest.approx(measured["risk"]["probability"])
    assert trust_table([]).empty
