"""The study of private rehearsal: cells, records that go on where they stopped, the figure, the two commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import pytest

import programs
from envace_lite import paths
from envace_lite.evaluate import deploy
from envace_lite.experiments import arms, deliberate, plots, self_evaluation
from envace_lite.experiments.arms import load_records
from envace_lite.experiments.deliberate import KINDS, MEASURED, as_frame, run_deliberate, summary, tell_apart
from envace_lite.experiments.deliberate_tables import (
    AFTER,
    curve,
    gains,
    misled_table,
    short_table,
    tables,
    ways_table,
)
from envace_lite.experiments.records import RecordError
from envace_lite.experiments.ways import CONTROLS, METHODS, USUAL, make
from envace_lite.model.policy import Policy
from envace_lite.rehearsal.episode import Episode, Plain
from envace_lite.rehearsal.scorers import CONTENT
from envace_lite.reward import task_success
from envace_lite.world import Task, shipped

QUICK = partial(self_evaluation.fit_self_evaluation, steps=2)
"""A verdict that has hardly learned anything."""
Lessons = list[tuple[Task, list[dict[str, Any]]]]


@pytest.fixture(autouse=True)
def few_tasks(lessons: Lessons, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lessons stand for every split."""
    tasks = [task for task, _ in lessons]

    def chosen(domains: Sequence[str], split: str, limit: int | None = None) -> list[Task]:
        return [task for task in tasks if task.domain in domains][:limit]

    for module in (arms, deliberate, shipped):
        monkeypatch.setattr(module, "shipped_tasks", chosen)
    for module in (self_evaluation, deliberate):
        monkeypatch.setattr(module, "fit_self_evaluation", QUICK)


def run(apt: Policy, folder: Path, **options: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "title": "apt",
        "command": "python -m envace_lite.experiments deliberate",
        "budgets": (0, 2),
    }
    return run_deliberate("apt", apt, folder=folder, **{**settings, **options})


def timeless(record: dict[str, Any]) -> dict[str, Any]:
    cells = {key: {k: v for k, v in cell.items() if k != "seconds"} for key, cell in record["cells"].items()}
    return {**record, "cells": cells}


