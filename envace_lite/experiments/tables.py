"""Tables, made from the records alone: means over the seeds with 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import t as student

from envace_lite.experiments.arms import COUNTS, HEADLINE, load_records
from envace_lite.experiments.records import of_kind
from envace_lite.train import TrainConfig
from envace_lite.world import DOMAINS


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of the seeds with its 95 % interval (Student's t); the ends are NaN for a single seed."""
    column = pd.Series(values, dtype=float).dropna()
    mean, count = float(column.mean()), len(column)
    if count < 2:
        return mean, math.nan, math.nan
    half = float(student.ppf(0.975, count - 1) * column.std() / math.sqrt(count))
    return mean, mean - half, mean + half


def table(
    records: Iterable[dict[str, Any]],
    *,
    split: str = "test",
    metrics: Sequence[str] = HEADLINE,
    domain: str = "all",
) -> pd.DataFrame:
    """Means over the seeds with intervals, one row an arm, for one domain, one kind of task, or `all`."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if domain in record.get("results", {}).get(split, {}):
            rows.setdefault(_row(record), []).append(record)
    lines = []
    for title, runs in rows.items():
        line: dict[str, Any] = {"arm": title, "seeds": len(runs)}
        for metric in metrics:
            values = [run["results"][split][domain][metric][0] for run in runs]
            line[metric] = with_interval(values, share=metric not in COUNTS)
        calls = [run["totals"]["environment_calls"] for run in runs if "totals" in run]
        line["environment_calls"] = f"{sum(calls) / len(calls):,.0f}" if calls else "-"
        lines.append(line)
    return pd.DataFrame(lines).set_index("arm") if lines else pd.DataFrame()


def _row(record: dict[str, Any]) -> str:
    """What a record is a seed of: runs of another length or on fewer domains are not averaged with the study's."""
    label = str(record["title"])
    if len(record["domains"]) != len(DOMAINS):
        label += f", {' and '.join(record['domains'])}"
    steps = record.get("config", {}).get("steps", TrainConfig().steps)
    return label if steps == TrainConfig().steps else f"{label}, {steps} steps"


def with_interval(values: Sequence[float | None], share: bool = False) -> str:
    """Mean and interval as a short text, cut to what is possible for a share; no interval for a single value."""
    mean, low, high = mean_interval([math.nan if value is None else value for value in values])
    if share:
        low, high = max(low, 0.0), min(high, 1.0)
    return f"{mean:.3f}" if len(values) < 2 or math.isnan(low) else f"{mean:.3f} ({low:.3f} to {high:.3f})"


def markdown(frame: pd.DataFrame) -> str:
    """A frame of texts as a markdown table."""
    rows = [[str(frame.index.name or ""), *frame.columns], ["---"] * (len(frame.columns) + 1)]
    rows += [[str(index), *map(str, row)] for index, row in zip(frame.index, frame.to_numpy(), strict=True)]
    shown = ([cell if cell.startswith("`") else cell.replace("_", " ") for cell in row] for row in rows)
    return "\n".join("| " + " | ".join(row) + " |" for row in shown)


