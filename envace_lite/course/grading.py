"""Grade a folder of submissions on this machine: points as CSV, feedback as text.

Each question runs in a process of its own with a time limit, so a loop that never ends, a crash or a dead process costs
that question alone, and says why. Tests are taken from the master, not from the submission. Feedback holds messages and
no test.

The limit is on the processor's time: on a crowded machine the same code takes several times as long by the clock, and
that is not its author's fault. What sleeps or waits does not use it; it is ended by a limit by the clock, which is
generous. Where the system cannot limit the processor's time (Windows), the clock has to do for both.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from envace_lite.course.assignments import Assignment, Part, masters

SECONDS = 10.0
"""How long one question may compute."""
PATIENCE = 30.0
"""So many times longer may it take by the clock: ten others on one core leave it an eleventh, and a system that shares
between groups of processes first may leave it less (under a fifteenth was seen)."""
LIMITED = hasattr(signal, "SIGXCPU")
"""Whether the system can limit the time that a process computes."""
QUESTION = Path(__file__).with_name("question.py")


class SubmissionError(ValueError):
    """A submission cannot be graded; the message says what its author has to mend."""


def read_submission(path: Path, assignment: Assignment) -> dict[str, str]:
    """The cells to run, by name: given ones from the master, the others as the student wrote them.

    Raises:
        SubmissionError: it is no notebook, or a `grade_id` occurs twice or not at all.
    """
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError) as error:
        raise SubmissionError(f"{path.name} is not a notebook ({type(error).__name__})") from error
    named = [(number, _grade_id(cell), cell) for number, cell in enumerate(cells, start=1)]
    counts = Counter(name for _, name, _ in named if name)
    for name, count in counts.items():
        if count > 1:
            places = ", ".join(str(number) for number, own, _ in named if own == name)
            raise SubmissionError(
                f"grade_id {name!r} occurs {count} times (cells {places}); delete the copies"
            )
    parts = {part.name: part for part in assignment.parts if part.name}
    for part in parts.values():
        if part.kind == "solution" and part.name not in counts:
            raise SubmissionError(f"there is no cell with the grade_id {part.name!r}; put it back")
    run: dict[str, str] = {}
    for number, name, cell in named:
        given = parts.get(name)
        if cell["cell_type"] == "code" and (given is None or given.kind in ("given", "solution")):
            own = "".join(cell["source"])
            run[name or f"number {number}"] = given.text if given and given.kind == "given" else own
    return run


def _grade_id(cell: Mapping[str, Any]) -> str:
    return str(cell["metadata"].get("nbgrader", {}).get("grade_id", ""))


def grade_question(
    cells: Mapping[str, str], question: Part, seconds: float = SECONDS, patience: float = PATIENCE
) -> str:
    """Run one question in a process of its own; returns what is wrong, or nothing if it passes.

    Args:
        seconds: how long it may compute, rounded up to whole ones.
        patience: so many times longer may it take by the clock.
    """
    endless = f"it takes longer than {seconds:g} seconds; is there a loop that never ends?"
    wait = seconds * patience if LIMITED else seconds
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        asked = {"cells": dict(cells), "shown": question.shown, "hidden": question.hidden}
        try:
            ended = subprocess.run(
                [sys.executable, str(QUESTION), str(result), str(math.ceil(seconds))],
                input=json.dumps(asked),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                encoding="utf-8",
                cwd=folder,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                },  # else the threads of a large machine share the seconds
                timeout=wait,
                check=False,
            )
        except subprocess.TimeoutExpired:
            if LIMITED:
                return (
                    f"it has not ended after {wait:g} seconds, in which it computed for less than {seconds:g}; "
                    "does it sleep, or wait for something?"
                )
            return endless
        if LIMITED and ended.returncode == -signal.SIGXCPU:
            return endless
        if not result.is_file():
            return f"the process ended before the test did (exit status {ended.returncode})"
        outcome = json.loads(result.read_text(encoding="utf-8"))
    return "" if outcome["passed"] else str(outcome["message"])


def grade_submission(path: Path, assignment: Assignment, seconds: float = SECONDS) -> pd.DataFrame:
    """One row a question: its points, and what is wrong."""
    try:
        cells = read_submission(path, assignment)
        problems = [grade_question(cells, question, seconds) for question in assignment.questions]
    except SubmissionError as error:
        problems = [str(error)] * len(assignment.questions)
    rows = [
        {
            "assignment": assignment.name,
            "question": question.name,
            "points": 0 if problem else question.points,
            "of": question.points,
            "message": problem,
        }
        for question, problem in zip(assignment.questions, problems, strict=True)
    ]
    return pd.DataFrame(rows)


def submissions(folder: Path, assignments: Iterable[Assignment]) -> list[tuple[str, Path, Assignment]]:
    """The notebooks in `folder/STUDENT/ASSIGNMENT.ipynb` (nbgrader's deeper folders too), with their students."""
    by_name = {assignment.name: assignment for assignment in assignments}
    return [
        (path.relative_to(folder).parts[0], path, by_name[path.stem])
        for path in sorted(folder.glob("*/**/*.ipynb"))
        if path.stem in by_name and ".ipynb_checkpoints" not in path.parts
    ]


def feedback(student: str, graded: pd.DataFrame) -> str:
    """What a student gets to read."""
    name = graded.assignment.iloc[0]
    lines = [f"# {name}: {graded.points.sum()} of {graded.of.sum()} points", "", f"Student: {student}", ""]
    lines += [
        f"- `{row['question']}`: {row['points']} of {row['of']}. {row['message'] or 'Passed.'}"
        for row in graded.to_dict("records")
    ]
    return "\n".join(lines) + "\n"


def grade_folder(folder: Path, out: Path, seconds: float = SECONDS) -> pd.DataFrame:
    """Grade all submissions of a folder; writes `grades.csv` and one file of feedback for each into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    frames = []
    for student, path, assignment in submissions(folder, masters()):
        graded = grade_submission(path, assignment, seconds)
        text = feedback(student, graded)
        (out / f"{student}-{assignment.name}.md").write_text(text, encoding="utf-8")
        frames.append(graded.assign(student=student))
    columns = ["student", "assignment", "question", "points", "of", "message"]
    grades = pd.concat(frames)[columns] if frames else pd.DataFrame(columns=columns)
    grades.to_csv(out / "grades.csv", index=False)
    return grades
