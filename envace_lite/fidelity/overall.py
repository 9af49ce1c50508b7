"""Everything that the probe says about one model, beside the baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from envace_lite.fidelity.asking import ask, open_loop, same_decisions
from envace_lite.fidelity.baselines import Baseline, always_success, copy_arguments, most_frequent, oracle
from envace_lite.fidelity.diagnosis import missing_rules, rules
from envace_lite.fidelity.measures import Reliability, beside, by_depth, compare, reliability, summary
from envace_lite.fidelity.pairs import MUTATIONS, ProbePair, probe_pairs
from envace_lite.model.policy import Policy
from envace_lite.world import Task


@dataclass
class FidelityReport:
    """A model's rehearse role on probe pairs of every kind.

    Args:
        pairs: `compare` on the real histories, with a column `same_decision` (see `same_decisions`).
        open_loop: `compare` on the planned calls, after the model's own rehearsed responses.
        baselines: `compare` for each baseline on the same pairs.
    """

    pairs: pd.DataFrame
    open_loop: pd.DataFrame
    baselines: dict[str, pd.DataFrame]

    def table(self) -> pd.DataFrame:
        """The metrics of the model and of the baselines, one column each."""
        return beside({"model": self.pairs, **self.baselines})

    @property
    def rules(self) -> pd.DataFrame:
        """How each rule of the real world fares (see `diagnosis.rules`)."""
        return rules(self.pairs)

    @property
    def missing_rules(self) -> list[str]:
        """The rules that the rehearsed world lacks."""
        return missing_rules(self.pairs)

    @property
    def decision_agreement(self) -> float:
        """Share of the pairs after which the model does the same next as after the real response."""
        return float(self.pairs.same_decision.mean())

    @property
    def reliability(self) -> Reliability:
        """Confidence against being right."""
        return reliability(self.pairs)

    def by_depth(self) -> pd.DataFrame:
        """Fidelity on planned calls by the number of calls before: after real responses, and after rehearsed ones."""
        planned = by_depth(self.pairs[self.pairs.planned])
        return planned[["pairs", "fidelity"]].join(by_depth(self.open_loop).fidelity.rename("open_loop"))

    def to_record(self) -> dict[str, Any]:
        """The numbers as plain data, for a record in data/runs."""
        reliable = self.reliability
        return {
            "pairs": len(self.pairs),
            "errors": float(self.pairs.real_error.mean()),
            "metrics": summary(self.pairs).round(4).to_dict("index"),
            "baselines": self.table().drop(columns="model").round(4).to_dict(),
            "rules": self.rules.round(4).to_dict("index"),
            "missing_rules": self.missing_rules,
            "decision_agreement": round(self.decision_agreement, 4),
            "by_depth": [[depth, *row] for depth, row in self.by_depth().round(4).T.to_dict("list").items()],
            "calibration_error": round(reliable.error, 4),
            "reliability": reliable.table.round(4).to_numpy().tolist(),
        }

    def _repr_html_(self) -> str:
        return str(self.table().round(3).to_html() + self.rules.round(3).to_html())

    def __repr__(self) -> str:
        pairs, lacks = self.pairs, self.missing_rules
        return f"<FidelityReport: {len(pairs)} pairs, fidelity {pairs.exact.mean():.3f}, lacks {lacks}>"


def report(
    model: Policy,
    tasks: Sequence[Task],
    *,
    seed: int = 0,
    per_state: int = 4,
    known: Sequence[ProbePair] | None = None,
) -> FidelityReport:
    """Probe a model with calls of every kind, well formed or not; `seed` and `per_state` as for `probe_pairs`.

    The most frequent responses are taken from `known`, by default the probe's own pairs, which flatters that baseline.
    """
    pairs = probe_pairs(tasks, seed, per_state, list(MUTATIONS))
    rehearsed = ask(model, pairs)
    responses = [r.response for r in rehearsed]
    frame = compare(pairs, responses, [r.log_prob for r in rehearsed])
    frame["same_decision"] = same_decisions(model, pairs, responses)
    chained, told = open_loop(model, pairs)
    baselines: dict[str, Baseline] = {
        "always_success": always_success,
        "copy_arguments": copy_arguments,
        "most_frequent": most_frequent(known or pairs),
        "oracle": oracle,
    }
    return FidelityReport(
        frame,
        compare(chained, [r.response for r in told]),
        {name: compare(pairs, answer(pairs)) for name, answer in baselines.items()},
    )
