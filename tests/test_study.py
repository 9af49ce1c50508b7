"""Recorded runs: what a record holds, runs that are interrupted, and the tables made from records alone."""

from __future__ import annotations

import importlib.metadata
import json
import math
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from envace_lite import fidelity, paths, train
from envace_lite.evaluate import METRICS, evaluate
from envace_lite.experiments import arms
from envace_lite.experiments.arms import (
    ARMS,
    HEADLINE,
    OBSERVED,
    by_group,
    load_records,
    run_arm,
    small_eval,
)
from envace_lite.experiments.records import KINDS, RecordError, of_kind, versions, write_record
from envace_lite.experiments.tables import (
    PROBED,
    demo_table,
    mean_interval,
    probe_table,
    ranks_table,
    rules_table,
    table,
    with_interval,
)
from envace_lite.model.checkpoint import CheckpointError
from envace_lite.model.policy import Policy, new_policy
from envace_lite.train import TrainConfig
from envace_lite.world import DOMAINS, Task, TaskFileError
from envace_lite.world.shipped import shipped_tasks
from helpers import copied, find_task

SMALL = TrainConfig(
    steps=5,
    prompts=4,
    group_size=4,
    lr=1e-2,
    warmup=1,
    lora_rank=4,
    temperature=1.1,
    observe_every=2,
    save_every=2,
)
Lessons = list[tuple[Task, list[dict[str, Any]]]]


