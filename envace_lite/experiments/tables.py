"""Tables, made from the records alone.

An interval of a way of training resamples bases, the seeds of each, and tasks, all at once: a sentence about the method
has to hold for other bases, other seeds and other tasks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

from envace_lite.experiments.arms import ARMS, load_records
from envace_lite.experiments.records import of_kind
from envace_lite.experiments.rows import MEASURES, Rows, unpack
from envace_lite.train import TrainConfig
from envace_lite.world import DOMAINS
from envace_lite.world.toy import NEWS

CONTROLS = {
    "base": "base, before any training",
    "scalar": "base, one scalar",
    "scalar_by_domain": "base, one scalar a domain",
    "oracle": "base, best of 8 samples by the truth",
}
"""What a record of the controls holds, and how each row is called."""
HEADLINE = ("real_success", "fidelity", "bearing", "error_recall", "pessimism", "wrong_writes")
"""The measures that are shown where there is room for a few."""
COUNTS = ("wrong_writes", "consistency")
"""The measures that are no shares: they can be above one."""
Cells = dict[tuple[str, int], Rows]
"""The rows of a split by base and seed."""


def cells(records: Iterable[Mapping[str, Any]], split: str) -> dict[str, Cells]:
    """Everything that was measured on a split of all domains: title -> cells; the controls first.

    Besides the columns of `rows.measure` each has one for each domain, and `instructions`.
    """
    found: dict[str, Cells] = {}
    for record in records:
        if record.get("kind") == "controls":
            for name, title in CONTROLS.items():
                found.setdefault(title, {})[record["base"], 0] = _columns(record["rows"][split][name])
        elif record.get("kind") == "train" and len(record["domains"]) == len(DOMAINS):
            found.setdefault(_title(record), {})[record["base"], record["seed"]] = _columns(
                record["rows"][split]
            )
    return found


def _columns(packed: Mapping[str, str]) -> Rows:
    rows = unpack(packed)
    # Tasks stand in the order of the domains, and each domain has as many as the others.
    count = len(rows["goal"])
    for place, name in enumerate(DOMAINS):
        rows[name] = [
            int(place * count <= len(DOMAINS) * number < (place + 1) * count) for number in range(count)
        ]
    rows["instructions"] = [1 - goal for goal in rows["goal"]]
    return rows


def _title(record: Mapping[str, Any]) -> str:
    """What a record is a run of: runs of another length are not averaged with the study's."""
    steps = record.get("config", {}).get("steps", TrainConfig().steps)
    return str(record["title"]) + (f", {steps} steps" if steps != TrainConfig().steps else "")


def resampled(some: Cells, measure: str, group: str = "", resamples: int = 1000) -> np.ndarray:
    """A measure over some cells, and over as many resamples: (1 + R,). NaN where it was not measured.

    Resamples of equally many tasks draw the same tasks, and those of the same bases the same bases: so differences and
    ratios of two such columns are paired.

    Args:
        group: a column of `cells` that says which tasks count, or "" for all.
    """
    # A measure is a sum of one column over the sum of another one (or over the number of tasks), so a resample is a
    # weighted sum of both: rows (cells, tasks) times weights (tasks, resamples), then a weighted sum over the cells.
    over, under = MEASURES[measure]
    first = next(iter(some.values()))
    everyone = [1] * len(next(iter(first.values())))
    where = np.array(first[group] if group else everyone, dtype=bool)
    measured = all(over in rows and (not under or under in rows) for rows in some.values())
    if not measured or not where.any():
        return np.full(1 + resamples, np.nan)
    numbers = np.array([np.array(rows[over])[where] for rows in some.values()], dtype=float)
    sizes = np.ones_like(numbers)
    if under:
        sizes = np.array([np.array(rows[under])[where] for rows in some.values()], dtype=float)
    tasks, drawn = task_weights(numbers.shape[1], resamples), cell_weights(tuple(some), resamples)
    with np.errstate(invalid="ignore", divide="ignore"):
        spread: np.ndarray = ((numbers @ tasks) * drawn).sum(0) / ((sizes @ tasks) * drawn).sum(0)
    return spread


def value_and_interval(spread: np.ndarray) -> tuple[float, float, float]:
    """The value of a column of `resampled` with the ends of its 95 % interval."""
    if np.isnan(spread[0]) or len(spread) == 1:
        return float(spread[0]), math.nan, math.nan
    low, high = np.nanpercentile(spread[1:], (2.5, 97.5))
    return float(spread[0]), float(low), float(high)


@cache
def task_weights(count: int, resamples: int) -> np.ndarray:
    """How often each task occurs in each resample, (T, 1 + R); the first column has each task once."""
    drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), resamples).T
    return np.hstack([np.ones((count, 1)), drawn])