def demo_table(records: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """What the recorded demos brought: before, after and the change, one row a domain and metric."""
    demos: dict[str, list[dict[str, Any]]] = {}
    for record in of_kind("demo", records):
        demos.setdefault(f"{record['domains'][0]}, {record['config']['steps']} steps", []).append(record)
    lines = []
    for title, runs in demos.items():
        for metric in HEADLINE:
            before, after = ([run[when][metric][0] for run in runs] for when in ("before", "after"))
            line: dict[str, Any] = {"demo": title, "seeds": len(runs), "metric": metric}
            line |= {
                "before": f"{before[0]:.3f}",
                "after": with_interval(after, share=metric not in COUNTS),
            }  # every demo starts from the base
            line["change"] = with_interval([b - a for a, b in zip(before, after, strict=True)])
            lines.append(line)
    return pd.DataFrame(lines).set_index("demo") if lines else pd.DataFrame()


def main_tables(folder: Path | None = None) -> str:
    """The ways of training on test tasks and on held-out tools, as markdown made from the records alone."""
    records = _over_all_domains(load_records(folder))
    parts = ["**Test tasks**", markdown(table(records))]
    parts += ["**Tools held out from training**", markdown(table(records, split="held_out"))]
    return "\n\n".join(parts)


def front_table(folder: Path | None = None) -> str:
    """The ways of training on test tasks, in short, as markdown."""
    frame = table(_over_all_domains(load_records(folder)))
    shown = ["seeds", "real_success", "fidelity", "error_recall", "wrong_writes", "environment_calls"]
    return markdown(frame[shown]) if len(frame) else ""


def world_tables(folder: Path | None = None) -> str:
    """Success in the real world and in the policy's own rehearsed one, as markdown made from the records alone."""
    records = _over_all_domains(load_records(folder))
    metrics = ("real_success", "rehearsed_success", "wm2real", "consistency")
    parts = []
    for split, title in (("test", "Test tasks"), ("held_out", "Held-out tools")):
        frame = table(records, split=split, metrics=metrics)
        if len(frame):
            parts += [f"**{title}**", markdown(frame[["seeds", *metrics]])]
    return "\n\n".join(parts)


def detail_tables(folder: Path | None = None) -> str:
    """The ways of training by domain (base and world rehearsal alone) and by kind of task, as markdown."""
    records = _over_all_domains(load_records(folder))
    shown = [r for r in records if r.get("arm", "base") in ("base", "rehearsal")]
    groups = {
        "By domain, test tasks": (shown, "test", list(DOMAINS)),
        "By domain, held-out tools": (shown, "held_out", list(DOMAINS)),
        "By kind of task, test tasks": (records, "test", ["instructions", "goal"]),
    }
    parts = []
    for title, (rows, split, names) in groups.items():
        lines = {
            f"{name}, {arm}": row[list(HEADLINE)]
            for name in names
            for arm, row in table(rows, split=split, domain=name).iterrows()
        }
        if lines:
            parts += [f"**{title}**", markdown(pd.DataFrame(lines).T.rename_axis("part"))]
    return "\n\n".join(parts)


def demo_tables(folder: Path | None = None) -> str:
    """The recorded demos, as markdown."""
    demos = demo_table(load_records(folder))
    return markdown(demos) if len(demos) else ""


def _over_all_domains(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [r for r in records if len(r.get("domains", [])) == len(DOMAINS) and "results" in r]


PROBED = ("fidelity", "optimism", "validity", "leaf_initial", "leaf_history", "leaf_hidden", "state_f1")


def probe_table(records: Iterable[dict[str, Any]], split: str = "test") -> pd.DataFrame:
    """The full probe (half of the calls mutated), one row a way of training; below, the trivial baselines."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if split in record.get("probe", {}):
            rows.setdefault(_row(record), []).append(record["probe"][split])
    lines: dict[str, dict[str, Any]] = {}
    for title, probes in rows.items():
        line: dict[str, Any] = {"seeds": len(probes)}
        columns = {"fidelity": "fidelity, full probe"} | {m: m for m in PROBED if m != "fidelity"}
        for metric, column in columns.items():
            line[column] = with_interval([p["metrics"][metric]["value"] for p in probes], share=True)
        for name in ("decision_agreement", "calibration_error"):
            line[name] = with_interval([p[name] for p in probes], share=True)
        line["rules it lacks"] = "; ".join(
            dict.fromkeys(" ".join(p["missing_rules"]) or "none" for p in probes)
        )
        lines[title] = line
    if rows:
        baselines = next(iter(rows.values()))[0]["baselines"]
        for name, values in baselines.items():
            cells = {c: "-" if values[m] is None else f"{values[m]:.3f}" for m, c in columns.items()}
            lines[f"baseline: {name}"] = {"seeds": "-", **cells}
    return pd.DataFrame(lines).T.fillna("-").rename_axis("arm") if lines else pd.DataFrame()


def rules_table(records: Iterable[dict[str, Any]], split: str = "test") -> pd.DataFrame:
    """Error recall by the rule that is broken, one column a way of training."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if split in record.get("probe", {}):
            rows.setdefault(_row(record), []).append(record["probe"][split]["rules"])
    names = sorted({rule for runs in rows.values() for run in runs for rule in run})
    columns: dict[str, dict[str, str]] = {}
    for title, runs in rows.items():
        columns.setdefault("errors", {n: str(runs[0].get(n, {"errors": 0})["errors"]) for n in names})
        columns[title] = {
            n: with_interval([r[n]["recall"] for r in runs if n in r], share=True) for n in names
        }
    return pd.DataFrame(columns).rename_axis("rule") if rows else pd.DataFrame()


def probe_tables(folder: Path | None = None) -> str:
    """The probe on test tasks and held-out tools, and by rule, as markdown made from the records alone."""
    records = load_records(folder)
    parts = []
    for split, title in (("test", "Test tasks"), ("held_out", "Held-out tools")):
        frame = probe_table(records, split)
        parts += [f"**{title}**", markdown(frame)] if len(frame) else []
    by_rule = rules_table(records)
    parts += ["**Error recall by rule, test tasks**", markdown(by_rule)] if len(by_rule) else []
    return "\n\n".join(parts)


def ranks_table(records: Iterable[dict[str, Any]]) -> str:
    """How policies fare in the real world and in rehearsed ones, and Kendall's tau of the two orders, as markdown."""
    parts = []
    for record in of_kind("ranks", records):
        frame = pd.DataFrame(record["success"]).T.map("{:.3f}".format)
        taus = {world: f"{tau:.2f}" for world, tau in record["kendall_tau"].items()}
        frame.loc["Kendall's tau with the real order"] = {"real": "-", **taus}
        names = {name: f"in the world of {name}" for name in record["kendall_tau"]}
        parts.append(markdown(frame.rename(columns=names).rename_axis("policy")))
    return "\n\n".join(parts)
