"""Commands of the course."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from envace_lite.cli.shared import app, command_line
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


@app.command()
def minutes(
    crowd: Annotated[
        int, typer.Option(help="Instead time a few parts beside so many busy processes: the record `crowd`.")
    ] = 0,
) -> None:
    """Time every notebook under the check of continuous integration, and write the record `notebooks`."""
    from envace_lite.course.timing import NotebookError, measure, measure_crowd

    paths.need_checkout("envace minutes")
    try:
        if crowd:
            measure_crowd(crowd, command=command_line())
            return
        measure(sorted((paths.ROOT / "notebooks").glob("*.ipynb")), command=command_line())
    except NotebookError as error:
        sys.exit(f"envace: {error}")


@app.command()
def installs(
    name: Annotated[str, typer.Option(help="How the table calls this environment.")] = "here",
    resolve: Annotated[
        list[str] | None,
        typer.Option(help="Only ask pip what it would install for this Python, as 3.12; may be given again."),
    ] = None,
    tests: Annotated[bool, typer.Option(help="Run the tests.")] = True,
    notebooks: Annotated[bool, typer.Option(help="Run the notebooks too.")] = True,
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the tests.")] = 2,
    record: Annotated[bool, typer.Option(help="Write the result to data/runs/installs.json.")] = False,
) -> None:
    """Run the tests and the notebooks with the versions that are installed here, and count what passed.

    `make oldest` and `make newest` run it in environments of their own. With --resolve nothing is run or installed.
    """
    from envace_lite.course import installs as measure

    paths.need_checkout("envace installs")
    found: list[tuple[str, str, dict[str, Any]]]
    try:
        if resolve:
            found = [("resolved", python, measure.resolve(python)) for python in resolve]
        else:
            found = [("run", name, measure.run_here(tests, notebooks, workers))]
    except measure.InstallError as error:
        sys.exit(f"envace: {error}")
    for part, key, entry in found:
        versions = ", ".join(f"{package} {entry['versions'][package]}" for package in measure.SHOWN)
        print(f"{key}, {part}: {versions}")
        for what in ("tests", "notebooks"):
            if what in entry:
                print(f"  {what}: {measure.told(entry[what])}, {entry[what]['minutes']} minutes")
        if record:
            measure.keep(part, key, entry, command=command_line())
    if any(
        entry[what]["failed"] for _, _, entry in found for what in ("tests", "notebooks") if what in entry
    ):
        raise typer.Exit(1)
