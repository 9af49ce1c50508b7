"""How long each notebook of the course takes, and what a crowd of other processes on the same machine makes of it.

A notebook's time is that of the check that continuous integration runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from envace_lite.course.assignments import masters
from envace_lite.course.grading import grade_submission
from envace_lite.experiments.records import of_kind, write_record
from envace_lite.experiments.tables import markdown
from envace_lite.model.policy import load_policy
from envace_lite.train import TrainConfig, train
from envace_lite.world import paths
from envace_lite.world.shipped import shipped_tasks

LIMIT = 180
"""Seconds that a notebook may take on two cores."""
SPIN = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): pass"
"""What a busy process does, until the one that started it (its argument) is gone."""


class NotebookError(RuntimeError):
    """A notebook fails its check; the message names it, and holds the end of what was said."""


def measure(notebooks: Iterable[Path], *, command: str) -> dict[str, Any]:
    """Check notebooks by strict nbval, one after another, and write the record `notebooks`.

    Raises:
        NotebookError: one of them fails; nothing is recorded.
    """
    seconds = {}
    for path in notebooks:
        start = time.perf_counter()
        check(path)
        seconds[path.stem] = round(time.perf_counter() - start, 1)
        print(f"{path.stem:30} {seconds[path.stem]:6.1f} s", flush=True)
    record = {"kind": "notebooks", "command": command, "seed": 0, "cores": os.cpu_count(), "seconds": seconds}
    write_record("notebooks", record)
    return record


def strict_nbval() -> tuple[list[str], dict[str, str]]:
    """How notebooks are compared with what is committed: the options of pytest, and the environment it runs in."""
    tests = paths.ROOT / "tests"
    options = ["-p", "nbval_rules", "--nbval", "--nbval-sanitize-with", str(tests / "nbval_sanitize.cfg")]
    folders = [str(tests / "elsewhere"), str(tests), os.environ.get("PYTHONPATH", "")]
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    return options, {**os.environ, **environment}


def check(path: Path) -> None:
    """Check a notebook by strict nbval.

    Raises:
        NotebookError: it fails.
    """
    options, environment = strict_nbval()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, str(path)],
        cwd=paths.ROOT,
        env=environment,
        capture_output=True,
        check=False,
        encoding="utf-8",
    )
    if done.returncode:
        raise NotebookError(f"{path} fails its check:\n{done.stdout[-2000:]}")


@contextmanager
def crowd(count: int) -> Iterator[None]:
    """Keep so many other processes busy for the while; they end with this one, however it ends."""
    processes = [subprocess.Popen([sys.executable, "-c", SPIN, str(os.getpid())]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def grade_solved() -> list[str]:
    """Grade the solutions of all assignments; what is wrong with them, which is nothing."""
    problems: list[str] = []
    for assignment in masters():
        path = paths.ROOT / "notebooks" / "assignments" / "solution" / f"{assignment.name}.ipynb"
        problems += [problem for problem in grade_submission(path, assignment).message if problem]
    return problems


def _train_a_little() -> None:
    train(load_policy(paths.BASE), shipped_tasks(["orders"], "train"), TrainConfig(steps=4))


PARTS: dict[str, Callable[[], Any]] = {
    "grading the four solved assignments": grade_solved,
    "four steps of training on orders": _train_a_little,
    "notebook 02 under its check": lambda: check(paths.ROOT / "notebooks" / "02_one_rollout_two_roles.ipynb"),
}
"""What is timed with and without a crowd."""


def measure_crowd(count: int, *, command: str) -> dict[str, Any]:
    """Time a few parts alone and beside `count` busy processes, and write the record `crowd`.

    Raises:
        NotebookError: a notebook fails its check.
    """
    # What else was running makes the ratios smaller: the first time is then no longer that of an idle machine.
    load = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None
    seconds = {name: {"alone": _timed(part)} for name, part in PARTS.items()}
    with crowd(count):
        for name, part in PARTS.items():
            seconds[name]["in a crowd"] = _timed(part)
    for name, measured in seconds.items():
        measured["ratio"] = round(measured["in a crowd"] / measured["alone"], 2)
        print(f"{name:40} " + "  ".join(f"{key} {value:.1f}" for key, value in measured.items()), flush=True)
    record = {
        "kind": "crowd",
        "command": command,
        "seed": 0,
        "config": {"busy_processes": count},
        "cores": os.cpu_count(),
        "load_before": load,
        "seconds": seconds,
    }
    write_record("crowd", record)
    return record


def _timed(part: Callable[[], Any]) -> float:
    start = time.perf_counter()
    part()
    return round(time.perf_counter() - start, 2)


def minutes_table(records: Iterable[Mapping[str, Any]]) -> str:
    """The recorded times, as markdown."""
    for record in of_kind("notebooks", records):
        rows = {f"`{name}`": f"{seconds:.0f} s" for name, seconds in record["seconds"].items()}
        rows["all"] = f"{sum(record['seconds'].values()) / 60:.1f} min"
        heading = f"time on {record['cores']} cores"
        return markdown(pd.DataFrame({heading: rows}).rename_axis("notebook"))
    return ""


def crowd_table(records: Iterable[Mapping[str, Any]]) -> str:
    """What a crowd costs, as markdown: seconds alone and beside busy processes."""
    for record in of_kind("crowd", records):
        frame = pd.DataFrame(record["seconds"]).T.rename_axis("what")
        frame.columns = [
            "seconds alone",
            f"beside {record['config']['busy_processes']} busy processes",
            "ratio",
        ]
        return markdown(frame)
    return ""
