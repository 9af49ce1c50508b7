"""Recorded runs: what a record holds, runs that are interrupted, and the tables made from records alone."""

from __future__ import annotations

import importlib.metadata
import json
import math
import re
from collections.abc import Callable, Sequence
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
from envace_lite.experiments import arms, ranks
from envace_lite.experiments.arms import ARMS, base_name, load_records, run_arm, run_name
from envace_lite.experiments.records import KINDS, RecordError, of_kind, versions, write_record
from envace_lite.experiments.rows import MEASURES, measure, pack, small_eval, unpack, value
from envace_lite.experiments.tables import (
    CONTROLS,
    HEADLINE,
    PROBED,
    cells,
    demo_table,
    gain,
    mean_interval,
    probe_table,
    ranks_table,
    resampled,
    rules_table,
    table,
    value_and_interval,
    with_interval,
    worst,
)
from envace_lite.model.checkpoint import CheckpointError
from envace_lite.model.policy import Policy, new_policy
from envace_lite.reward import end_at_error, task_success
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

    for module in (arms, ranks):
        monkeypatch.setattr(module, "shipped_tasks", chosen)
    monkeypatch.setattr(paths, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(paths, "WORK", tmp_path / "work")
    return tasks


def run(policy: Policy, arm: str, **changes: Any) -> dict[str, Any]:
    """Run an arm on two domains and return the record that was written."""
    config = replace(SMALL, **changes)
    run_arm(copied(policy), arm, 3, config, domains=["orders", "bank"], command="envace train", name="run")
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
    record = read(paths.RUNS / f"{arm}-base-3.json")
    assert record["kind"] == "train"
    assert record["command"] == f"envace train --arm {arm}"
    assert (record["arm"], record["title"], record["seed"]) == (arm, ARMS[arm].title, 3)
    assert (record["base"], record["domains"]) == ("base", list(DOMAINS))
    assert record["config"] == asdict(replace(SMALL, seed=3))
    assert {"date", "versions", "name"} <= record.keys()
    assert [row["step"] for row in record["curve"]] == [1, 5]
    assert max(row["grad_norm"] for row in record["curve"]) > 0
    assert [row["step"] for row in record["observed"]] == [0, 2, 4]
    assert set(record["observed"][0]) == {"step", *MEASURES, *(f"held_out_{name}" for name in MEASURES)}
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
        assert set(record["probe"][split]["metrics"]) == set(fidelity.PAIR_METRICS)
        assert set(record["probe"][split]["missing_rules"]) <= set(record["probe"][split]["rules"])
    assert returned == {key: value for key, value in record.items() if key in returned}
    assert record["rows"]["test"] == pack(measure(trained, arms.shipped_tasks(DOMAINS, "test")))


def test_seeds_and_arms_differ(apt: Policy) -> None:
    """What an arm changes reaches the configuration, and each run has a file of its own."""
    for arm, seed in (("rehearsal", 0), ("rehearsal", 1), ("act_only", 0)):
        config = replace(SMALL, steps=1, observe_every=9)
        run_arm(copied(apt), arm, seed, config, domains=["bank"], command="")
    records = {path.stem: read(path) for path in paths.RUNS.iterdir()}
    assert set(records) == {"rehearsal-base-0", "rehearsal-base-1", "act_only-base-0"}
    assert [
        records[name]["config"]["train_rehearse"] for name in ("rehearsal-base-0", "act_only-base-0")
    ] == [
        True,
        False,
    ]
    assert records["rehearsal-base-0"]["curve"] != records["rehearsal-base-1"]["curve"]


@pytest.mark.parametrize("arm", list(ARMS))
def test_every_arm_names_what_exists(arm: str, few_tasks: list[Task]) -> None:
    way = ARMS[arm]
    replace(SMALL, **dict(way.changes))
    assert way.responder().environment_calls == 0
    assert way.reward(few_tasks, 0).__call__
    assert len({other.title for other in ARMS.values()}) == len(ARMS)


def test_the_negative_control_differs_by_its_reward_alone() -> None:
    gamed, usual = ARMS["end_at_error"], ARMS["rehearsal"]
    assert gamed.reward([], 0) is end_at_error
    assert usual.reward([], 0) is ARMS["grounded"].reward([], 0) is task_success
    assert replace(gamed, title=usual.title, reward=usual.reward) == usual


def test_a_base_is_called_by_its_folder_or_by_the_run_that_made_it(tmp_path: Path) -> None:
    assert base_name(paths.BASE) == "base"
    assert base_name(tmp_path / "base-habits-1" / "policy") == "base-habits-1"


def test_the_name_of_a_run_says_what_is_unusual() -> None:
    assert run_name("execute", "base", 2) == "execute-base-2"
    assert run_name("execute", "mine", 0, ["bank"], 7) == "execute-mine-bank-7steps-0"


def test_only_some_domains(apt: Policy, few_tasks: list[Task]) -> None:
    config = replace(SMALL, steps=1, observe_every=9)
    _, record = run_arm(copied(apt), "rehearsal", 0, config, domains=["bank"], command="")
    count = sum(task.domain == "bank" for task in few_tasks)
    assert {len(column) for column in record["rows"]["test"].values()} == {count}
    assert cells([record], "test") == {}  # it is not averaged with runs on all domains


@pytest.mark.any_tokens
def test_the_observer_measures_the_policy_as_it_is(apt: Policy, tiny: Policy, few_tasks: list[Task]) -> None:
    known, random = (small_eval(few_tasks)(0, policy, []) for policy in (apt, tiny))
    rows = measure(apt, few_tasks)
    assert known == {name: round(value(rows, name), 4) for name in MEASURES}
    assert known["real_success"] == 1.0
    assert random["real_success"] == 0.0
    both = small_eval(few_tasks[:1], few_tasks)(0, apt, [])
    assert {name: both[f"held_out_{name}"] for name in MEASURES} == known


def test_what_could_not_be_observed_is_still_json(apt: Policy) -> None:
    """A task that no tool fits has no call, so there is nothing to probe; `NaN` is a word that others refuse."""
    observed = small_eval([find_task("home", "no_tool")])(0, apt, [])
    assert observed["real_success"] == 1.0
    assert math.isnan(observed["fidelity"])
    read(write_record("run", {"observed": [{"step": 0, **observed}]}))


def test_shipped_tasks_are_limited_by_domain() -> None:
    tasks = shipped_tasks(["orders", "bank"], "test", 3)
    assert [task.id for task in tasks] == [
        f"{name}-test-000{i}" for name in ("orders", "bank") for i in range(3)
    ]
    with pytest.raises(TaskFileError, match=r"orders\.tset\.jsonl"):
        shipped_tasks(["orders"], "tset")


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
        ("execute", "measure", 1),
        ("full", "update", 2),
        ("full", "probe_splits", 0),
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

    `measure` is what the trained policy is measured with, once for each split.
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
    monkeypatch.setattr(arms, "measured", lambda *_: {})
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


def rows_of(*right: int, goal: Any = (), **others: Any) -> dict[str, str]:
    """Rows of tasks whose pairs (one each) are told right or not; every column has the same numbers."""
    columns = {name: right for pair in MEASURES.values() for name in pair if name}
    columns |= {under: [1] * len(right) for _, under in MEASURES.values() if under and under != "real"}
    return pack({**columns, "goal": goal or [0] * len(right), "new:name": [0] * len(right), **others})


def run_of(*right: int, seed: int = 0, base: str = "base", title: str = "some way", **changes: Any) -> Any:
    """A hand-made record of one run; on held-out tools nothing is right."""
    about = {
        "kind": "train",
        "title": title,
        "arm": "rehearsal",
        "base": base,
        "seed": seed,
        "domains": list(DOMAINS),
        "config": asdict(replace(TrainConfig(), seed=seed)),
        "totals": {"seconds": 60.0, "tokens": 9, "environment_calls": 1000 * seed},
        "rows": {"test": rows_of(*right), "held_out": rows_of(*([0] * len(right)))},
    }
    return {**about, **changes}


def controls_of(of: str = "base", **right: Sequence[int]) -> dict[str, Any]:
    """A hand-made record of the controls."""
    rows = {name: rows_of(*right.get(name, right["base"])) for name in CONTROLS}
    return {"kind": "controls", "base": of, "rows": {"test": rows, "held_out": rows}}


THREE = [run_of(1, 1, 0, 0), run_of(1, 1, 1, 0, seed=1), run_of(1, 1, 1, 1, seed=2)]


def test_a_table_of_three_seeds() -> None:
    frame = table(THREE)
    assert frame.index.tolist() == ["some way"]
    row = frame.loc["some way"]
    assert row["runs"] == 3
    assert row["environment_calls"] == "1,000"
    assert {row[measure].split()[0] for measure in HEADLINE} == {"0.750"}
    assert table(THREE, "held_out").loc["some way", "fidelity"] == "0.000 (0.000 to 0.000)"
    assert [*table(THREE, measures=["bearing"])] == ["runs", "bearing", "environment_calls"]


def test_groups_of_tasks() -> None:
    """Four tasks, one a domain: the groups are the domains in their order, the kinds, and the tags."""
    record = run_of(1, 0, 1, 1, rows={"test": rows_of(1, 0, 1, 1, goal=[0, 1, 0, 1])})
    found = {
        group: table([record], group=group).loc["some way", "fidelity"][:5]
        for group in (*DOMAINS, "goal", "instructions", "new:name")
    }
    assert found == {
        **dict(zip(DOMAINS, ("1.000", "0.000", "1.000", "1.000"), strict=True)),
        "goal": "0.500",
        "instructions": "1.000",
        "new:name": "-",
    }


def test_what_was_not_measured_is_a_dash() -> None:
    """The oracle has no wrong writes: it is several samples."""
    rows = {name: text for name, text in rows_of(1, 1, 1, 1).items() if name != "wrong"}
    assert table([run_of(rows={"test": rows})]).loc["some way", "wrong_writes"] == "-"


@pytest.mark.parametrize(
    "changes",
    [{"domains": ["orders"]}, {"config": asdict(replace(TrainConfig(), steps=3))}],
    ids=["other domains", "fewer steps"],
)
def test_runs_of_another_size_are_not_averaged_with_the_study(changes: dict[str, Any]) -> None:
    """A short run of one's own, or one on a single domain, leaves the means of the study alone."""
    frame = table([*THREE, run_of(0, 0, 0, 0, seed=7, **changes)])
    assert frame.loc["some way", "fidelity"] == table(THREE).loc["some way", "fidelity"]


def test_records_of_other_kinds_are_no_rows() -> None:
    others = [{"kind": "demo", "title": "some way", "before": {}}, {"kind": "bench", "result": {}}]
    assert table([*THREE, *others]).equals(table(THREE))
    assert table(others).empty
    assert table([]).empty


def test_the_controls_stand_above_the_arms() -> None:
    frame = table([controls_of(base=[0, 0, 0, 0], scalar=[1, 0, 0, 0]), *THREE])
    assert frame.index.tolist() == [*CONTROLS.values(), "some way"]
    assert frame.loc[CONTROLS["scalar"], "fidelity"].startswith("0.250")
    assert frame.loc[CONTROLS["base"], "environment_calls"] == "-"


def some_cells(**columns: Sequence[int]) -> dict[tuple[str, int], dict[str, list[int]]]:
    """Cells of one base, by seed: seed0=..., seed1=..."""
    return {("base", int(name[4:])): unpack(rows_of(*right)) for name, right in columns.items()}


def test_an_interval_covers_tasks_seeds_and_bases() -> None:
    """Seeds that agree leave the spread over tasks; tasks that agree leave that over seeds, and over bases."""
    tasks = value_and_interval(resampled(some_cells(seed0=[1] * 50 + [0] * 50), "fidelity"))
    low, high = stats.binom.interval(0.95, 100, 0.5)
    assert tasks == (0.5, pytest.approx(low / 100, abs=0.02), pytest.approx(high / 100, abs=0.02))
    ones, zeros = [1] * 10, [0] * 10
    seeds = value_and_interval(resampled(some_cells(seed0=ones, seed1=zeros), "fidelity"))
    assert seeds == (0.5, 0.0, 1.0)
    (one,), (other,) = some_cells(seed0=ones).values(), some_cells(seed0=zeros).values()
    two = {("a", 0): one, ("b", 0): other}
    assert value_and_interval(resampled(two, "fidelity")) == (0.5, 0.0, 1.0)
    assert value_and_interval(resampled(some_cells(seed0=ones, seed1=ones), "fidelity")) == (1.0, 1.0, 1.0)


def test_the_gain_is_paired() -> None:
    """(policy - base) over (environment - base), on the bases and seeds that both have, with paired resamples."""
    half = [1, 0] * 20
    records = [
        controls_of(base=[0] * 40, scalar=[1, 0, 0, 0] * 10),
        run_of(*half, title="a way"),
        run_of(*([0] * 40), title="a way", seed=1),
        run_of(*([1] * 40), title="another"),
    ]
    found = cells(records, "test")
    paired = gain(found, "a way", "another", "fidelity")
    assert paired[0] == pytest.approx(0.5)  # seed 1 of the way has no counterpart
    assert gain(found, CONTROLS["scalar"], "another", "fidelity")[0] == pytest.approx(0.25)
    itself = gain(found, "a way", "a way", "fidelity")
    assert itself[~np.isnan(itself)] == pytest.approx(1.0)  # unpaired resamples would scatter
    assert worst(records, "a way")["fidelity"] == 0.0
    assert worst(records, "a way")["wrong_writes"] == 0.5


def test_demos_are_rows_of_before_and_after() -> None:
    """The change is taken seed by seed; runs of another length stand apart."""

    def demo(after: float, steps: int = 60) -> dict[str, Any]:
        results = {
            "before": {key: [0.2, 0.1, 0.3] for key in MEASURES},
            "scalar": {key: [0.3] for key in MEASURES},
            "after": {key: [after] for key in MEASURES},
        }
        return {"kind": "demo", "domains": ["orders"], "config": {"steps": steps}, **results}

    frame = demo_table([demo(0.5), demo(0.7), *THREE, demo(0.9, steps=30)])
    rows = frame[frame.metric == "fidelity"]
    assert list(rows.index) == ["orders, 60 steps", "orders, 30 steps"]
    assert list(rows.before) == ["0.200", "0.200"]
    assert rows.after.iloc[0].startswith("0.600 (")
    assert rows.change.iloc[0].startswith("0.400 (")
    assert list(rows.seeds) == [2, 1]
    assert demo_table(THREE).empty


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
    assert with_interval([0.4, None, 0.6], share=True) == "0.500 (0.000 to 1.000)"  # cut at both ends


# Ranks -----------------------------------------------------------------------------------------------------


def test_ranks_are_recorded(apt: Policy, tiny: Policy, few_tasks: list[Task], tmp_path: Path) -> None:
    for name, policy in (("apt", apt), ("tiny", tiny)):
        copied(policy).save(tmp_path / name)
    folders = {"apt": tmp_path / "apt", "tiny": tmp_path / "tiny"}
    frame = ranks.record_ranks(
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
    return {"title": title, "seed": seed, "domains": list(DOMAINS), "config": {}, "probe": {"test": part}}


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
