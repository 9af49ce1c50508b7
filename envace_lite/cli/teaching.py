"""Commands for those who teach the course."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from envace_lite.cli.shared import app
from envace_lite.world import paths


@app.command()
def assignments() -> None:
    """Make the student's copies, the solutions, the nbgrader sources and the rubric from the masters."""
    from envace_lite.course.assignments import generate

    paths.need_checkout("envace assignments")
    for path in generate():
        print(path.relative_to(paths.ROOT))


@app.command()
def grade(
    folder: Annotated[Path, typer.Argument(help="Holds STUDENT/ASSIGNMENT.ipynb for each submission.")],
    out: Annotated[Path, typer.Option(help="Folder for grades.csv and the feedback.")] = Path("grades"),
    seconds: Annotated[
        float, typer.Option(help="How long one question may compute; thirty times as long by the clock.")
    ] = 10.0,
) -> None:
    """Grade a folder of submissions on this machine: points as CSV, feedback for each student.

    It runs the students' code with your rights.
    """
    from envace_lite.course.grading import grade_folder

    paths.need_checkout("envace grade")
    grades = grade_folder(folder, out, seconds)
    if grades.empty:
        sys.exit(f"envace: no STUDENT/ASSIGNMENT.ipynb in {folder} has the name of an assignment")
    print(grades.groupby(["student", "assignment"])[["points", "of"]].sum().to_string())
    print(f"\nquestion by question: {out / 'grades.csv'}")


@app.command()
def site(
    out: Annotated[Path, typer.Option(help="Folder for the pages.")] = paths.ROOT / "site",
) -> None:
    """Render the course as static HTML with an index; the pages need no server and no network."""
    from envace_lite.course.site import build

    paths.need_checkout("envace site")
    print(f"open {build(out)}")