@pytest.fixture(autouse=True)
def few_tasks(lessons: Lessons, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """Six tasks stand for every split; records and checkpoints go to a folder of the test."""
    tasks = [task for task, _ in lessons]

    def chosen(domains: Any, split: str, limit: int | None = None) -> list[Task]:
        return [task for name in domains for task in tasks if task.domain == name][:limit]

    monkeypatch.setattr(arms, "shipped_tasks", chosen)
    monkeypatch.setattr(paths, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(paths, "WORK", tmp_path / "work")
    return tasks


def run(policy: Policy, arm: str, **changes: Any) -> dict[str, Any]:
    """Run an arm on two domains and return the record that was written."""
    config = replace(SMALL, **changes)
    run_arm(copied(policy), arm, 3, config, domains=["retail", "finance"], command="envace train", name="run")
    return read(paths.RUNS / "run.json")


def read(path: Path) -> dict[str, Any]:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    return loaded


def timeless(record: dict[str, Any]) -> dict[str, Any]:
    """A record without what may differ between two runs of the same command."""
    totals = {key: value for key, value in record["totals"].items() if key != "seconds"}
    return {**record, "date": None, "totals": totals}


# Records ---------------------------------------------------------------------------------------------------


def test_a_record_is_stamped(tmp_path: Path) -> None:
    path = write_record(
        "some-run", {"command": "envace train --seed 3", "seed": 3}, tmp_path / "new" / "folder"
    )
    assert path == tmp_path / "new" / "folder" / "some-run.json"
    record = read(path)
    assert record["name"] == "some-run"
    assert (record["command"], record["seed"]) == ("envace train --seed 3", 3)
    assert abs((date.today() - date.fromisoformat(record["date"])).days) <= 1
    assert record["versions"] == versions()
    assert record["versions"]["torch"] == importlib.metadata.version("torch")
    assert write_record("other", {}).parent == paths.RUNS


@pytest.mark.parametrize("arm", ["rehearsal", "execute"])
def test_a_run_is_recorded(apt: Policy, arm: str) -> None:
    trained, returned = run_arm(copied(apt), arm, 3, SMALL, command=f"envace train --arm {arm}", workers=2)
    record = read(paths.RUNS / f"{arm}-3.json")
    assert record["kind"] == "train"
    assert record["command"] == f"envace train --arm {arm}"
    assert (record["arm"], record["title"], record["seed"]) == (arm, ARMS[arm].title, 3)
    assert record["domains"] == list(DOMAINS)
    assert record["config"] == asdict(replace(SMALL, seed=3))
    assert {"date", "versions", "name"} <= record.keys()
    assert [row["step"] for row in record["curve"]] == [1, 5]
    assert max(row["grad_norm"] for row in record["curve"]) > 0
    assert [row["step"] for row in record["observed"]] == [0, 2, 4]
    depths = {f"fidelity_depth_{depth}" for depth in range(4)}
    unfamiliar = {"held_out_fidelity", "held_out_error_recall"}
    assert (
        {"step", *OBSERVED} | unfamiliar
        <= set(record["observed"][0])
        <= {"step", *OBSERVED} | unfamiliar | depths
    )
    assert record["totals"]["tokens"] > 1000
    assert record["totals"]["seconds"] > 0
    if arm == "rehearsal":
        assert record["totals"]["environment_calls"] == 0
    else:
        made = (
            sum(row["calls"] for row in record["curve"]) / 2 * SMALL.prompts * SMALL.group_size * SMALL.steps
        )
        assert record["totals"]["environment_calls"] == pytest.approx(made, rel=0.5)
    for split in ("test", "held_out"):
        assert set(record["results"][split]) == {"all", *DOMAINS, "instructions", "goal"}
        for metrics in record["results"][split].values():
            assert set(metrics) == set(METRICS)
        assert set(record["probe"][split]["metrics"]) == set(fidelity.PAIR_METRICS)
        assert set(record["probe"][split]["missing_rules"]) <= set(record["probe"][split]["rules"])
    assert returned == {key: value for key, value in record.items() if key in returned}
    report = evaluate(trained, arms.shipped_tasks(DOMAINS, "test"))
    assert record["results"]["test"] == by_group(report)


def test_seeds_and_arms_differ(apt: Policy) -> None:
    """What an arm changes reaches the configuration, and each run has a file of its own."""
    for arm, seed in (("rehearsal", 0), ("rehearsal", 1), ("act_only", 0)):
        config = replace(SMALL, steps=1, observe_every=9)
        run_arm(copied(apt), arm, seed, config, domains=["finance"], command="")
    records = {path.stem: read(path) for path in paths.RUNS.iterdir()}
    assert set(records) == {"rehearsal-0", "rehearsal-1", "act_only-0"}
    assert [records[name]["config"]["train_rehearse"] for name in ("rehearsal-0", "act_only-0")] == [
        True,
        False,
    ]
    assert records["rehearsal-0"]["curve"] != records["rehearsal-1"]["curve"]


@pytest.mark.parametrize("arm", list(ARMS))
def test_every_arm_names_what_exists(arm: str) -> None:
    way = ARMS[arm]
    assert way.reward in arms.REWARDS
    replace(SMALL, **dict(way.changes))
    assert way.responder().environment_calls == 0


def test_only_some_domains(apt: Policy, few_tasks: list[Task]) -> None:
    config = replace(SMALL, steps=1, observe_every=9)
    _, record = run_arm(copied(apt), "rehearsal", 0, config, domains=["finance"], command="")
    assert set(record["results"]["test"]) <= {"all", "finance", "instructions", "goal"}
    assert record["results"]["test"]["all"] == record["results"]["test"]["finance"]


@pytest.mark.any_tokens
def test_the_observer_measures_the_policy_as_it_is(apt: Policy, tiny: Policy, few_tasks: list[Task]) -> None:
    known, random = (small_eval(few_tasks)(0, policy, []) for policy in (apt, tiny))
    report = evaluate(apt, few_tasks)
    assert {m: known[m] for m in OBSERVED} == {m: round(report.value(m), 4) for m in OBSERVED}
    assert known["fidelity_depth_1"] == round(fidelity.by_depth(report.pairs).fidelity[1], 4)
    assert known["real_success"] == 1.0
    assert random["real_success"] == 0.0


def test_what_could_not_be_counted_is_none(apt: Policy) -> None:
    """A task that no tool fits has no call, so there is nothing to probe."""
    task = find_task("functions", "no_tool")
    cells = by_group(evaluate(apt, [task]))["all"]
    assert cells["real_success"] == [1.0, 1.0, 1.0]
    assert cells["fidelity"] == cells["optimism"] == [None, None, None]


def test_what_could_not_be_observed_is_still_json(apt: Policy) -> None:
    """`NaN` is a word that other readers of JSON refuse."""
    observed = small_eval([find_task("functions", "no_tool")])(0, apt, [])
    assert observed["real_success"] == 1.0
    read(write_record("run", {"observed": [{"step": 0, **observed}]}))


def test_shipped_tasks_are_limited_by_domain() -> None:
    tasks = shipped_tasks(["retail", "finance"], "test", 3)
    assert [task.id for task in tasks] == [
        f"{name}-test-000{i}" for name in ("retail", "finance") for i in range(3)
    ]
    with pytest.raises(TaskFileError, match=r"retail\.tset\.jsonl"):
        shipped_tasks(["retail"], "tset")


# Interrupted -----------------------------------------------------------------------------------------------


def interrupt(monkeypatch: pytest.MonkeyPatch, place: str, after: int) -> None:
    """Let a part of a run raise `KeyboardInterrupt` the next time after so many times."""
    count = 0

    def interrupting(original: Callable[..., Any]) -> Callable[..., Any]:
        def part(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count > after:
                raise KeyboardInterrupt
            return original(*arguments, **options)

        return part

    module = train if place in ("rollout", "update") else arms
    monkeypatch.setattr(module, place, interrupting(getattr(module, place)))


@pytest.fixture(scope="module")
def whole_records() -> dict[str, dict[str, Any]]:
    """Records of runs that were not interrupted, by arm."""
    return {}


@pytest.mark.any_tokens
@pytest.mark.parametrize(
    ("arm", "place", "after"),
    [
        ("rehearsal", "rollout", 0),
        ("execute", "update", 3),
        ("execute", "evaluate", 3),
        ("full", "update", 2),
        ("full", "evaluate_splits", 0),
    ],
)
def test_an_interrupted_run_is_continued(
    apt: Policy,
    whole_records: dict[str, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arm: str,
    place: str,
    after: int,
) -> None:
    """The record is that of an uninterrupted run, to the last digit and environment call.

    `evaluate` is what the observer calls: before the first step, and then at steps 2 and 4.
    """
    if arm not in whole_records:
        whole_records[arm] = run(apt, arm)
        monkeypatch.setattr(paths, "WORK", tmp_path / "again")
        (paths.RUNS / "run.json").unlink()
    with monkeypatch.context() as patch:
        interrupt(patch, place, after)
        with pytest.raises(KeyboardInterrupt):
            run(apt, arm)
    assert not (paths.RUNS / "run.json").exists()
    torch.manual_seed(after)
    assert timeless(run(apt, arm)) == timeless(whole_records[arm])


def test_a_finished_run_is_not_trained_again(apt: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(apt, "rehearsal", steps=1)
    interrupt(monkeypatch, "rollout", 0)
    assert run(apt, "rehearsal", steps=1) == {**first, "date": read(paths.RUNS / "run.json")["date"]}


def test_a_run_is_not_continued_with_another_configuration(apt: Policy) -> None:
    run(apt, "rehearsal", steps=1)
    with pytest.raises(CheckpointError, match="delete it or choose another folder"):
        run(apt, "rehearsal", steps=1, lr=2e-2)


def separate(apt: Policy, arm: str, fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run under the name of a finished one is refused, or it is what it would have been alone."""
    try:
        mixed = run(apt, arm, steps=1)
    except CheckpointError as error:
        assert "delete it" in str(error)  # noqa: PT017 (refusing is one of two good ends)
        return
    monkeypatch.setattr(paths, "WORK", fresh)
    assert timeless(mixed) == timeless(run(apt, arm, steps=1))


def test_a_run_is_not_continued_with_another_base(
    apt: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The adapters of one base would be nonsense on another, and the record would not say so."""
    run(apt, "rehearsal", steps=1)
    separate(new_policy(seed=1, width=32, layers=2, heads=2), "rehearsal", tmp_path / "fresh", monkeypatch)


@pytest.mark.parametrize("arm", ["end_at_error", "execute"])
def test_a_run_is_not_continued_in_another_way(
    apt: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arm: str
) -> None:
    """The same configuration under another reward or responder is another run."""
    monkeypatch.setattr(arms, "evaluate_splits", lambda *_: {})
    run(apt, "rehearsal", steps=1)
    separate(apt, arm, tmp_path / "fresh", monkeypatch)


# Reading records -------------------------------------------------------------------------------------------


def test_records_are_read_in_order(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        write_record(name, {"seed": 1}, tmp_path)
    (tmp_path / "notes.txt").write_text("no record", encoding="utf-8")
    assert [record["name"] for record in load_records(tmp_path)] == ["a", "b", "c"]
    assert load_records(tmp_path / "nowhere") == []


@pytest.mark.parametrize(
    "data",
    [b"", b'{"name": "x", "seed"', b"\xff\xfe\x00", b"<<<<<<< HEAD\n{}\n", b"[]", b"null", b"3"],
    ids=["empty", "cut off", "not text", "merge conflict", "a list", "null", "a number"],
)
def test_a_broken_record_is_named(tmp_path: Path, data: bytes) -> None:
    write_record("good", {"seed": 1}, tmp_path)
    (tmp_path / "rehearsal-1.json").write_bytes(data)
    with pytest.raises(RecordError, match=r"rehearsal-1\.json is not a record.*run its command again"):
        load_records(tmp_path)


# Tables ----------------------------------------------------------------------------------------------------


def record(value: float | None, seed: int = 0, title: str = "some way", **changes: Any) -> dict[str, Any]:
    """A hand-made record: every metric has the same value, and half of it in the domain `retail`."""
    metrics = {metric: [value] * 3 for metric in METRICS}
    halved = {metric: [value and value / 2] * 3 for metric in METRICS}
    base = {
        "kind": "train",
        "title": title,
        "seed": seed,
        "domains": list(DOMAINS),
        "config": asdict(replace(TrainConfig(), seed=seed)),
        "totals": {"seconds": 60.0 * (seed + 1), "tokens": 9, "environment_calls": 1000 * seed},
        "results": {"test": {"all": metrics, "retail": halved}, "held_out": {"all": halved}},
    }
    return {**base, **changes}


THREE = [record(value, seed) for seed, value in enumerate((0.5, 0.6, 0.7))]


def test_a_table_of_three_seeds() -> None:
    """The interval by scipy: 0.6 +- t(0.975, 2) * 0.1 / sqrt(3)."""
    low, high = stats.t.interval(0.95, 2, loc=0.6, scale=stats.sem([0.5, 0.6, 0.7]))
    assert (round(low, 3), round(high, 3)) == (0.352, 0.848)
    frame = table(THREE)
    assert frame.index.tolist() == ["some way"]
    row = frame.loc["some way"]
    assert row["seeds"] == 3
    assert [row[metric] for metric in HEADLINE] == ["0.600 (0.352 to 0.848)"] * len(HEADLINE)
    assert row["environment_calls"] == "1,000"
    assert table(THREE, domain="retail").loc["some way", "fidelity"] == "0.300 (0.176 to 0.424)"
    assert table(THREE, split="held_out").loc["some way", "fidelity"] == "0.300 (0.176 to 0.424)"
    assert [*table(THREE, metrics=["tool_f1"])] == ["seeds", "tool_f1", "environment_calls"]


def test_one_seed_has_no_interval() -> None:
    frame = table([*THREE, record(0.9, title="another way")])
    assert frame.loc["another way", "fidelity"] == "0.900"
    assert frame.loc["another way", "seeds"] == 1
    assert frame.loc["some way", "fidelity"] == "0.600 (0.352 to 0.848)"


def test_seeds_without_a_value_do_not_count_as_zero() -> None:
    frame = table([record(0.4, 0), record(None, 1), record(0.6, 2)])
    low, high = stats.t.interval(0.95, 1, loc=0.5, scale=stats.sem([0.4, 0.6]))
    assert low < 0 < 1 < high
    assert frame.loc["some way", "fidelity"] == "0.500 (0.000 to 1.000)"  # a share is cut at both ends
    assert with_interval([0.4, None, 0.6]) == f"0.500 ({low:.3f} to {high:.3f})"


def test_records_of_other_kinds_are_no_rows() -> None:
    others = [{"kind": "demo", "title": "some way", "before": {}}, {"kind": "bench", "result": {}}]
    assert table([*THREE, *others]).equals(table(THREE))
    assert table(others).empty
    assert table([]).empty
    assert table(THREE, domain="delivery").empty


def test_demos_are_rows_of_before_and_after() -> None:
    """The change is taken seed by seed; runs of another length stand apart."""

    def demo(after: float, steps: int = 60) -> dict[str, Any]:
        results = {
            "before": {key: [0.2, 0.1, 0.3] for key in HEADLINE},
            "after": {key: [after] for key in HEADLINE},
        }
        return {"kind": "demo", "domains": ["retail"], "config": {"steps": steps}, **results}

    frame = demo_table([demo(0.5), demo(0.7), *THREE, demo(0.9, steps=30)])
    rows = frame[frame.metric == "fidelity"]
    assert list(rows.index) == ["retail, 60 steps", "retail, 30 steps"]
    assert list(rows.before) == ["0.200", "0.200"]
    assert rows.after.iloc[0].startswith("0.600 (")
    assert rows.change.iloc[0].startswith("0.400 (")
    assert list(rows.seeds) == [2, 1]
    assert demo_table(THREE).empty


def test_an_evaluation_is_a_row_too() -> None:
    """`envace evaluate --name base` records results without any training."""
    base = {"kind": "evaluate", "title": "base", "domains": list(DOMAINS), "results": THREE[0]["results"]}
    frame = table([base, *THREE])
    assert frame.loc["base", "real_success"] == "0.500"
    assert frame.loc["base", "seeds"] == 1
    assert frame.loc["some way"].equals(table(THREE).loc["some way"])


@pytest.mark.parametrize(
    "changes",
    [{"domains": ["retail"]}, {"config": asdict(replace(TrainConfig(), steps=3))}],
    ids=["other domains", "fewer steps"],
)
def test_runs_of_another_size_are_not_averaged_with_the_study(changes: dict[str, Any]) -> None:
    """A short run of one's own, or one on a single domain, leaves the means of the study alone."""
    frame = table([*THREE, record(0.0, 7, **changes)])
    assert frame.loc["some way", "fidelity"] == table(THREE).loc["some way", "fidelity"]


# Intervals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seeds", [2, 3])
def test_the_interval_covers_the_true_mean_in_95_of_100_studies(seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    studies = 600
    covered = 0
    for _ in range(studies):
        _, low, high = mean_interval(list(rng.normal(0.7, 0.05, seeds)))
        covered += low <= 0.7 <= high
    low, high = stats.binom.interval(0.999, studies, 0.95)
    assert low <= covered <= high


VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=6)


@given(VALUES, st.randoms(use_true_random=False))
def test_intervals(values: list[float], rng: Any) -> None:
    mean, low, high = mean_interval(values)
    assert mean == pytest.approx(sum(values) / len(values), abs=1e-9)
    if len(values) == 1:
        assert math.isnan(low)
        assert math.isnan(high)
    else:
        assert low <= mean <= high
        half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
        assert high - mean == pytest.approx(half, abs=1e-9)
    mixed = [*values, math.nan]
    rng.shuffle(mixed)
    assert mean_interval(mixed) == pytest.approx((mean, low, high), abs=1e-9, nan_ok=True)


def test_no_value_has_no_mean() -> None:
    assert all(map(math.isnan, mean_interval([])))
    assert all(map(math.isnan, mean_interval([math.nan, math.nan])))


def test_numbers_in_a_table_are_numbers() -> None:
    pattern = re.compile(r"\d\.\d{3}( \(-?\d\.\d{3} to \d\.\d{3}\))?")
    for cell in table(THREE)[list(HEADLINE)].to_numpy().flatten():
        assert pattern.fullmatch(cell)


# Ranks -----------------------------------------------------------------------------------------------------


def test_ranks_are_recorded(apt: Policy, tiny: Policy, few_tasks: list[Task], tmp_path: Path) -> None:
    for name, policy in (("apt", apt), ("tiny", tiny)):
        copied(policy).save(tmp_path / name)
    folders = {"apt": tmp_path / "apt", "tiny": tmp_path / "tiny"}
    frame = arms.record_ranks(
        folders, ["apt"], list(DOMAINS), 3, command="python -m envace_lite.experiments ranks"
    )
    assert frame.loc["apt", "real"] == frame.loc["apt", "apt"] == 1.0
    assert frame.loc["tiny", "real"] == frame.loc["tiny", "apt"] == 0.0
    record = read(paths.RUNS / "ranks.json")
    assert record["kendall_tau"] == {"apt": 1.0}
    text = ranks_table(arms.load_records())
    assert "| apt | 1.000 | 1.000 |" in text
    assert "| Kendall's tau with the real order | - | 1.00 |" in text
    assert ranks_table([]) == ""


# Tables of the probe ---------------------------------------------------------------------------------------


def probed(title: str, seed: int, fidelity_: float, lacks: list[str]) -> dict[str, Any]:
    """A record with the parts that the tables of the probe read."""
    metrics = {m: {"value": fidelity_, "low": 0.0, "high": 1.0} for m in PROBED}
    part = {
        "metrics": metrics | {"leaf_hidden": {"value": None, "low": None, "high": None}},
        "baselines": {"always_success": dict.fromkeys(PROBED, 0.0) | {"leaf_hidden": None}},
        "decision_agreement": 0.5,
        "calibration_error": 0.25,
        "missing_rules": lacks,
        "rules": {"status": {"errors": 7, "recall": fidelity_}},
    }
    return {"title": title, "seed": seed, "domains": list(DOMAINS), "probe": {"test": part}}


def test_the_tables_of_the_probe() -> None:
    records = [
        probed("mine", 0, 0.4, ["type"]),
        probed("mine", 1, 0.6, []),
        probed("other", 0, 0.1, ["date", "type"]),
    ]
    table = probe_table(records)
    assert table.loc["mine", "fidelity, full probe"].startswith("0.500 (")
    assert table.loc["mine", "rules it lacks"] == "type; none"
    assert table.loc["other", "fidelity, full probe"] == "0.100"
    assert table.loc["baseline: always_success", "optimism"] == "0.000"
    assert table.loc["baseline: always_success", "leaf_hidden"] == "-"
    by_rule = rules_table(records)
    assert by_rule.loc["status", ["errors", "other"]].tolist() == ["7", "0.100"]
    assert probe_table([]).empty
    assert rules_table(records, "held_out").empty


def test_a_record_without_its_keys_is_named(tmp_path: Path) -> None:
    write_record("whole", {"kind": "bench", "command": "", "seed": 0, "result": {}}, tmp_path)
    write_record("mine", {"kind": "of my own", "command": "", "seed": 0}, tmp_path)
    assert [r["name"] for r in of_kind("bench", load_records(tmp_path))] == ["whole"]
    write_record("broken", {"kind": "bench", "command": "", "seed": 0}, tmp_path)
    with pytest.raises(
        RecordError, match=r"broken\.json is not a record \(one of the kind 'bench' has result\)"
    ):
        load_records(tmp_path)


def test_every_shipped_record_is_of_a_known_kind() -> None:
    assert {record["kind"] for record in load_records()} <= set(KINDS)
