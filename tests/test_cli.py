"""The command line: help that teaches, mistakes that end with one helpful line, and whole runs in small."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import programs
from envace_lite import paths
from envace_lite.evaluate import METRICS
from envace_lite.experiments import arms, controls, tables
from envace_lite.experiments.arms import ARMS
from envace_lite.experiments.records import KINDS, read_record, write_record
from envace_lite.experiments.rows import GROUPS, MEASURES, pack, unpack, value
from envace_lite.experiments.shell import ELSEWHERE
from envace_lite.experiments.tables import CONTROLS
from envace_lite.model.compact import build_tokenizer, vocabulary
from envace_lite.model.policy import Policy, load_policy, new_policy
from envace_lite.pretraining import imitate
from envace_lite.pretraining.imitate import BASES, PretrainConfig
from envace_lite.train import TrainConfig
from envace_lite.world import DOMAINS, Domain, Task, draw, shipped
from helpers import EVERY_SPLIT, splits
from programs import APPS, COMMANDS, PROGRAM_OF

Lessons = list[tuple[Task, list[dict[str, Any]]]]
SHIPPED = paths.DATA / "tasks"


def blank(kind: str, **known: Any) -> dict[str, Any]:
    """A record of a kind with nothing in it but what is given."""
    empty: dict[str, Any] = {key: {} for key in KINDS[kind].keys}
    return {"kind": kind, **empty, "arm": "", **known}


@dataclass
class Done:
    """How a command ended: its exit code, and what it printed without the frame around an error."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """What was said about a mistake; progress bars are not about it."""
        lines = re.split(r"[\r\n]+", re.sub(r"[╭╮╰╯│─]", " ", self.err))
        return [
            line.strip() for line in lines if line.strip() and not re.search(r"\d%\||\d(it|step)/s", line)
        ]

    @property
    def message(self) -> str:
        return " ".join(self.lines)


Envace = Callable[..., Done]


@pytest.fixture
def envace(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Envace:
    """Runs a command as the shell does, `envace ...` or one of those behind `python -m`.

    Records and checkpoints go to a folder of the test.
    """
    monkeypatch.setattr(paths, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(paths, "WORK", tmp_path / "work")
    monkeypatch.setattr(paths, "FIGURES", tmp_path / "figures")
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str | Path) -> Done:
        monkeypatch.setattr(sys, "argv", [])
        capsys.readouterr()
        code: Any = 0
        try:
            programs.run(*map(str, arguments))
        except SystemExit as end:
            code = end.code or 0
        printed = capsys.readouterr()
        if isinstance(code, str):  # as the interpreter does
            return Done(1, printed.out, printed.err + code + "\n")
        return Done(code, printed.out, printed.err)

    return run


@pytest.fixture(scope="module")
def folder(apt: Policy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved tiny policy."""
    path = tmp_path_factory.mktemp("policy")
    apt.save(path)
    return path


