"""What is measured about the course itself: `python -m envace_lite.course minutes` and `installs`."""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated, Any

import typer

from envace_lite.experiments import shell
from envace_lite.world import paths

PROGRAM = "python -m envace_lite.course"

app = shell.new_app("How long the notebooks take, and with which versions they and the tests pass.")
command_line = partial(shell.command_line, PROGRAM)


@app.command()
def minutes(
    crowd: Annotated[
        int, typer.Option(help="Instead time a few parts beside so many busy processes: the record `crowd`.")
    ] = 0,
) -> None:
    """Time every notebook under the check of continuous integration, and write the record `notebooks`."""
    from envace_lite.course.timing import NotebookError, measure, measure_crowd

    paths.need_checkout("python -m envace_lite.course minutes")
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

    paths.need_checkout("python -m envace_lite.course installs")
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


if __name__ == "__main__":
    shell.main(app)