@pytest.fixture(scope="module")
def whole(apt: Policy, lessons: Lessons, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A whole study in small."""
    tasks = [task for task, _ in lessons]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deliberate, "shipped_tasks", lambda *_: tasks)
        patch.setattr(deliberate, "fit_self_evaluation", QUICK)
        return run(apt, tmp_path_factory.mktemp("runs"))


def test_every_method_at_every_budget(whole: dict[str, Any]) -> None:
    wanted = {"plain-0", "greedy-0"} | {f"{name}-{n}" for name in USUAL[2:] for n in (2,)}
    assert whole["cells"].keys() == wanted
    for cell in whole["cells"].values():
        for split in ("test", "held_out"):
            results = cell["results"][split]
            assert results.keys() == {"all", *KINDS}
            for group in results.values():
                assert list(group) == list(MEASURED)
                assert all(low <= value <= high for value, low, high in group.values())


def test_plain_execution_without_sampling_is_the_evaluation(
    apt: Policy, lessons: Lessons, whole: dict[str, Any]
) -> None:
    frame = deploy(apt, [task for task, _ in lessons])[1]
    measured = whole["cells"]["greedy-0"]["results"]["test"]["all"]
    for metric in ("real_success", "wrong_writes", "committed_calls"):
        assert measured[metric][0] == pytest.approx(frame[metric].mean(), abs=1e-4)


def test_controls_spend_at_most_what_the_reference_did(whole: dict[str, Any]) -> None:
    for budget in (2,):
        for split in ("test", "held_out"):
            allowed = whole["cells"][f"parallel-{budget}"]["allowance"][split]
            assert allowed > 0
            for control in CONTROLS:
                assert 0 < whole["cells"][f"{control}-{budget}"]["allowance"][split] <= allowed


def test_a_study_goes_on_where_it_stopped(
    apt: Policy, whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    as_frame = deliberate.as_frame

    def interrupted(episodes: Sequence[Episode]) -> pd.DataFrame:
        ran.append(len(episodes))
        if len(ran) == 6:
            raise KeyboardInterrupt
        return as_frame(episodes)

    monkeypatch.setattr(deliberate, "as_frame", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(apt, tmp_path)
    assert len(load_records(tmp_path)[0]["cells"]) == 2
    monkeypatch.setattr(deliberate, "as_frame", as_frame)
    assert timeless(run(apt, tmp_path)) == timeless(whole)
    monkeypatch.setattr(deliberate, "as_frame", interrupted)  # nothing is left to run
    monkeypatch.setattr(deliberate, "tell_apart", interrupted)
    assert timeless(run(apt, tmp_path)) == timeless(whole)


@pytest.mark.parametrize("other", [{"temperature": 0.5}, {"limit": 1}, {"seed": 1}, {"domains": ["orders"]}])
def test_a_study_with_other_settings_is_another(apt: Policy, tmp_path: Path, other: dict[str, Any]) -> None:
    run(apt, tmp_path, methods=("greedy",))
    with pytest.raises(RecordError, match="other settings; delete it or choose another name"):
        run(apt, tmp_path, methods=("greedy",), **other)


def test_a_study_of_another_policy_is_another(apt: Policy, tiny: Policy, tmp_path: Path) -> None:
    run(apt, tmp_path, methods=("greedy",))
    with pytest.raises(RecordError, match="another policy"):
        run(tiny, tmp_path, methods=("greedy",))


def test_the_interval_is_over_the_tasks() -> None:
    rows = {metric: [0.0, 1.0] * 50 for metric in MEASURED}
    frame = pd.DataFrame({**rows, "kind": ["goal"] * 100, "rests": [False] * 100})
    value, low, high = summary(frame)["all"]["real_success"]
    assert value == 0.5
    assert (low, high) == pytest.approx((0.4, 0.6), abs=0.02)  # 1.96 * sqrt(0.25 / 100)
    assert "instructions" not in summary(frame)


def test_ways_by_name(apt: Policy) -> None:
    for name in METHODS:
        way = make(name, apt, 2, 30, self_evaluation=lambda: lambda continuations: [0.0] * len(continuations))
        assert way.temperature == (0.0 if name == "greedy" else 1.0)
    ways: dict[str, Any] = {name: make(name, apt, 2, 30) for name in METHODS if name != "verdict"}
    scorers = {"parallel": "agreement", "likelihood": "likelihood", "no_errors": "no_errors"}
    for name, scorer in {
        **scorers,
        **dict.fromkeys(("judged", "sequential", "write"), "carried_out"),
    }.items():
        assert ways[name].scorer.__name__ == scorer
        assert ways[name].budget == 2
    turns = ways["sequential"]
    assert (turns.mode, turns.memory, turns.enough) == ("sequential", True, CONTENT)
    assert (ways["write"].when, ways["judged"].when) == ("write", "always")
    assert (ways["vote"].verified, ways["judged_vote"].verified) == (False, True)
    assert [ways[name].budget for name in CONTROLS] == [30] * len(CONTROLS)
    with pytest.raises(KeyError):
        make("luck", apt, 2)
    with pytest.raises(ValueError, match="needs a self-evaluation"):
        make("verdict", apt, 2)


def test_instructions_that_rest_on_a_response_are_a_group(apt: Policy, lessons: Lessons) -> None:
    frame = as_frame(Plain(apt).run([task for task, _ in lessons]))
    assert list(frame.rests) == [any(tag.startswith("rests:") for tag in task.tags) for task, _ in lessons]
    assert 0 < frame.rests.sum() < len(lessons)
    measured = summary(frame)["rests"]["committed_calls"][0]
    assert measured == pytest.approx(frame[frame.rests].committed_calls.mean(), abs=1e-4)


def test_how_well_scorers_tell_apart(apt: Policy, lessons: Lessons) -> None:
    """The label itself orders every pair rightly, its opposite none, and a constant half of them."""
    tasks = [task for task, _ in lessons]
    known: dict[str, Any] = {
        "label": lambda group: [task_success(t) for t in group],
        "opposite": lambda group: [-task_success(t) for t in group],
        "constant": lambda group: [0.0] * len(group),
    }
    assert tell_apart(apt, tasks, known) == {"label": 1.0, "opposite": 0.0, "constant": 0.5}
    assert tell_apart(apt, tasks, known, count=1) == dict.fromkeys(known)  # no pair


def made_up(seed: int, **success: float) -> dict[str, Any]:
    """One real success a cell, and half of it wrong writes; nothing on held-out tools."""
    cells = {}
    for key, value in success.items():
        method, _, budget = key.rpartition("_")
        metrics = {metric: [value, 0.0, 1.0] for metric in MEASURED} | {"wrong_writes": [value / 2, 0.0, 1.0]}
        groups = dict.fromkeys(("all", *KINDS), metrics)
        nothing = {metric: [0.0, 0.0, 0.0] for metric in MEASURED} | {"tokens": [64.0, 64.0, 64.0]}
        results = {"test": groups, "held_out": dict.fromkeys(groups, nothing)}
        cells[f"{method}-{budget}"] = {"method": method, "budget": int(budget), "results": results}
    return {"kind": "deliberate", "title": AFTER, "domains": ["orders"], "seed": seed, "cells": cells}


def test_gains_are_differences_seed_by_seed() -> None:
    """Seeds that differ much and gain the same have no interval to speak of."""
    records = [
        made_up(0, plain_0=0.1, judged_2=0.3, vote_2=0.2),
        made_up(1, plain_0=0.7, judged_2=0.9, vote_2=0.9),
    ]
    frame = gains(records, "test").set_index("beyond")
    assert frame.loc[METHODS["plain"], "real success, goals"] == "0.200 (0.200 to 0.200)"
    assert frame.loc[METHODS["plain"], "wrong writes, all"] == "0.100 (0.100 to 0.100)"
    assert frame.loc[METHODS["vote"], "real success, all"].startswith("0.050 (-")
    assert list(frame.index) == [METHODS["plain"], METHODS["vote"]]


def test_the_tables_hold_every_cell(whole: dict[str, Any]) -> None:
    assert len(ways_table([whole], "test")) == len(whole["cells"])
    frame = ways_table(
        [made_up(0, plain_0=0.25, judged_2=0.5), made_up(1, plain_0=0.75, judged_2=0.5)], "test"
    )
    assert list(frame.N) == [0, 2]
    assert frame["real success, goals"].iloc[0].startswith("0.500 (0.000 to 1.000)")
    text = tables([{**whole, "title": AFTER}])
    for words in (
        "test tasks",
        "held-out tools",
        "| carried out |",
        "When rehearsal misleads",
        METHODS["refine"],
    ):
        assert words in text
    assert set(ways_table([made_up(0, plain_0=0.25)], "held_out")["real success, goals"]) == {"0.000"}
    assert set(misled_table([made_up(0, judged_2=0.25)]).misled) == {"0.250"}
    assert METHODS["judged"] in short_table([made_up(0, judged_2=0.5)])
    assert short_table([]) == tables([]) == ""


@pytest.mark.parametrize("seeds", [1, 2])
def test_the_figure(whole: dict[str, Any], seeds: int) -> None:
    figure = plots.deliberation([whole] * seeds)
    assert [axes.get_title() for axes in figure.axes] == [
        f"{metric}, {title}" for metric in ("real success", "wrong writes a task") for title in KINDS.values()
    ]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [METHODS[name] for name in USUAL]
    looks = set()
    for container, name in zip(figure.axes[0].containers, USUAL, strict=True):
        line = container.lines[0]  # type: ignore[index]
        looks.add((line.get_color(), line.get_marker()))
        points = curve(whole, "real_success", kind="instructions")
        expected = list(points[points.method == name].value)
        assert list(line.get_ydata())[-len(expected) :] == pytest.approx(expected)
        assert (line.get_linestyle() == "--") == (name in CONTROLS)
    assert len(looks) == len(USUAL)  # none looks like another
    plt.close(figure)


def test_the_frame_leaves_self_refinement_out_and_says_so() -> None:
    record = made_up(0, plain_0=0.8, judged_2=0.9, refine_2=0.1)
    figure = plots.deliberation([record])
    axes = figure.axes[0]
    assert 0.5 < axes.get_ylim()[0] < 0.8
    assert [text.get_text() for text in axes.texts] == ["self-refinement, out of the frame: 0.10"]
    plt.close(figure)
    held_out = plots.deliberation([record], split="held_out")
    assert {float(y) for line in held_out.axes[0].lines for y in line.get_ydata()} == {0.0}  # type: ignore[union-attr]
    plt.close(held_out)


def test_the_figures_of_the_study(whole: dict[str, Any], tmp_path: Path) -> None:
    drawn = plots.draw_all([{**whole, "title": title} for title in (AFTER, "base", "another")], tmp_path)
    assert {path.stem for path in drawn} == {"deliberation", "deliberation_held_out", "deliberation_base"}


# The commands ------------------------------------------------------------------------------------------------


def envace(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    monkeypatch.setattr(sys, "argv", [])
    try:
        programs.run(*map(str, arguments))
    except SystemExit as end:
        if end.code:
            raise AssertionError(f"{end.code}\n{capsys.readouterr().err}") from end
    return capsys.readouterr().out


@pytest.fixture
def folder(apt: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paths, "RUNS", tmp_path / "runs")
    apt.save(tmp_path / "policy")
    return tmp_path / "policy"


@pytest.mark.parametrize("scorer", ["agreement", "verdict"])
def test_a_single_look(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], scorer: str
) -> None:
    arguments = ("--domain", "orders,bank", "--policy", folder, "--budget", 2, "--scorer", scorer)
    shown = envace(monkeypatch, capsys, "rehearse", *arguments)
    assert shown.startswith("3 tasks")
    for words in (
        "plain execution",
        "private rehearsal, N = 2",
        "self-consistency",
        "and the verifier",
        "irreversible_writes",
    ):
        assert words in shown
    assert f": {'imagined' if 'imagined `' in shown else scorer}" in shown
    assert "<Ledger:" in shown.splitlines()[-1]


def test_a_study_without_a_goal(
    folder: Path, lessons: Lessons, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    instructed = [task for task, _ in lessons if task.tags[0] == "instructions"]
    monkeypatch.setattr(deliberate, "shipped_tasks", lambda *_: instructed)
    options = ("--methods", "plain", "--budgets", "0")
    shown = envace(monkeypatch, capsys, "deliberate", "--policy", f"apt={folder}", *options)
    assert "apt, goals, real success\nno task of this kind" in shown


def test_a_study_from_the_shell(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "deliberate",
        "--policy",
        f"apt={folder}",
        "--methods",
        "plain,parallel,vote",
        "--budgets",
        "0,1",
    ]
    figure = tmp_path / "curves.png"
    shown = envace(monkeypatch, capsys, *command, "--figure", figure)
    assert "apt, goals, real success" in shown
    record = json.loads((tmp_path / "runs" / "deliberate-apt.json").read_text(encoding="utf-8"))
    assert list(record["cells"]) == ["plain-0", "parallel-1", "vote-1"]
    assert record["command"].startswith("python -m envace_lite.experiments deliberate --policy apt=")
    assert figure.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["rehearse", "--mode", "both"], "parallel, sequential"),
        (["rehearse", "--scorer", "luck"], "agreement, likelihood, no_errors, carried_out, verdict"),
        (["deliberate", "--policy", "x=y", "--methods", "luck"], "plain, greedy"),
        (["deliberate", "--policy", "x=y", "--budgets", "two"], "whole numbers"),
        (["deliberate", "--policy", "data/base"], "NAME=FOLDER"),
    ],
)
def test_mistakes(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    problem: str,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", [])
    with pytest.raises(SystemExit) as end:
        programs.run(*arguments)
    assert end.value.code == 2
    assert problem in " ".join(capsys.readouterr().err.replace("│", " ").split())
