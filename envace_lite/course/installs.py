"""Which versions the project was tried with: where the tests ran, and what pip would install elsewhere.

Both are kept in one record, `installs`. The two words for them do not mean the same: *run* says that the tests ran
with these versions, *resolved* only that pip finds versions that agree with each other and exist as built packages.
pip reads the conditions of a package (`python_version < "3.12"`) for the Python that runs it, so a resolution for
another Python is close to what would be installed there, and not always equal.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd

from envace_lite.course.timing import strict_nbval
from envace_lite.experiments.records import of_kind, read_records, write_record
from envace_lite.experiments.tables import markdown
from envace_lite.world import paths

SHOWN = (
    "torch",
    "transformers",
    "peft",
    "tokenizers",
    "numpy",
    "pandas",
    "scipy",
    "matplotlib",
    "jupyterlab",
)
"""The packages whose versions the table shows; the record has all that pyproject.toml names."""


RECORDING = "ENVACE_RECORDING"
"""The environment variable by which a test knows that the record which it reads is being made."""


class InstallError(RuntimeError):
    """Nothing could be measured; the message holds the end of what was said."""


def requirements() -> list[str]:
    """What the package and its tests need, as pyproject.toml says it."""
    about = tomllib.loads((paths.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*about["dependencies"], *about["optional-dependencies"]["test"]]


def names() -> list[str]:
    """The packages that pyproject.toml names."""
    return [requirement.partition(">=")[0] for requirement in requirements()]


def counts(report: Path) -> dict[str, int]:
    """How many tests passed, failed and were skipped, as pytest's report in XML tells it."""
    total = {"passed": 0, "failed": 0, "skipped": 0}
    for suite in ElementTree.parse(report).iter("testsuite"):
        failed, skipped = (
            int(suite.get("failures", 0)) + int(suite.get("errors", 0)),
            int(suite.get("skipped", 0)),
        )
        total["failed"] += failed
        total["skipped"] += skipped
        total["passed"] += int(suite.get("tests", 0)) - failed - skipped
    return total


def run_tests(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Run pytest with these packages; what it prints is seen.

    Returns:
        The counts, and the minutes that it took.

    Raises:
        InstallError: pytest did not come to its end.
    """
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", f"--junitxml={report}", *arguments]
        done = subprocess.run(
            command,
            cwd=paths.ROOT,
            env={**environment, "OMP_NUM_THREADS": "1", RECORDING: "1"},
            check=False,
            encoding="utf-8",
        )
        if done.returncode not in (0, 1) or not report.is_file():  # 1: some failed; more: it was not run
            raise InstallError(f"pytest ended with {done.returncode}; nothing is recorded")
        told = counts(report)
    return {**told, "minutes": round((time.perf_counter() - begin) / 60, 1)}


def run_here(tests: bool = True, notebooks: bool = True, workers: int = 2) -> dict[str, Any]:
    """Run the tests, then the notebooks against their committed outputs, with whatever is installed here."""
    told: dict[str, Any] = {}
    if tests:
        told["tests"] = run_tests(["-n", str(workers), "--dist", "loadscope", "tests"])
    if notebooks:
        chapters = sorted((paths.ROOT / "notebooks").glob("*.ipynb"))
        options, environment = strict_nbval()
        told["notebooks"] = run_tests([*options, *map(str, chapters)], environment)
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {name: version(name) for name in names()},
        **told,
    }


def resolve(python: str) -> dict[str, Any]:
    """Ask the newest pip what it would install for another Python. Nothing is installed.

    Raises:
        InstallError: pip finds no versions that agree.
    """
    with tempfile.TemporaryDirectory() as folder:
        home, report = Path(folder) / "pip", Path(folder) / "report.json"
        venv.create(home, with_pip=True)
        pip = [
            str(home / ("Scripts" if os.name == "nt" else "bin") / "python"),
            "-m",
            "pip",
            "install",
            "--quiet",
        ]
        # Older ones download the packages themselves, several gigabytes, only to read what these need.
        _ask([*pip, "--upgrade", "pip>=25.3"], "pip cannot be renewed")
        options = ["--dry-run", "--use-feature=fast-deps", "--ignore-installed", "--report", str(report)]
        where = ["--python-version", python, "--only-binary=:all:", "--target", folder]
        _ask([*pip, *options, *where, *requirements()], f"pip finds no versions for Python {python}")
        installed = json.loads(report.read_text(encoding="utf-8"))["install"]
    found = {canonical(entry["metadata"]["name"]): entry["metadata"]["version"] for entry in installed}
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {name: found[canonical(name)] for name in names()},
    }


def _ask(command: Sequence[str], problem: str) -> None:
    done = subprocess.run(command, capture_output=True, check=False, encoding="utf-8")
    if done.returncode:
        raise InstallError(f"{problem}: {done.stderr.strip()[-1000:]}")


def canonical(name: str) -> str:
    """A package's name as an index writes it."""
    return name.lower().replace("_", "-").replace(".", "-")


def keep(part: str, name: str, entry: Mapping[str, Any], *, command: str) -> Path:
    """Add one entry to the record `installs`, in place of an earlier one of that name.

    Where that had the very same versions, what only it has is kept: the notebooks may be run after the tests.
    """
    found = of_kind("installs", read_records())
    parts = {key: dict(found[0][key]) if found else {} for key in ("run", "resolved")}
    earlier = parts[part].get(name, {})
    same = all(earlier.get(key) == entry.get(key) for key in ("python", "system", "versions"))
    parts[part][name] = {**(earlier if same else {}), **entry}
    return write_record("installs", {"kind": "installs", "command": command, "seed": 0, **parts})


def told(result: Mapping[str, Any] | None) -> str:
    """The counts of a run in words."""
    if not result:
        return "not run"
    return ", ".join(f"{result[key]:,} {key}" for key in ("passed", "failed", "skipped") if result[key])


def installs_table(records: Iterable[Mapping[str, Any]]) -> str:
    """What was run and what was resolved, as markdown: one column for each environment."""
    columns: dict[str, dict[str, str]] = {}
    for record in of_kind("installs", records):
        for name, run in record["run"].items():
            columns[name] = {
                "": f"run, {run['date']}",
                "Python": run["python"],
                "system": f"`{run['system']}`",
                **{package: run["versions"][package] for package in SHOWN},
                "tests": told(run.get("tests")),
                "notebooks, by cell": told(run.get("notebooks")),
            }
        for name, one in record["resolved"].items():
            columns[f"Python {name}"] = {
                "": f"resolved, {one['date']}",
                "Python": name,
                "system": "-",
                **{package: one["versions"][package] for package in SHOWN},
                "tests": "not run",
                "notebooks, by cell": "not run",
            }
    return markdown(pd.DataFrame(columns).rename_axis("environment")) if columns else ""


def settings_table(records: Iterable[Mapping[str, Any]]) -> str:
    """Under which settings of each kind of processor the tests and notebooks were run, as markdown."""
    tables = []
    for record in of_kind("elsewhere", records):
        rows = {}
        for name, entry in record["settings"].items():
            rows[f"`{name}`" if "=" in name else name] = {
                "passed": entry["passed"],
                "failed": entry["failed"],
                "minutes of one core": f"{entry['seconds'] / 60:.1f}",
                "computes alike": "; ".join(f"`{n}`" if "=" in n else n for n in entry["alike"]) or "-",
            }
        frame = pd.DataFrame.from_dict(rows, orient="index").rename_axis("setting")
        where = f"{record['date']}, {record['processor']}, torch {record['versions']['torch']}"
        tables.append(f"{where}:\n\n{markdown(frame)}")
    return "\n\n".join(tables)
