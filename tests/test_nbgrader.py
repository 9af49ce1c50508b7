"""The sources of the assignments under the real nbgrader, beside the project's own grader.

Needs nbgrader (`pip install -e ".[nbgrader]"`).
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envace_lite.course.assignments import FOLDER, Assignment, masters
from envace_lite.course.grading import grade_submission

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not importlib.util.find_spec("nbgrader"), reason="nbgrader is not installed"),
]


def nbgrader(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "nbgrader", *arguments, f"--CourseDirectory.root={folder}"]
    ended = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=folder, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]


def fill(path: Path, assignment: Assignment, wanted: set[str]) -> dict[str, Any]:
    """A released notebook with some of the solutions."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    solved = {part.name: part.solved for part in assignment.parts if part.name in wanted}
    for cell in notebook["cells"]:
        name = cell["metadata"].get("nbgrader", {}).get("grade_id")
        cell["source"] = solved.get(name, cell["source"])
    return notebook


@pytest.mark.parametrize("assignment", masters(), ids=lambda assignment: assignment.name)
def test_both_graders_give_the_same_points(assignment: Assignment, tmp_path: Path) -> None:
    name = assignment.name
    source = tmp_path / "source" / name / f"{name}.ipynb"
    source.parent.mkdir(parents=True)
    source.write_bytes((FOLDER / "source" / name / f"{name}.ipynb").read_bytes())
    nbgrader(tmp_path, "generate_assignment", name, "--create")
    released = tmp_path / "release" / name / f"{name}.ipynb"
    text = released.read_text(encoding="utf-8")
    assert "BEGIN SOLUTION" not in text
    assert "HIDDEN TESTS" not in text
    solutions = [part.name for part in assignment.parts if part.kind == "solution"]
    students = {"all": set(solutions), "first": set(solutions[:1]), "none": set[str]()}
    for student, wanted in students.items():
        path = tmp_path / "submitted" / student / name / f"{name}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(fill(released, assignment, wanted)), encoding="utf-8")
    nbgrader(tmp_path, "autograde", name, "--create", "--Execute.timeout=300")

    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{tmp_path / 'gradebook.db'}") as book:
        theirs = {s: book.find_submission_notebook(name, name, s).score for s in students}
    paths = {student: tmp_path / "submitted" / student / name / f"{name}.ipynb" for student in students}
    ours = {s: grade_submission(path, assignment).points.sum() for s, path in paths.items()}
    assert theirs == ours
    assert ours["all"] == assignment.points
    assert ours["none"] == 0
