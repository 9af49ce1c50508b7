"""Grading: points, reasons, and feedback that keeps hidden tests hidden."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from nbformat.v4 import new_code_cell
from typer.testing import CliRunner

from envace_lite import cli, paths
from envace_lite.course import grading, timing
from envace_lite.course.assignments import Assignment, Part, masters
from envace_lite.course.grading import (
    SubmissionError,
    feedback,
    grade_folder,
    grade_question,
    grade_submission,
    read_submission,
    submissions,
)
from envace_lite.course.timing import check, crowd, grade_solved
from envace_lite.experiments.records import read_record

ADVANTAGES: Assignment = next(a for a in masters() if a.name == "role_advantages")
SOLVED = {part.name: part.solved for part in ADVANTAGES.parts if part.kind == "solution"}
TEST = Part("test", "t", "assert f() == 1, 'f returns 1'", 1)


def submission(path: Path, change: Any = lambda notebook: None, **solutions: str) -> Path:
    """A submission of the student's copy, with these solutions filled in."""
    notebook = ADVANTAGES.notebook("student")
    for cell in notebook.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id")
        cell.source = solutions.get(name, cell.source)
    change(notebook)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(notebook), encoding="utf-8")
    return path


def test_a_right_submission_has_all_points(tmp_path: Path) -> None:
    graded = grade_submission(submission(tmp_path / "a.ipynb", **SOLVED), ADVANTAGES)
    assert graded.points.tolist() == graded.of.tolist() == [q.points for q in ADVANTAGES.questions]
    assert set(graded.message) == {""}


def test_an_empty_submission_has_none_and_says_why(tmp_path: Path) -> None:
    graded = grade_submission(submission(tmp_path / "a.ipynb"), ADVANTAGES)
    assert graded.points.sum() == 0
    assert all("write your solution here" in message for message in graded.message)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def f():\n    while True: pass", "longer than 1 seconds; is there a loop that never ends?"),
        ("while True: pass", "longer than 1 seconds"),
        ("import os\ndef f():\n    os._exit(0)", "the process ended before the test did (exit status 0)"),
        ("import os\nos.kill(os.getpid(), 9)", "the process ended before the test did (exit status -9)"),
        ("import sys\ndef f():\n    sys.exit('bye')", "your code raises SystemExit: bye (line 3 of cell c)"),
        ("def f():\n    return 2", "f returns 1"),
        ("def f(:\n", "the cell 'c' does not run: SyntaxError"),
        ("def g(): ...", "NameError: name 'f' is not defined"),
        ("1 / 0\ndef f(): return 1", "the cell 'c' does not run: ZeroDivisionError"),
        ("def f():\n    return 1", ""),
        ("print('x' * 10**6)\ndef f():\n    return 1", ""),
        ("def f():\n    return f() + 1", "RecursionError"),
    ],
)
def test_a_failure_costs_the_question_and_says_why(code: str, reason: str) -> None:
    said = grade_question({"c": code}, TEST, seconds=1 if "while" in code else 20)
    assert reason in said if reason else said == ""


@pytest.mark.skipif(not grading.LIMITED, reason="the clock does for both")
def test_the_limit_is_on_what_is_computed() -> None:
    """A process that has to wait for others is not at fault; one that waits for nothing is found all the same."""
    slow = "import time\ntime.sleep(1.5)\ndef f():\n    return 1"
    assert grade_question({"c": slow}, TEST, seconds=1) == ""
    said = grade_question({"c": slow}, TEST, seconds=1, patience=1.2)
    assert said.startswith(
        "it has not ended after 1.2 seconds, in which it computed for less than 1; does it sleep"
    )
    begin = time.perf_counter()
    assert "loop that never ends" in grade_question({"c": "while True: pass"}, TEST, seconds=1, patience=60)
    assert time.perf_counter() - begin < 50, "it was the clock that ended it"
    deaf = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    assert "exit status -9" in grade_question({"c": deaf}, TEST, seconds=1)


