"""How long each notebook of the course takes, measured by the check that continuous integration runs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from envace_lite import paths
from envace_lite.records import write_record
from envace_lite.tables import markdown

LIMIT = 180
"""Seconds that a notebook may take on two cores."""


class NotebookError(RuntimeError):
    """A notebook fails its check; the message names it, and holds the end of what was said."""


def measure(notebooks: Iterable[Path], *, command: str) -> dict[str, Any]:
    """Check notebooks by strict nbval, one after another, and write the record `notebooks`.

    Raises:
        NotebookError: one of them fails; nothing is recorded.
    """
    seconds = {}
    tests = paths.ROOT / "tests"
    check = [sys.executable, "-m", "pytest", "-q", "-p", "nbval_rules", "--nbval", "--nbval-sanitize-with"]
    folders = os.pathsep.join(map(str, (tests / "elsewhere", tests)))
    for path in notebooks:
        start = time.perf_counter()
        done = subprocess.run(
            [*check, str(tests / "nbval_sanitize.cfg"), str(path)],
            cwd=paths.ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": folders},
            capture_output=True,
            check=False,
            encoding="utf-8",
        )
        if done.returncode:
            raise NotebookError(f"{path} fails its check:\n{done.stdout[-2000:]}")
        seconds[path.stem] = round(time.perf_counter() - start, 1)
        print(f"{path.stem:30} {seconds[path.stem]:6.1f} s", flush=True)
    record = {"kind": "notebooks", "command": command, "seed": 0, "cores": os.cpu_count(), "seconds": seconds}
    write_record("notebooks", record)
    return record


def minutes_table(records: Iterable[Mapping[str, Any]]) -> str:
    """The recorded times, as markdown."""
    for record in records:
        if record.get("kind") == "notebooks":
            rows = {f"`{name}`": f"{seconds:.0f} s" for name, seconds in record["seconds"].items()}
            rows["all"] = f"{sum(record['seconds'].values()) / 60:.1f} min"
            heading = f"time on {record['cores']} cores"
            return markdown(pd.DataFrame({heading: rows}).rename_axis("notebook"))
    return ""
