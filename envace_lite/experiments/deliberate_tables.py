"""The study of private rehearsal, read from its records: curves over the tokens, tables, differences.

Means are over the records of one way of training, one a seed, with Student's 95 % intervals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from envace_lite.experiments.deliberate import BUDGETS, KINDS
from envace_lite.experiments.records import of_kind
from envace_lite.experiments.tables import markdown, with_interval
from envace_lite.experiments.ways import CONTROLS, METHODS, WITHOUT_BUDGET

SPLITS = {"test": "test tasks", "held_out": "held-out tools"}
AFTER = "world rehearsal"
"""Title of the policies after world rehearsal, in the recorded study."""


def curve(record: Mapping[str, Any], metric: str, *, split: str = "test", kind: str = "all") -> pd.DataFrame:
    """One metric of a record: method, budget, tokens, value, low, high; a row a cell that has such tasks."""
    rows = []
    for cell in record["cells"].values():
        results = cell["results"][split].get(kind)
        if results is None:  # no task of this kind
            continue
        value, low, high = results[metric]
        tokens = results["tokens"][0]
        rows.append((cell["method"], cell["budget"], tokens, value, low, high))
    return pd.DataFrame(rows, columns=["method", "budget", "tokens", "value", "low", "high"])


def _cells(
    records: Sequence[Mapping[str, Any]], methods: Sequence[str], budgets: Sequence[int], split: str
) -> Iterator[tuple[dict[str, Any], list[Mapping[str, Any]]]]:
    """For each way of deciding and N that was run: the first columns of its row, and its results, one a record."""
    for method in methods:
        for budget in (0, *budgets):
            key = f"{method}-{budget}"
            found = [record["cells"][key]["results"][split] for record in records if key in record["cells"]]
            if found:
                yield {"way of deciding": METHODS[method], "N": budget, "seeds": len(found)}, found


def ways_table(
    records: Sequence[Mapping[str, Any]],
    split: str,
    budgets: Sequence[int] = BUDGETS[1:],
    methods: Sequence[str] = tuple(METHODS),
) -> pd.DataFrame:
    """Each way of deciding at some budgets: means over the records with 95 % intervals, one row a way and N."""
    lines = []
    for line, found in _cells(records, methods, budgets, split):
        for kind, title in KINDS.items():
            values = [results[kind]["real_success"][0] if kind in results else None for results in found]
            line[f"real success, {title}"] = with_interval(values, share=True)
        for metric in ("wrong_writes", "irreversible_writes", "world_errors"):
            line[metric] = with_interval([results["all"][metric][0] for results in found])
        line["tokens"] = f"{np.mean([results['all']['tokens'][0] for results in found]):.0f}"
        lines.append(line)
    return pd.DataFrame(lines).set_index("way of deciding") if lines else pd.DataFrame()


def gains(
    records: Sequence[Mapping[str, Any]],
    split: str,
    method: str = "judged",
    budgets: Sequence[int] = (2, 4, 8),
) -> pd.DataFrame:
    """What a way of deciding brings beyond the others at the same N, seed by seed: means with 95 % intervals.

    Positive differences of real success are gains; so are negative ones of wrong writes.
    """
    lines = []
    for budget in budgets:
        for other in ("plain", "greedy", "parallel", *CONTROLS):
            keys = f"{method}-{budget}", f"{other}-{0 if other in WITHOUT_BUDGET else budget}"
            pairs = [
                [r["cells"][key]["results"][split] for key in keys]
                for r in records
                if all(key in r["cells"] for key in keys)
            ]
            if pairs:
                line = {"N": budget, "beyond": METHODS[other], "seeds": len(pairs)}
                wanted = [
                    ("real_success", "all", "all"),
                    *(("real_success", *kind) for kind in KINDS.items()),
                ]
                for metric, group, title in (*wanted, ("wrong_writes", "all", "all")):
                    differences = [a[group][metric][0] - b[group][metric][0] for a, b in pairs if group in a]
                    line[f"{metric.replace('_', ' ')}, {title}"] = with_interval(differences)
                lines.append(line)
    return pd.DataFrame(lines).set_index("N") if lines else pd.DataFrame()


def scorers_table(records: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Share of the pairs of a success and a failure that each scorer orders rightly (see `tell_apart`)."""
    told = [record["scorers"] for record in records if "scorers" in record]
    names = dict.fromkeys(name for scorers in told for name in scorers["test"])
    rows = {
        name: {
            words: with_interval([s[split].get(name) for s in told], share=True)
            for split, words in SPLITS.items()
        }
        for name in names
    }
    return pd.DataFrame(rows).T.rename_axis("scorer") if rows else pd.DataFrame()


def misled_table(records: Sequence[Mapping[str, Any]], budgets: Sequence[int] = (2, 8)) -> pd.DataFrame:
    """When a rehearsal misleads: how often it promised, and how often the promise failed, on test tasks by policy."""
    lines = []
    methods = ("plain", "parallel", "judged", "judged_vote")
    for title, runs in _titled(records).items():
        for line, found in _cells(runs, methods, budgets, "test"):
            for metric in ("real_success", "promised", "misled", "wrong_writes"):
                values = [results["all"][metric][0] for results in found]
                line[metric] = with_interval(values, share=metric != "wrong_writes")
            lines.append({"policy": title, **line})
    return pd.DataFrame(lines).set_index("policy") if lines else pd.DataFrame()


def _titled(records: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Records of the study by the title of their policies."""
    titled: dict[str, list[Mapping[str, Any]]] = {}
    for record in of_kind("deliberate", records):
        titled.setdefault(record["title"], []).append(record)
    return titled


def short_table(records: Sequence[Mapping[str, Any]]) -> str:
    """The main ways of deciding after world rehearsal, on test tasks, as markdown."""
    found = _titled(records).get(AFTER, [])
    methods = ("plain", "greedy", "parallel", "judged", "vote", "judged_vote", "refine", "scratch")
    shown = ways_table(found, "test", (2, 4, 8), methods)
    return markdown(shown) if len(shown) else ""


def tables(records: Sequence[Mapping[str, Any]]) -> str:
    """The study of private rehearsal as markdown, made from the records alone."""
    parts = []
    for title, found in _titled(records).items():
        for split, words in SPLITS.items():
            parts += [f"**Policy: {title}; {words}**", markdown(ways_table(found, split))]
            difference = gains(found, split)
            if len(difference):
                parts += [
                    f"What rehearsal with the verifier brings beyond the others ({title}, {words}):",
                    markdown(difference),
                ]
        told = scorers_table(found)
        if len(told):
            parts += [f"Pairs that each scorer orders rightly ({title}):", markdown(told)]
    misled = misled_table(records)
    if len(misled):
        parts += ["**When rehearsal misleads**", markdown(misled)]
    return "\n\n".join(parts)
