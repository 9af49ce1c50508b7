"""Fidelity: rehearsed responses next to real ones, on the same history and the same call."""

from collections.abc import Sequence

import pandas as pd

from envace_lite.fidelity.asking import ask, open_loop, rehearse, same_decisions
from envace_lite.fidelity.baselines import always_success, copy_arguments, most_frequent, oracle
from envace_lite.fidelity.diagnosis import missing_rules, rules
from envace_lite.fidelity.grounding import groundings
from envace_lite.fidelity.measures import PAIR_METRICS, beside, by_depth, compare, reliability, summary
from envace_lite.fidelity.overall import FidelityReport, report
from envace_lite.fidelity.pairs import MUTATIONS, ProbePair, probe_pairs
from envace_lite.model.policy import Policy
from envace_lite.world import Task


def probe(model: Policy, tasks: Sequence[Task], seed: int = 0) -> pd.DataFrame:
    """`compare` on the probe pairs of some tasks."""
    pairs = probe_pairs(tasks, seed)
    rehearsed = ask(model, pairs)
    return compare(pairs, [r.response for r in rehearsed], [r.log_prob for r in rehearsed])


__all__ = [
    "MUTATIONS",
    "PAIR_METRICS",
    "FidelityReport",
    "ProbePair",
    "Rehearsed",
    "always_success",
    "ask",
    "beside",
    "by_depth",
    "compare",
    "copy_arguments",
    "groundings",
    "missing_rules",
    "most_frequent",
    "open_loop",
    "oracle",
    "probe",
    "probe_pairs",
    "rehearse",
    "reliability",
    "report",
    "rules",
    "same_decisions",
    "summary",
]
