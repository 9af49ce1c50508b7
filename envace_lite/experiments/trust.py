"""When a policy's rehearsed responses can be trusted: recorded, beside controls.

The threshold is chosen on training tasks. What it is worth shows on test tasks, and on tools that training never used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from envace_lite.experiments.records import of_kind, without_nan, write_record
from envace_lite.experiments.tables import with_interval
from envace_lite.fidelity import probe
from envace_lite.fidelity.trust import (
    WRONG,
    mean_risk,
    risk_coverage,
    scores,
    threshold_for,
    trusted,
    wrong,
)
from envace_lite.model.policy import Policy
from envace_lite.world.shipped import shipped_tasks

SPLITS = ("test", "held_out")
GRID = [round(float(c), 2) for c in np.linspace(0.05, 1, 20)]
"""The coverages at which risk is recorded."""
RISKS = (0.02, 0.05)
"""So much risk is wanted at most where a threshold is chosen."""


def record_trust(
    name: str,
    policy: Policy,
    *,
    title: str,
    domains: Sequence[str],
    limit: int | None,
    seed: int,
    command: str,
) -> dict[str, Any]:
    """Measure and write the record `trust-NAME`.

    Args:
        limit: tasks of each domain and split.
    """
    known = probe(policy, shipped_tasks(domains, "train", limit))
    results: dict[str, Any] = {}
    for split in SPLITS:
        frame = probe(policy, shipped_tasks(domains, split, limit))
        results[split] = {what: _measured(frame, known, what) for what in WRONG}
    record: dict[str, Any] = without_nan(
        {
            "kind": "trust",
            "command": command,
            "seed": seed,
            "policy": name,
            "title": title,
            "domains": list(domains),
            "config": {"limit": limit, "chosen_on": "train"},
            "results": results,
        }
    )
    write_record(f"trust-{name}", record)
    return record


def _measured(frame: pd.DataFrame, known: pd.DataFrame, what: str) -> dict[str, Any]:
    """Risk by each score, and what thresholds that were chosen on `known` are worth."""
    false = wrong(frame, what)
    curves = {name: risk_coverage(score, false) for name, score in scores(frame, known, what).items()}
    chosen = {}
    for risk in RISKS:
        threshold = threshold_for(risk_coverage(known.confidence, wrong(known, what)), risk)
        coverage, met = trusted(frame, threshold, what)
        told = None if np.isinf(threshold) else round(threshold, 4)
        chosen[str(risk)] = {"threshold": told, "coverage": round(coverage, 4), "risk": round(met, 4)}
    return {
        "pairs": len(frame),
        "all": round(float(false.mean()), 4),
        "mean_risk": {name: round(mean_risk(curve), 4) for name, curve in curves.items()},
        "risk": {
            name: [round(float(r), 4) for r in np.interp(GRID, curve.coverage, curve.risk)]
            for name, curve in curves.items()
        },
        "chosen": chosen,
    }


def trust_table(records: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """By policy, split and meaning of wrong: the risk of trusting all, the mean risk by each score, and thresholds.

    Other records may lie among those of the kind `trust`.
    """
    records = of_kind("trust", records)
    rows = {}
    for title in dict.fromkeys(record["title"] for record in records):
        for split in SPLITS:
            for what in WRONG:
                runs = [r["results"][split][what] for r in records if r["title"] == title]
                columns: dict[str, Any] = {"trusting all": [run["all"] for run in runs]}
                for name in runs[0]["mean_risk"]:
                    columns[f"mean risk by {name}"] = [run["mean_risk"][name] for run in runs]
                for risk in runs[0]["chosen"]:
                    for key in ("coverage", "risk"):
                        columns[f"{key}, {risk} wanted"] = [run["chosen"][risk][key] for run in runs]
                place = f"{title}, {split.replace('_', '-')}, {what}"
                rows[place] = {
                    column: with_interval(values, share=True) for column, values in columns.items()
                }
    return pd.DataFrame(rows).T.rename_axis("trusted")
