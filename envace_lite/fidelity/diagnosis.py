"""The simpler world: which rules of the real one does the rehearsed world lack?"""

from __future__ import annotations

import pandas as pd
from scipy.stats import binomtest


def rules(frame: pd.DataFrame) -> pd.DataFrame:
    """How each rule of the real world fares in the rehearsed one, from the probe alone.

    Args:
        frame: from `compare`.

    Returns:
        By rule: `errors`, the real ones; `recall`, the share of them rehearsed as an error of any rule; `named`, as one
        of this rule; `precision`, the share of the errors rehearsed with this rule that are real errors of it; `tasks`,
        in how many of them the rule occurs; `lacking`, in how many of these its first error is told as a success; and
        `p_value`, of so many or more if the rehearsed world told half of them as errors (a binomial test; one pair a
        task, since those of one task are not independent).
    """
    errors = frame[frame.real_error]
    lines = []
    for rule, real in errors.groupby("rule"):
        first = real.groupby("task").first()
        lacking = int(first.rehearsed_success.sum())
        mine = frame[frame.rehearsed_rule == rule]
        lines.append(
            {
                "rule": rule,
                "errors": len(real),
                "recall": real.rehearsed_error.mean(),
                "named": (real.rehearsed_rule == rule).mean(),
                "precision": (mine.rule == rule).mean() if len(mine) else float("nan"),
                "tasks": len(first),
                "lacking": lacking,
                "p_value": binomtest(lacking, len(first), 0.5, "greater").pvalue,
            }
        )
    columns = ["rule", "errors", "recall", "named", "precision", "tasks", "lacking", "p_value"]
    return pd.DataFrame(lines, columns=columns).set_index("rule")


def missing_rules(frame: pd.DataFrame, alpha: float = 0.05) -> list[str]:
    """The rules that the rehearsed world lacks: it tells most calls that break them as a success.

    Named are those for which this can not be chance, at a level of `alpha` for all rules together (Bonferroni).
    """
    table = rules(frame)
    return list(table.index[table.p_value < alpha / max(len(table), 1)])