@pytest.fixture
def few_tasks(lessons: Lessons, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few tasks stand for every split."""
    tasks = [task for task, _ in lessons]

    def chosen(domains: Any, split: str, limit: int | None = None) -> list[Task]:
        return [task for name in domains for task in tasks if task.domain == name][:limit]

    for module in (arms, controls, shipped):
        monkeypatch.setattr(module, "shipped_tasks", chosen)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Splits are drawn once for all tests; lists the seeds for which they were wanted."""
    seeds: list[int] = []

    def once(domain: Domain, seed: int) -> dict[str, list[Task]]:
        seeds.append(seed)
        return splits(domain.name)

    monkeypatch.setattr(draw, "draw_splits", once)
    return seeds


def is_helpful(done: Done, *words: str) -> None:
    """A mistake ends with a line that names what to do, and not with a traceback."""
    assert done.code != 0, done.out
    assert "Traceback" not in done.err
    for word in words:
        assert word in done.message, done.message


def is_one_line(done: Done, *words: str) -> None:
    """The same for a mistake that is found by the library: one line is all there is."""
    is_helpful(done, *words)
    assert len(done.lines) == 1, done.lines
    assert done.lines[0].startswith("envace: ")


# Help ------------------------------------------------------------------------------------------------------


def test_a_user_sees_what_a_user_runs() -> None:
    """What only makes the project's own tables stands apart."""
    users = "demo evaluate probe rehearse report tasks pretrain base train assignments grade site"
    assert {name for name, program in PROGRAM_OF.items() if program == "envace"} == set(users.split())


def test_a_command_of_another_program_is_named_with_its_program() -> None:
    elsewhere = {name: module for module, names in ELSEWHERE.items() for name in names}
    assert elsewhere == {
        name: program.removeprefix("python -m ")
        for name, program in PROGRAM_OF.items()
        if program != "envace"
    }
    for name, module in elsewhere.items():
        result = CliRunner().invoke(APPS["envace"], [name, "--help"], env={"COLUMNS": "200"})
        assert result.exit_code == 2
        assert f"{name!r} is a command of: python -m {module}" in result.output
    assert "No such command" in CliRunner().invoke(APPS["envace"], ["simulate"]).output


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_teaches(name: str) -> None:
    command = COMMANDS[name]
    result = CliRunner().invoke(
        APPS[PROGRAM_OF[name]], [name, "--help"], env={"COLUMNS": "200", "TERM": "dumb"}
    )
    assert result.exit_code == 0
    shown = " ".join(result.output.split())
    assert command.help.split(".")[0] in shown
    for option in command.params:
        assert option.help, f"{option.name} has no help"
        assert option.opts[0] in shown


@pytest.mark.parametrize("program", APPS)
def test_without_a_command_there_is_help(program: str) -> None:
    result = CliRunner().invoke(APPS[program], [])
    for name, command in COMMANDS.items():
        if PROGRAM_OF[name] == program:
            assert name in result.output
            assert command.help


def test_the_helps_list_what_exists() -> None:
    options = {option.name: option.help for option in COMMANDS["train"].params}
    assert all(arm in options["arm"] for arm in ARMS)
    options = {option.name: option.help for option in COMMANDS["pretrain"].params}
    assert all(recipe in options["recipe"] for recipe in BASES)


# Mistakes in the command -----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["demo", "train", "evaluate", "probe"])
def test_an_unknown_domain(envace: Envace, folder: Path, command: str) -> None:
    where = [] if command == "demo" else ["--policy", folder]
    is_one_line(envace(command, "--domain", "shop", *where), "unknown domain 'shop'", *DOMAINS)
    assert not paths.RUNS.exists()


def test_one_unknown_domain_of_two(envace: Envace, folder: Path) -> None:
    is_one_line(envace("evaluate", "--domain", "orders, shop", "--policy", folder), "'shop'", *DOMAINS)


def test_an_unknown_arm(envace: Envace, folder: Path) -> None:
    is_helpful(envace("train", "--arm", "rehearse", "--policy", folder), "--arm", *ARMS)
    is_helpful(envace("train", "--arm", "rehearsal,execute", "--policy", folder), "--arm", "one arm")


def test_a_study_of_an_unknown_arm(envace: Envace, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before hours of training, not after."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a run was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    is_helpful(envace("study", "--arms", "rehearsal,nope", "--seeds", "1"), *ARMS)


def test_a_study_of_two_bases_of_one_name(envace: Envace, tmp_path: Path) -> None:
    """Their records would have one name as well."""
    is_helpful(envace("study", "--base", tmp_path / "a" / "mine", "--base", tmp_path / "mine"), "--base")


def test_a_study_in_which_a_run_fails(envace: Envace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: Mock(**{"wait.return_value": 1}))
    done = envace("study", "--arms", "rehearsal", "--seeds", "2")
    assert done.code != 0
    for seed in range(2):
        name = f"rehearsal-base-{seed}"
        assert f"{name}: failed, see {paths.WORK / f'{name}.log'}" in done.out


def test_a_study_runs_what_is_missing(envace: Envace, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over several bases; beside each stand its controls."""
    write_record("rehearsal-base-7steps-0", blank("train"))
    write_record("execute-base-0", blank("train"))  # of more steps: it is another run
    write_record(f"controls-{folder.name}", blank("controls"))
    monkeypatch.setattr(tables, "table", lambda *_: pd.DataFrame())  # nothing can be read off blank records
    started = []

    def pretend(command: list[str], **_: Any) -> Mock:
        started.append(command[3:])
        return Mock(**{"wait.return_value": 0})

    monkeypatch.setattr(subprocess, "Popen", pretend)
    study = ["study", "--base", paths.BASE, "--base", folder, "--arms", "rehearsal,execute"]
    assert envace(*study, "--seeds", "2", "--steps", "7").code == 0
    assert [command for command in started if "controls" in command] == [
        ["controls", "--base", str(paths.BASE)]
    ]
    runs = [programs.parsed(shlex.join(["envace", *command])) for command in started if "train" in command]
    assert all(run["steps"] == 7 for run in runs)
    of_all = {(p, arm, n) for p in (paths.BASE, folder) for arm in ("rehearsal", "execute") for n in (0, 1)}
    assert {(run["policy"], run["arm"], run["seed"]) for run in runs} == of_all - {
        (paths.BASE, "rehearsal", 0)
    }
    assert len(runs) == 7


def test_an_unknown_recipe(envace: Envace) -> None:
    is_helpful(envace("pretrain", "--recipe", "sad"), "--recipe", *BASES)


@pytest.mark.parametrize("command", ["evaluate", "probe"])
def test_an_unknown_split(envace: Envace, folder: Path, command: str) -> None:
    done = envace(command, "--split", "validation", "--policy", folder, "--domain", "orders")
    is_helpful(done, "validation", "test", "held_out")


def test_an_unknown_option(envace: Envace) -> None:
    is_helpful(envace("train", "--stepps", "3"), "--stepps")
    is_helpful(envace("train", "--steps", "three"), "--steps")
    is_helpful(envace("trian"), "trian")


# Mistakes in the files -------------------------------------------------------------------------------------

EACH = pytest.mark.parametrize("command", ["train", "evaluate", "probe"])


@EACH
def test_a_folder_without_a_policy(envace: Envace, tmp_path: Path, command: str) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    for wrong in (tmp_path / "nowhere", tmp_path, tmp_path / "file"):
        is_one_line(envace(command, "--policy", wrong), f"no policy in {wrong}", "envace pretrain")


@EACH
@pytest.mark.parametrize("size", [0, 5, 1000, -1])
def test_weights_that_are_cut_off(
    envace: Envace, folder: Path, tmp_path: Path, command: str, size: int
) -> None:
    shutil.copytree(folder, tmp_path / "policy")
    weights = tmp_path / "policy" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:size])
    done = envace(command, "--policy", tmp_path / "policy")
    is_one_line(done, str(tmp_path / "policy"), "damaged or cut off", "restore or remake")


def test_a_broken_configuration(envace: Envace, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "policy")
    (tmp_path / "policy" / "config.json").write_text("{", encoding="utf-8")
    is_helpful(envace("probe", "--policy", tmp_path / "policy"), "envace: ", str(tmp_path / "policy"))


def test_a_policy_of_another_vocabulary(envace: Envace, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "mixed")
    build_tokenizer([*vocabulary(), "zebra"]).save_pretrained(tmp_path / "mixed")
    is_one_line(envace("probe", "--policy", tmp_path / "mixed"), str(tmp_path / "mixed"), "vocabulary")
    words = [word for word in vocabulary() if word != "refund_order"]
    other = new_policy(width=32, layers=1, heads=2, tokenizer=build_tokenizer(words))
    other.save(tmp_path / "other")
    is_one_line(
        envace("probe", "--policy", tmp_path / "other", "--domain", "orders"), "vocabulary", "refund_order"
    )


@pytest.mark.parametrize(
    "line",
    ["", "{", "[]", "null", '{"id": "x"}', "\ufffd", '{"id": "orders-test-0002", "label": {"outcomes": 3}}'],
    ids=["empty", "cut off", "a list", "null", "fields", "no text", "label"],
)
@pytest.mark.parametrize("command", ["evaluate", "probe"])
def test_a_broken_line_of_a_task_file(
    envace: Envace, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, command: str
) -> None:
    monkeypatch.setattr(paths, "DATA", tmp_path / "data")
    path = paths.task_file("orders", "train" if command == "probe" else "test")
    path.parent.mkdir(parents=True)
    lines = (SHIPPED / path.name).read_text(encoding="utf-8").splitlines()[:4]
    path.write_text("\n".join([*lines[:2], line, *lines[2:]]) + "\n", encoding="utf-8")
    done = envace(command, "--domain", "orders", "--policy", folder)
    is_one_line(done, f"{path}, line 3: not a task")


def test_a_task_file_that_is_no_text(
    envace: Envace, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "DATA", tmp_path / "data")
    path = paths.task_file("orders", "train")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\xff\xfe\x00\n")
    is_one_line(envace("probe", "--policy", folder), str(path))


def test_a_missing_task_file(
    envace: Envace, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "DATA", tmp_path / "data")
    path = paths.task_file("orders", "train")
    is_one_line(envace("probe", "--policy", folder), f"no task file {path}", "envace tasks")


@pytest.mark.usefixtures("few_tasks")
def test_a_damaged_checkpoint(envace: Envace, folder: Path) -> None:
    path = paths.WORK / f"rehearsal-{folder.name}-0" / "train.pt"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"PK cut off")
    is_one_line(envace("train", "--policy", folder), f"{path} is damaged", "delete it to start again")


@pytest.mark.usefixtures("few_tasks")
def test_a_checkpoint_of_another_run(envace: Envace, folder: Path, tmp_path: Path) -> None:
    """Runs are told apart by the name of the policy's folder; here two have the same."""
    other = tmp_path / folder.name
    new_policy(seed=1, width=32, layers=2, heads=2).save(other)
    assert envace("train", "--steps", "1", "--domain", "bank", "--policy", folder).code == 0
    done = envace("train", "--steps", "1", "--domain", "bank", "--policy", other)
    is_one_line(done, "another configuration", "delete it")


# Folders that cannot be written ----------------------------------------------------------------------------


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch, tiny: Policy) -> list[str]:
    """Training takes no time: what was trained is listed."""
    trained: list[str] = []

    def run_arm(policy: Policy, arm: str, *_: Any, **__: Any) -> tuple[Policy, dict[str, Any]]:
        trained.append(arm)
        return policy, {"rows": {}}

    def pretrain(config: PretrainConfig, *_: Any, **__: Any) -> tuple[Policy, dict[str, Any]]:
        trained.append(config.phases[-1].recipe)
        return tiny, {}

    monkeypatch.setattr(arms, "run_arm", run_arm)
    monkeypatch.setattr(imitate, "pretrain", pretrain)
    return trained


WRITING = pytest.mark.parametrize(
    "command", [["tasks"], ["train"], ["pretrain"], ["pretrain", "--recipe", "habits_10"]]
)


@WRITING
@pytest.mark.usefixtures("drawn")
def test_a_file_stands_where_the_output_should_go(
    envace: Envace, folder: Path, tmp_path: Path, pretend: list[str], command: list[str]
) -> None:
    """It is found out before anything is trained."""
    (tmp_path / "file").write_text("precious", encoding="utf-8")
    where = ["--policy", folder] if command == ["train"] else []
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        is_one_line(envace(*command, *where, "--out", out), str(out))
    assert pretend == []
    assert (tmp_path / "file").read_text(encoding="utf-8") == "precious"


@WRITING
@pytest.mark.usefixtures("drawn")
def test_an_output_folder_without_permission(
    envace: Envace,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pretend: list[str],
    command: list[str],
) -> None:
    def refuse(path: Any, *_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "mkdir", refuse)  # changed modes would not stop an administrator
    where = ["--policy", folder] if command == ["train"] else []
    is_one_line(envace(*command, *where, "--out", tmp_path / "out"), str(tmp_path / "out"), "ermission")
    assert pretend == []


@pytest.mark.usefixtures("drawn")
def test_a_full_disk(envace: Envace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_text", refuse)
    is_one_line(envace("tasks", "--out", tmp_path / "out"), str(tmp_path / "out"), "No space left")


@pytest.mark.usefixtures("few_tasks")
def test_records_that_cannot_be_written(envace: Envace, folder: Path) -> None:
    paths.RUNS.write_text("", encoding="utf-8")
    done = envace("train", "--steps", "1", "--domain", "bank", "--policy", folder)
    is_one_line(done, str(paths.RUNS))


def measured_columns() -> set[str]:
    """The columns of `rows.measure`."""
    return {name for pair in MEASURES.values() for name in pair if name} | {*GROUPS}


def test_a_figure_that_cannot_be_written(envace: Envace, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    observed = [{"step": 0, "real_success": 0.1, "fidelity": 0.1, "bearing": 0.1}]
    about = {"title": "a", "base": "base", "seed": 0, "domains": list(DOMAINS), "observed": observed}
    rows = pack(dict.fromkeys(measured_columns(), [1] * len(DOMAINS)))
    totals, config = {"environment_calls": 0}, {"steps": TrainConfig().steps}
    measured = {"rows": {"test": rows, "held_out": rows}, "totals": totals, "config": config}
    write_record("a-base-0", blank("train", **about, **measured))
    is_one_line(envace("report", "--figures", tmp_path / "file" / "new"), str(tmp_path / "file"))


# Interrupted -----------------------------------------------------------------------------------------------


def test_an_interrupt_says_how_to_go_on(
    envace: Envace, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(arms, "run_arm", interrupt)
    is_one_line(envace("train", "--policy", folder), "interrupted", "the same command continues")


def test_a_mistake_of_our_own_is_not_hidden(
    envace: Envace, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `KeyError` from within is a fault of the library, and a person has to see where it is."""

    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("totals")

    monkeypatch.setattr(arms, "run_arm", fail)
    with pytest.raises(KeyError):
        envace("train", "--policy", folder)


# What the commands do --------------------------------------------------------------------------------------


def test_tasks_are_the_shipped_ones(envace: Envace, drawn: list[int], tmp_path: Path) -> None:
    done = envace("tasks", "--out", tmp_path / "tasks")
    assert done.code == 0
    assert drawn == [0] * len(DOMAINS)
    names = {f"{domain}.{split}.jsonl" for domain in DOMAINS for split in EVERY_SPLIT}
    assert {path.name for path in (tmp_path / "tasks").iterdir()} == names
    for name in names:
        assert (tmp_path / "tasks" / name).read_bytes() == (SHIPPED / name).read_bytes(), name
    assert re.search(r"orders +held_out +150 tasks", done.out)


def test_tasks_of_another_seed(envace: Envace, drawn: list[int], tmp_path: Path) -> None:
    assert envace("tasks", "--seed", "3", "--out", tmp_path / "tasks").code == 0
    assert drawn == [3] * len(DOMAINS)


def test_a_report_of_nothing(envace: Envace) -> None:
    for made in (False, True):
        if made:
            paths.RUNS.mkdir()
        done = envace("report")
        assert done.code == 0
        assert "no recorded runs" in done.out
    assert envace("report", "--by-domain").out.count("no recorded runs") == 5


def test_a_figure_of_nothing(envace: Envace, tmp_path: Path) -> None:
    """There is nothing to draw: it is said, and no empty figure is left behind."""
    done = envace("report", "--figures", tmp_path)
    assert "no recorded runs" in done.out + done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "arms.png").exists()


def test_a_broken_record(envace: Envace) -> None:
    paths.RUNS.mkdir()
    (paths.RUNS / "rehearsal-0.json").write_text("{", encoding="utf-8")
    is_one_line(envace("report"), str(paths.RUNS / "rehearsal-0.json"), "run its command again")


def timeless(path: Path) -> dict[str, Any]:
    """A record without what may differ between two runs of the same command."""
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    record["totals"].pop("seconds")
    return {**record, "date": None}


@pytest.mark.usefixtures("few_tasks")
def test_from_training_to_a_report(
    envace: Envace, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command in a record makes it again, and what was saved, printed and reported is what was recorded."""
    out = tmp_path / "with a space"
    chosen = ["--arm", "execute", "--seed", "4", "--steps", "1"]
    done = envace("train", *chosen, "--policy", folder, "--out", out)
    assert done.code == 0
    path = paths.RUNS / f"execute-{folder.name}-1steps-4.json"
    record = timeless(path)
    assert record["totals"]["environment_calls"] > 100
    assert (record["seed"], record["base"], record["domains"]) == (4, folder.name, list(DOMAINS))
    printed = {line.split()[0]: line.split()[1:] for line in done.out.splitlines() if line.strip()}
    assert printed.pop("test") == ["held_out"]
    assert list(printed) == list(MEASURES)
    recorded = {split: unpack(rows) for split, rows in record["rows"].items()}
    for name, cells in printed.items():
        assert cells == [f"{value(rows, name):.3f}" for rows in recorded.values()]

    shown = envace("evaluate", "--policy", out)
    assert shown.code == 0
    lines = {line.split()[0]: line.split()[1:] for line in shown.out.splitlines() if line.strip()}
    reported = envace("report")
    assert reported.code == 0
    (row,) = [line for line in reported.out.splitlines() if line.startswith(ARMS["execute"].title)]
    for name in ("real_success", "fidelity", "wrong_writes"):
        number = f"{value(recorded['test'], name):.3f}"
        assert lines[name][0] == number
        assert f" {number} (" in row

    program, *arguments = shlex.split(record["command"])
    assert program == "envace"
    path.unlink()
    monkeypatch.setattr(paths, "WORK", tmp_path / "fresh")
    torch.manual_seed(1)
    assert envace(*arguments).code == 0
    assert timeless(path) == record


@pytest.mark.usefixtures("few_tasks")
def test_training_without_a_record(envace: Envace, folder: Path) -> None:
    done = envace("train", "--steps", "1", "--domain", "bank,orders", "--policy", folder, "--no-record")
    assert done.code == 0
    assert "real_success" in done.out
    assert not paths.RUNS.exists()
    (path,) = (paths.WORK / "unrecorded").iterdir()
    assert path.name == f"rehearsal-{folder.name}-bank-orders-1steps-0.json"
    assert read_record(path)["domains"] == ["bank", "orders"]


@pytest.mark.usefixtures("few_tasks")
def test_the_controls_of_a_base_are_recorded_and_reported(
    envace: Envace, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controls, "GRID", (-6.0, 0.0))
    done = envace("controls", "--base", folder)
    assert done.code == 0
    record = read_record(paths.RUNS / f"controls-{folder.name}.json")
    assert record["command"] == f"python -m envace_lite.experiments controls --base {folder}"
    assert record["base"] == folder.name
    for name, title in CONTROLS.items():
        (row,) = [line for line in done.out.splitlines() if re.match(rf"{title} {{2,}}", line)]
        rows = unpack(record["rows"]["test"][name])
        assert f" {value(rows, 'real_success'):.3f} (" in row
        assert f" {value(rows, 'bearing'):.3f} (" in row


@pytest.mark.usefixtures("few_tasks")
def test_probes_are_shown(envace: Envace, folder: Path) -> None:
    page = folder.parent / "page.html"
    done = envace("probe", "--domain", "bank", "--policy", folder, "--page", page)
    assert done.code == 0
    lines = [line.split() for line in done.out.splitlines() if line.strip()]
    first = {line[0]: line for line in lines}
    assert lines[1] == ["model", "always_success", "copy_arguments", "most_frequent", "oracle"]
    assert [float(cell) for cell in first["optimism"][2:4]] == [1, 1]
    assert (float(first["optimism"][5]), float(first["fidelity"][5])) == (0, 1)
    assert "the rehearsed world lacks: " in done.out
    assert "unknown" in first
    html = page.read_text(encoding="utf-8")
    assert html.count("<tr>") - 1 == int(lines[0][0])
    same = html.count('<td class="same">')
    assert f"{same} of {lines[0][0]} rehearsed responses equal the real one" in html


def test_evaluation_of_a_few_tasks(envace: Envace, folder: Path) -> None:
    done = envace("evaluate", "--domain", "orders", "--limit", "5", "--policy", folder)
    assert done.code == 0
    assert [line.split()[0] for line in done.out.splitlines() if line.strip()] == ["test", *METRICS]
    assert not paths.RUNS.exists()


def test_a_base_is_made_and_recorded(envace: Envace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    phases = tuple(replace(phase, steps=8, requests=8, batch=2) for phase in BASES["habits"].phases)
    small = PretrainConfig(phases, per_request=1, width=32, layers=1)
    monkeypatch.setattr(imitate, "BASES", {"habits": small})
    done = envace("pretrain", "--recipe", "habits", "--seed", "3", "--out", tmp_path / "base")
    assert done.code == 0
    record = json.loads((paths.RUNS / "pretrain-habits-3.json").read_text(encoding="utf-8"))
    assert record["command"].startswith("envace pretrain --recipe habits --seed 3")
    assert record["seed"] == record["config"]["seed"] == 3
    assert [phase["recipe"] for phase in record["config"]["phases"]] == ["real", "habits"]
    assert record["tokens"] > 20
    assert {"date", "versions"} <= record.keys()
    assert load_policy(tmp_path / "base").chat.words == vocabulary()


@pytest.mark.parametrize("command", ["train", "study"])
def test_a_run_has_the_usual_length_unless_another_is_asked_for(command: str) -> None:
    """Otherwise its record would stand apart in the tables."""
    options = COMMANDS[command].params
    assert {o.name: o.default for o in options}["steps"] == TrainConfig().steps


def test_the_tables_of_a_text_are_filled(envace: Envace, tmp_path: Path) -> None:
    path = tmp_path / "text.md"
    path.write_text("before\n<!-- ranks:START -->\nold\n<!-- ranks:END -->\nafter\n", encoding="utf-8")
    success = {"mine": {"real": 0.5, "mine": 0.25}}
    write_record("ranks", blank("ranks", success=success, kendall_tau={"mine": 1.0}))
    assert envace("report", "--write", path).code == 0
    written = path.read_text(encoding="utf-8")
    assert written.startswith("before\n<!-- ranks:START -->\n| policy | real | in the world of mine |")
    assert "| mine | 0.500 | 0.250 |" in written
    assert written.endswith("<!-- ranks:END -->\nafter\n")
