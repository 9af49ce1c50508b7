"""Installation: what a wheel holds and does, the oldest versions, and what is said of the versions that were tried."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import floors
from envace_lite import paths
from envace_lite.course import installs
from envace_lite.experiments.records import read_records, record_files, write_record

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ["base", "rehearsed", "runs", "tasks", "workshop"]
"""The folders of data that the wheel carries."""
MEGABYTE = 2**20


# Where the data is found -----------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder that looks like a checkout, as far as the library looks."""
    folder = tmp_path / "clone"
    for name in ("data/base", "notebooks", "envace_lite"):
        (folder / name).mkdir(parents=True)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def test_the_package_of_a_checkout_uses_its_data(checkout: Path, tmp_path: Path) -> None:
    assert paths.find(checkout / "envace_lite", None, tmp_path) == (checkout, checkout / "data")
    assert (paths.ROOT, paths.DATA, paths.PACKAGED) == (ROOT, ROOT / "data", False)


def test_the_environment_variable_comes_first(checkout: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert paths.find(checkout / "envace_lite", str(other), tmp_path) == (other, other / "data")
    assert paths.find(checkout / "envace_lite", "", tmp_path)[0] == checkout, "empty is as good as not set"


@pytest.mark.parametrize("lacking", ["pyproject.toml", "data", "name", "TOML"])
def test_elsewhere_the_package_uses_its_own_data_and_writes_here(
    checkout: Path, tmp_path: Path, lacking: str
) -> None:
    about = checkout / "pyproject.toml"
    if lacking == "pyproject.toml":
        about.unlink()
    elif lacking == "data":
        shutil.rmtree(checkout / "data")
    else:
        about.write_text('[project]\nname = "other"\n' if lacking == "name" else "[", encoding="utf-8")
    package = checkout / "envace_lite"
    assert paths.find(package, None, tmp_path) == (tmp_path, package / "data")


def test_new_records_stand_beside_the_shipped_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped, new = tmp_path / "shipped", tmp_path / "new"
    write_record("one", {"seed": 1}, shipped)
    write_record("two", {"seed": 2}, shipped)
    monkeypatch.setattr(paths, "SHIPPED_RUNS", shipped)
    monkeypatch.setattr(paths, "RUNS", new)
    monkeypatch.setattr(paths, "PACKAGED", True)
    assert [record["seed"] for record in read_records()] == [1, 2]
    assert write_record("two", {"seed": 3}).parent == new
    assert [record["seed"] for record in read_records()] == [1, 3]
    assert list(record_files(shipped)) == ["one", "two"]
    assert [record["seed"] for record in read_records(new)] == [3]
    monkeypatch.setattr(paths, "PACKAGED", False)
    assert list(record_files()) == ["two"], "a checkout has one folder of records"


def test_what_needs_the_notebooks_is_refused_without_them(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "ROOT", checkout)
    paths.need_checkout("envace site")
    shutil.rmtree(checkout / "notebooks")
    with pytest.raises(
        paths.CheckoutError, match=r"^envace site needs a checkout of the project.*ENVACE_ROOT"
    ):
        paths.need_checkout("envace site")


# The wheel -------------------------------------------------------------------------------------------------


LIST = """
from setuptools.dist import Distribution
told = Distribution({"script_name": "setup.py"})
told.parse_config_files(["pyproject.toml"])
build = told.get_command_obj("build_py")
build.ensure_finalized()
build.build_lib = ""
print("\\n".join(build.get_outputs(include_bytecode=False)))
"""


def wheel_files(root: Path) -> set[str]:
    """What setuptools would put into a wheel, without building one."""
    command = [sys.executable, "-c", LIST]
    done = subprocess.run(command, cwd=root, capture_output=True, check=True, encoding="utf-8")
    return {Path(line).as_posix() for line in done.stdout.splitlines()}


def wanted_files(root: Path) -> set[str]:
    """Every module, and every file of the shipped data."""
    modules = {path.relative_to(root).as_posix() for path in (root / "envace_lite").rglob("*.py")}
    data = [path for name in SHIPPED for path in (root / "data" / name).glob("[!.]*")]
    data.append(root / "data" / "README.md")
    return modules | {f"envace_lite/{path.relative_to(root).as_posix()}" for path in data}


def test_the_wheel_holds_every_module_and_the_data() -> None:
    assert wheel_files(ROOT) == wanted_files(ROOT)


def test_a_package_and_a_file_that_the_wheel_lacks_are_found(tmp_path: Path) -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for name in ("LICENSE", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("envace_lite", "envace_lite/cli", "data/base", "data/tasks", "data/rehearsed", "data/runs"):
        (tmp_path / name).mkdir(parents=True)
    files = ["envace_lite/__init__.py", "envace_lite/cli/__init__.py", "data/README.md", "data/base/weights"]
    for name in files:
        (tmp_path / name).write_text("", encoding="utf-8")
    short = text[: text.index("packages = [")] + 'packages = ["envace_lite", "envace_lite.data"]\n'
    short += text[text.index("package-dir =") :].replace('"base/*", ', "")
    (tmp_path / "pyproject.toml").write_text(short, encoding="utf-8")
    lacking = wanted_files(tmp_path) - wheel_files(tmp_path)
    assert lacking == {"envace_lite/cli/__init__.py", "envace_lite/data/base/weights"}


def clean_environment() -> dict[str, str]:
    """The environment without what would lead Python or the library to this checkout."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "ENVACE_ROOT")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built from a copy, so that nothing is left behind in the checkout."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("envace_lite", "data"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(out), str(source)], check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


Installed = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """Runs `envace ...` of the wheel, installed in an environment of its own, in a folder that is empty at first.

    Nothing is downloaded: the environment also sees the packages of the one that runs the tests.
    """
    home, here = tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("empty")
    venv.create(home, with_pip=True)
    programs = home / ("Scripts" if os.name == "nt" else "bin")
    pip = [str(programs / "python"), "-m", "pip", "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(pip, check=True, capture_output=True, env=clean_environment())
    (package,) = home.rglob("site-packages/envace_lite")
    (package.parent / "others.pth").write_text("\n".join(site.getsitepackages()), encoding="utf-8")
    before = sorted(path for path in package.rglob("*") if "__pycache__" not in path.parts)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(programs / "envace"), *arguments],
            cwd=here,
            env=clean_environment(),
            capture_output=True,
            check=False,
            encoding="utf-8",
        )

    run.here = here  # type: ignore[attr-defined]
    yield run
    after = sorted(path for path in package.rglob("*") if "__pycache__" not in path.parts)
    assert after == before, "a command wrote into the installed package"


@pytest.mark.long
def test_the_wheel_is_small(wheel: Path) -> None:
    assert 8 * MEGABYTE < wheel.stat().st_size < 16 * MEGABYTE


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "words", "written"),
    [
        (
            "demo --steps 2 --record",
            ["The base model: ", "Go on: envace probe", "figures"],
            ["figures/gap.png", "figures/rehearsed_next_to_real.html", "data/runs/demo-orders-0.json"],
        ),
        ("evaluate --limit 5", ["real_success", "bank"], []),
        ("probe --limit 5", ["the rehearsed world lacks: "], ["figures/probe.html"]),
        ("rehearse --limit 2 --budget 2", ["private rehearsal, N = 2"], []),
        ("report", ["world rehearsal, task success"], []),
        ("train --domain orders --steps 1 --no-record", ["real_success"], [".work/unrecorded"]),
    ],
)
def test_a_command_of_the_wheel_works_in_an_empty_folder(
    installed: Installed, command: str, words: list[str], written: list[str]
) -> None:
    done = installed(*command.split())
    assert done.returncode == 0, done.stderr
    for word in words:
        assert word in done.stdout
    here: Path = installed.here  # type: ignore[attr-defined]
    for name in written:
        assert (here / name).exists(), name


@pytest.mark.long
@pytest.mark.parametrize("command", ["assignments", "grade submitted", "site", "minutes", "installs"])
def test_a_command_that_needs_the_checkout_says_so_in_one_line(installed: Installed, command: str) -> None:
    done = installed(*command.split())
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"envace: envace {command.split(maxsplit=1)[0]} needs a checkout of the project")


# The oldest versions ---------------------------------------------------------------------------------------


def test_every_requirement_has_an_exact_floor() -> None:
    exact = floors.read()
    assert exact[0].startswith("torch==")
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [*about["dependencies"], *about["optional-dependencies"]["test"]]
    assert [line.replace("==", ">=") for line in exact] == needed


@pytest.mark.parametrize(
    "line", ["numpy", "numpy==2.1.0", "numpy>=2", "numpy>=2.1,<3", "a>=1.0; os_name == 'nt'"]
)
def test_a_requirement_without_an_exact_floor_is_refused(line: str) -> None:
    with pytest.raises(floors.FloorError, match="is not of the form name>=version"):
        floors.floors(["torch>=2.9.0", line])


def test_the_floors_are_printed_by_a_bare_python() -> None:
    """It is needed before anything is installed, so it may import nothing else."""
    command = [sys.executable, "-I", "-S", str(ROOT / "tests" / "floors.py")]
    done = subprocess.run(command, capture_output=True, check=True, encoding="utf-8")
    assert done.stdout.splitlines() == floors.read()


not_while_recording = pytest.mark.skipif(
    installs.RECORDING in os.environ, reason="reads the record that is being made"
)


def recorded(*runs: str) -> dict[str, Any]:
    """The record, which has to hold these runs: they take hours on a small machine, so they may still be missing."""
    (record,) = [record for record in read_records() if record.get("kind") == "installs"]
    if missing := [name for name in runs if name not in record["run"]]:
        pytest.skip(f"not recorded yet: make {' '.join(missing)} INSTALLS=--record")
    return record


@not_while_recording
def test_the_recorded_oldest_run_had_the_floors_and_the_newest_none_older() -> None:
    """So a floor cannot be lowered without a run: `make oldest INSTALLS=--record`."""
    run = recorded("oldest", "newest")["run"]
    assert [f"{name}=={version}" for name, version in run["oldest"]["versions"].items()] == floors.read()
    assert set(run["newest"]["versions"]) == set(run["oldest"]["versions"])
    assert run["newest"]["versions"] != run["oldest"]["versions"]


# What was tried --------------------------------------------------------------------------------------------


def test_the_counts_are_those_of_the_report(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite tests="9" failures="1" errors="2" skipped="3"/></testsuites>',
        encoding="utf-8",
    )
    assert installs.counts(report) == {"passed": 3, "failed": 3, "skipped": 3}
    assert installs.told(installs.counts(report)) == "3 passed, 3 failed, 3 skipped"
    assert installs.told({"passed": 1877, "failed": 0, "skipped": 0}) == "1,877 passed"
    assert installs.told(None) == "not run"


def test_a_run_of_pytest_is_counted_and_one_that_does_not_start_is_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # plugins take seconds to load
    mixed = tmp_path / "test_mixed.py"
    mixed.write_text("def test_good(): pass\ndef test_bad(): assert False\n", encoding="utf-8")
    options = ["-c", os.devnull, "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
    told = installs.run_tests([*options, str(mixed)])
    assert (told["passed"], told["failed"], told["skipped"]) == (1, 1, 0)
    with pytest.raises(installs.InstallError, match="pytest ended with 4; nothing is recorded"):
        installs.run_tests([*options, str(mixed), "--no-such-option"])


def test_entries_are_kept_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "RUNS", tmp_path)
    versions = dict.fromkeys(installs.names(), "1.0")
    tests = {"passed": 5, "failed": 1, "skipped": 0, "minutes": 2.0}
    run = {"date": "2030-01-02", "python": "3.11.7", "system": "Linux x86_64", "versions": versions}
    installs.keep("run", "oldest", {**run, "tests": tests}, command="by hand")
    installs.keep(
        "resolved",
        "3.14",
        {"date": "2030-01-03", "versions": versions},
        command="by hand",
    )
    newer = {**run, "tests": {**tests, "failed": 0}, "notebooks": {**tests, "failed": 0}}
    installs.keep("run", "newest", newer, command="by hand")
    table = [line.strip("| ").split(" | ") for line in installs.installs_table(read_records()).splitlines()]
    rows = {row[0]: row[1:] for row in table}
    assert rows["environment"] == ["oldest", "newest", "Python 3.14"]
    assert rows["tests"] == ["5 passed, 1 failed", "5 passed", "not run"]
    assert rows["notebooks, by cell"] == ["not run", "5 passed", "not run"]
    assert table[2] == ["run, 2030-01-02", "run, 2030-01-02", "resolved, 2030-01-03"]
    assert rows["torch"] == ["1.0"] * 3
    installs.keep("run", "newest", {**run, "tests": tests}, command="by hand")
    assert "5 passed, 1 failed | 5 passed, 1 failed |" in installs.installs_table(read_records())
    assert "not run | 5 passed | not run" in installs.installs_table(read_records()), "of the same versions"
    other = {**run, "versions": {**versions, "torch": "1.1"}, "tests": tests}
    installs.keep("run", "newest", other, command="by hand")
    assert "not run | not run | not run" in installs.installs_table(read_records()), "of other versions"


def test_a_resolution_asks_pip_and_installs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(installs.venv, "create", lambda *_, **__: None)
    names = [*installs.names(), "not-asked-for"]
    found = {"install": [{"metadata": {"name": name.upper(), "version": "1.5"}} for name in names]}

    def pip(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        if "3.99" in command:
            return subprocess.CompletedProcess(command, 1, "", "No matching distribution")
        if "--report" in command:
            report = Path(command[command.index("--report") + 1])
            report.write_text(json.dumps(found), encoding="utf-8")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", pip)
    assert installs.resolve("3.14")["versions"] == dict.fromkeys(installs.names(), "1.5")
    assert {"--dry-run", "--ignore-installed", "--only-binary=:all:", "3.14"} <= set(asked[1])
    assert asked[0][-2:] == ["--upgrade", "pip>=25.3"]
    with pytest.raises(installs.InstallError, match=r"Python 3\.99: No matching distribution"):
        installs.resolve("3.99")


@not_while_recording
def test_what_was_tried_covers_what_the_project_promises() -> None:
    """The later Pythons are at least resolved, with every package that is needed."""
    record = recorded()
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (listed,) = [line for line in text.splitlines() if line.startswith("PYTHONS := ")]
    assert set(listed.split()[2:]) == set(record["resolved"])
    for entry in [*record["run"].values(), *record["resolved"].values()]:
        assert list(entry["versions"]) == installs.names()


def test_each_kind_of_processor_has_its_settings() -> None:
    entry = {"passed": 3, "failed": 1, "seconds": 90.0, "alike": ["two threads", "A=b"]}
    records = [
        {
            "kind": "elsewhere",
            "date": "2030-01-02",
            "processor": f"x86_64 with {able}",
            "versions": {"torch": "2.0"},
            "settings": {"C=d": entry, "as it is": {**entry, "alike": []}},
        }
        for able in ("AVX2", "AVX512")
    ]
    first, second = installs.settings_table(records).split("2030-01-02, ")[1:]
    assert first.startswith("x86_64 with AVX2, torch 2.0:\n\n| setting | passed | failed |")
    assert "| `C=d` | 3 | 1 | 1.5 | two threads; `A=b` |" in first
    assert "| as it is | 3 | 1 | 1.5 | - |" in second
    assert installs.settings_table([]) == ""