def test_without_such_a_limit_the_clock_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows."""
    monkeypatch.setattr(grading, "LIMITED", False)
    said = grade_question({"c": "import time\ntime.sleep(60)"}, TEST, seconds=1)
    assert said == "it takes longer than 1 seconds; is there a loop that never ends?"


@pytest.mark.skipif(not grading.LIMITED, reason="the clock does for both")
def test_nobody_fails_in_a_crowd() -> None:
    """What computes for most of its time is given it, among ten others who want it too."""
    work = "import time\nwhile time.process_time() < 0.4: pass\ndef f():\n    return 1"
    with crowd(10):
        assert grade_question({"c": work}, TEST, seconds=1) == ""
        assert "loop that never ends" in grade_question({"c": "while True: pass"}, TEST, seconds=1)


@pytest.mark.long
def test_the_solved_assignments_have_all_points_in_a_crowd() -> None:
    with crowd(10):
        assert grade_solved() == []


@pytest.mark.long
def test_a_notebook_passes_its_check_in_a_crowd() -> None:
    with crowd(10):
        check(paths.ROOT / "notebooks" / "02_one_rollout_two_roles.ipynb")


def test_a_crowd_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "RUNS", tmp_path)
    monkeypatch.setattr(timing, "PARTS", {"a loop": lambda: grade_question({"c": "sum(range(10**6))"}, TEST)})
    record = timing.measure_crowd(3, command="python -m envace_lite.course minutes --crowd 3")
    measured = record["seconds"]["a loop"]
    assert measured["ratio"] == round(measured["in a crowd"] / measured["alone"], 2)
    assert read_record(tmp_path / "crowd.json")["config"] == {"busy_processes": 3}


def test_a_crowd_goes_with_the_one_who_called_it() -> None:
    """Ten processes that spin forever would be a nuisance."""
    spin = f"subprocess.Popen([sys.executable, '-c', {timing.SPIN!r}, str(os.getpid())])"
    code = f"import os, subprocess, sys, time\n{spin}\ntime.sleep(1)\nos.kill(os.getpid(), 9)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.read()  # ends when nobody has the pipe any more
    assert process.returncode == -9


def test_one_question_that_fails_leaves_the_others(tmp_path: Path) -> None:
    path = submission(tmp_path / "a.ipynb", advantages="import os\nos._exit(3)", tokens=SOLVED["tokens"])
    assert grade_submission(path, ADVANTAGES).points.sum() == 0, "a cell that ends the process ends it always"
    slow = SOLVED | {"advantages": "def role_advantages(r, n):\n    while True: pass"}
    graded = grade_submission(submission(tmp_path / "b.ipynb", **slow), ADVANTAGES, seconds=1)
    assert graded.set_index("question").points.to_dict() == {
        "adv-equal": 0,
        "adv-weighted": 0,
        "adv-silent": 0,
        "adv-tokens": 2,
    }


def doubled(notebook: Any) -> None:
    notebook.cells.append(notebook.cells[1].copy())


def without_first_solution(notebook: Any) -> None:
    del notebook.cells[1]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (doubled, r"grade_id 'advantages' occurs 2 times \(cells 2, 11\); delete the copies"),
        (without_first_solution, "no cell with the grade_id 'advantages'; put it back"),
    ],
)
def test_broken_cells_are_named(tmp_path: Path, change: Any, problem: str) -> None:
    path = submission(tmp_path / "a.ipynb", change, **SOLVED)
    with pytest.raises(SubmissionError, match=problem):
        read_submission(path, ADVANTAGES)
    graded = grade_submission(path, ADVANTAGES)
    assert graded.points.sum() == 0
    assert graded.message.str.contains("grade_id").all()


def test_what_is_no_notebook_is_named(tmp_path: Path) -> None:
    path = tmp_path / "role_advantages.ipynb"
    path.write_text("{", encoding="utf-8")
    assert grade_submission(path, ADVANTAGES).message.str.contains("is not a notebook").all()


def test_changed_tests_and_given_cells_do_not_count(tmp_path: Path) -> None:
    def cheat(notebook: Any) -> None:
        for cell in notebook.cells:
            if cell.metadata.get("nbgrader", {}).get("grade_id", "").startswith("adv-"):
                cell.source = "pass"
            if cell.metadata.get("nbgrader", {}).get("grade_id") == "close":
                cell.source = "def close(a, b):\n    return True"

    wrong = "def role_advantages(r, n):\n    return [9] * len(r)"
    path = submission(tmp_path / "a.ipynb", cheat, advantages=wrong, tokens=SOLVED["tokens"])
    graded = grade_submission(path, ADVANTAGES)
    assert graded.set_index("question").points.to_dict()["adv-equal"] == 0
    assert graded.points.sum() == 2


def test_cells_of_the_students_own_are_run(tmp_path: Path) -> None:
    def helped(notebook: Any) -> None:
        notebook.cells.insert(1, new_code_cell("def helper(n, r):\n    return n * r"))

    body = SOLVED["advantages"].replace("n * r", "helper(n, r)")
    path = submission(tmp_path / "a.ipynb", helped, advantages=body, tokens=SOLVED["tokens"])
    assert set(grade_submission(path, ADVANTAGES).message) == {""}


def test_hidden_tests_do_not_leak() -> None:
    secret = "SECRET = {'key-7391': 0}\nassert f(SECRET['key-7391']) == 1, 'f returns 1 for every number'"
    hidden = Part("test", "t", f"f(1)\n### BEGIN HIDDEN TESTS\n{secret}\n### END HIDDEN TESTS", 1)
    for code in (
        "def f(x):\n    return x",
        "def f(x):\n    return 1 / x",
        "def f(x):\n    return {1: 1}[x]",
        "def f(x):\n    if x == 0:\n        raise ValueError(x)\n    return 1",
    ):
        said = grade_question({"c": code}, hidden)
        assert said
        assert "7391" not in said
        assert "SECRET" not in said
    assert grade_question({"c": "def f(x):\n    return x"}, hidden) == "f returns 1 for every number"
    said = grade_question({"c": "def f(x):\n    return 1 / x"}, hidden)
    assert said == "your code raises ZeroDivisionError in a case that is not shown (line 2 of cell c)"


def test_a_folder_is_graded(tmp_path: Path) -> None:
    folder = tmp_path / "submitted"
    submission(folder / "ana" / "role_advantages.ipynb", **SOLVED)
    submission(folder / "bob" / "role_advantages" / "role_advantages.ipynb", tokens=SOLVED["tokens"])
    (folder / "ana" / "notes.ipynb").write_text("{}", encoding="utf-8")
    assert [student for student, _, _ in submissions(folder, [ADVANTAGES])] == ["ana", "bob"]
    out = tmp_path / "grades"
    graded = grade_folder(folder, out)
    assert graded.groupby("student").points.sum().to_dict() == {"ana": 8, "bob": 2}
    with (out / "grades.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["student", "assignment", "question", "points", "of", "message"]
    assert len(rows) == 8
    assert "role_advantages: 8 of 8 points" in (out / "ana-role_advantages.md").read_text(encoding="utf-8")
    said = (out / "bob-role_advantages.md").read_text(encoding="utf-8")
    assert "- `adv-equal`: 0 of 2. " in said
    assert "- `adv-tokens`: 2 of 2. Passed." in said
    assert "assert " not in said


def test_feedback_is_plain_text() -> None:
    graded = grade_submission(Path("nowhere.ipynb"), ADVANTAGES)
    assert feedback("eva", graded).startswith("# role_advantages: 0 of 8 points\n")


def test_the_command_grades(tmp_path: Path) -> None:
    submission(tmp_path / "in" / "ana" / "role_advantages.ipynb", **SOLVED)
    result = CliRunner().invoke(cli.app, ["grade", str(tmp_path / "in"), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "ana" in result.output
    assert (tmp_path / "out" / "grades.csv").is_file()
    empty = CliRunner().invoke(cli.app, ["grade", str(tmp_path / "out"), "--out", str(tmp_path / "more")])
    assert empty.exit_code == 1