@cache
def cell_weights(keys: tuple[tuple[str, int], ...], resamples: int) -> np.ndarray:
    """How often each cell (base, seed) occurs in each resample, (C, 1 + R): bases are drawn, then seeds of each."""
    bases = sorted({base for base, _ in keys})
    chosen = np.random.default_rng(1).choice(bases, (resamples, len(bases)))
    rng = np.random.default_rng(2)
    weights = np.zeros((len(keys), 1 + resamples))
    weights[:, 0] = 1
    for column, drawn in enumerate(chosen, start=1):
        for base in drawn:
            own = [place for place, key in enumerate(keys) if key[0] == base]
            np.add.at(weights[:, column], rng.choice(own, len(own)), 1)
    return weights


def table(
    records: Iterable[Mapping[str, Any]],
    split: str = "test",
    measures: Sequence[str] = HEADLINE,
    group: str = "",
) -> pd.DataFrame:
    """One row for the base, each control and each way of training, one column a measure: value (low to high).

    Args:
        group: a domain, `instructions`, `goal`, or what is new about held-out tools (`new:name`), or "" for all tasks.
    """
    records = list(records)
    calls: dict[str, list[float]] = {}
    for record in of_kind("train", records):
        calls.setdefault(_title(record), []).append(record["totals"]["environment_calls"])
    lines = {}
    for title, some in cells(records, split).items():
        line: dict[str, Any] = {"runs": len(some)}
        for measure in measures:
            line[measure] = _words(resampled(some, measure, group))
        made = calls.get(title)
        line["environment_calls"] = f"{sum(made) / len(made):,.0f}" if made else "-"
        lines[title] = line
    return pd.DataFrame(lines).T.rename_axis("arm") if lines else pd.DataFrame()


def _words(spread: np.ndarray) -> str:
    value, low, high = value_and_interval(spread)
    return "-" if math.isnan(value) else f"{value:.3f} ({low:.3f} to {high:.3f})"


def gain(
    found: Mapping[str, Cells], title: str, against: str, measure: str, group: str = "", resamples: int = 1000
) -> np.ndarray:
    """(this - base) over (another - base), as a column of `resampled`, over the bases and seeds that both have.

    Args:
        found: from `cells`.
        title: of a way of training or a control.
        against: the title of what stands for the whole gain.
    """
    one, other, base = found[title], found[against], found[CONTROLS["base"]]
    # A control has no seeds: it is compared with all runs of its base. Two ways are compared where both were run.
    shared = [key for key in one if key in other]
    bases = {key[0] for key in (shared or one)}
    if shared:
        one, other = ({key: some[key] for key in shared} for some in (one, other))
    other = {key: rows for key, rows in other.items() if key[0] in bases}
    start = resampled({(name, 0): base[name, 0] for name in sorted(bases)}, measure, group, resamples)
    top, whole = (resampled(some, measure, group, resamples) - start for some in (one, other))
    with np.errstate(invalid="ignore", divide="ignore"):
        share: np.ndarray = top / whole
    return share


def worst(records: Iterable[Mapping[str, Any]], title: str, split: str = "test") -> pd.Series:
    """The worst run of a way of training for each measure: a claim for every seed rests on it."""
    each = cells(records, split).get(title, {}).items()
    found = {
        measure: [float(resampled({key: rows}, measure, resamples=0)[0]) for key, rows in each]
        for measure in MEASURES
    }
    rises = ("wrong_writes", "pessimism")
    return pd.Series({m: (max if m in rises else min)(v, default=math.nan) for m, v in found.items()})


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of the seeds with its 95 % interval (Student's t); the ends are NaN for a single seed."""
    column = pd.Series(values, dtype=float).dropna()
    mean, count = float(column.mean()), len(column)
    if count < 2:
        return mean, math.nan, math.nan
    half = float(student.ppf(0.975, count - 1) * column.std() / math.sqrt(count))
    return mean, mean - half, mean + half


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


def main_tables(folder: Path | None = None) -> str:
    """Everything that was measured, on test tasks and on tools that are new in each way, as markdown."""
    records = load_records(folder)
    if not cells(records, "test"):
        return ""
    measures = [m for m in MEASURES if m not in ("rehearsed_success", "wm2real", "consistency")]
    parts = ["**Test tasks**", markdown(table(records, "test", measures))]
    for what, words in NEWS.items():
        frame = table(
            records, "held_out", ("bearing", "idle", "fidelity", "contents", "pessimism"), f"new:{what}"
        )
        parts += [f"**Held-out tools: {words}**", markdown(frame.drop(columns="environment_calls"))]
    return "\n\n".join(parts)


def gain_tables(folder: Path | None = None) -> str:
    """What share of the gain each control and way of training recovers, as markdown."""
    records = load_records(folder)
    titles = {r["arm"]: r["title"] for r in of_kind("train", records)}
    if "rehearsal" not in titles or "execute" not in titles:
        return ""
    columns = {
        "fidelity, of the gain by world rehearsal": ("test", "fidelity", titles["rehearsal"]),
        "the same on held-out tools": ("held_out", "fidelity", titles["rehearsal"]),
        "real success, of the gain by the environment": ("test", "real_success", titles["execute"]),
    }
    found = {split: cells(records, split) for split in ("test", "held_out")}
    lines = {
        title: {
            head: "1" if title == against else _words(gain(found[split], title, against, measure))
            for head, (split, measure, against) in columns.items()
        }
        for title in found["test"]
        if title != CONTROLS["base"]
    }
    return markdown(pd.DataFrame(lines).T.rename_axis("arm"))


FRONT = ("rehearsal", "execute", "grounded")
"""The arms that the front page shows."""


def front_table(folder: Path | None = None) -> str:
    """The base, one scalar, and the arms of `FRONT` on test tasks, in short, as markdown."""
    frame = table(load_records(folder), measures=("real_success", "fidelity", "bearing", "error_recall"))
    shown = [CONTROLS["base"], CONTROLS["scalar"], *(ARMS[name].title for name in FRONT)]
    return markdown(frame.loc[[title for title in shown if title in frame.index]]) if len(frame) else ""


def world_tables(folder: Path | None = None) -> str:
    """Success in the real world and in the policy's own rehearsed one, as markdown made from the records alone."""
    records = load_records(folder)
    measures = ("real_success", "rehearsed_success", "wm2real", "consistency")
    parts = []
    for split, title in (("test", "Test tasks"), ("held_out", "Held-out tools")):
        frame = table(records, split, measures)
        if len(frame):
            parts += [f"**{title}**", markdown(frame[["runs", *measures]][frame.wm2real != "-"])]
    return "\n\n".join(parts)


def detail_tables(folder: Path | None = None) -> str:
    """The ways of training by domain (base and world rehearsal alone) and by kind of task, as markdown."""
    records = load_records(folder)
    shown = [r for r in records if r.get("kind") == "controls" or r.get("arm") == "rehearsal"]
    groups = {
        "By domain, test tasks": (shown, "test", list(DOMAINS)),
        "By domain, held-out tools": (shown, "held_out", list(DOMAINS)),
        "By kind of task, test tasks": (records, "test", ["instructions", "goal"]),
    }
    left_out = [title for name, title in CONTROLS.items() if name != "base"]
    parts = []
    for heading, (some, split, names) in groups.items():
        lines = {
            f"{name}, {arm}": row[list(HEADLINE)]
            for name in names
            for arm, row in table(some, split, group=name).iterrows()
            if arm not in left_out
        }
        if lines:
            parts += [f"**{heading}**", markdown(pd.DataFrame(lines).T.rename_axis("part"))]
    return "\n\n".join(parts)


def demo_table(records: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """What the recorded demos brought: before, after and the change, one row a domain and metric."""
    demos: dict[str, list[dict[str, Any]]] = {}
    for record in of_kind("demo", records):
        demos.setdefault(f"{record['domains'][0]}, {record['config']['steps']} steps", []).append(record)
    lines = []
    for title, runs in demos.items():
        for metric in MEASURES:
            before, scalar, after = (
                [r[when][metric][0] for r in runs] for when in ("before", "scalar", "after")
            )
            line: dict[str, Any] = {"demo": title, "seeds": len(runs), "metric": metric}
            line |= {
                "before": f"{before[0]:.3f}",
                "one scalar": f"{scalar[0]:.3f}",
                "after": with_interval(after, share=metric not in COUNTS),
            }  # every demo starts from the base
            line["change"] = with_interval([b - a for a, b in zip(before, after, strict=True)])
            lines.append(line)
    return pd.DataFrame(lines).set_index("demo") if lines else pd.DataFrame()


def demo_tables(folder: Path | None = None) -> str:
    """The recorded demos, as markdown."""
    demos = demo_table(load_records(folder))
    return markdown(demos) if len(demos) else ""


PROBED = ("fidelity", "optimism", "validity", "leaf_initial", "leaf_history", "leaf_hidden", "state_f1")


def probe_table(records: Iterable[dict[str, Any]], split: str = "test") -> pd.DataFrame:
    """The full probe (half of the calls mutated), one row a way of training; below, the trivial baselines."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if split in record.get("probe", {}):
            rows.setdefault(_title(record), []).append(record["probe"][split])
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
            shown = {c: "-" if values[m] is None else f"{values[m]:.3f}" for m, c in columns.items()}
            lines[f"baseline: {name}"] = {"seeds": "-", **shown}
    return pd.DataFrame(lines).T.fillna("-").rename_axis("arm") if lines else pd.DataFrame()


def rules_table(records: Iterable[dict[str, Any]], split: str = "test") -> pd.DataFrame:
    """Error recall by the rule that is broken, one column a way of training."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if split in record.get("probe", {}):
            rows.setdefault(_title(record), []).append(record["probe"][split]["rules"])
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
