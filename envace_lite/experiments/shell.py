"""What all commands share: options and their checks, how runs are started, and how a mistake ends."""

from __future__ import annotations

import math
import runpy
import shlex
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from envace_lite.world import paths

if TYPE_CHECKING:
    from envace_lite.evaluate import Report
    from envace_lite.world import Domain

Domains = Annotated[str, typer.Option(help="Domains, separated by commas, or `all`.")]
Seed = Annotated[int, typer.Option(help="Seed of everything that is drawn.")]
PolicyFolder = Annotated[
    Path, typer.Option("--policy", help="Folder of a policy; the shipped base by default.")
]


ELSEWHERE = {
    "envace_lite.experiments": (
        "study",
        "trap",
        "ranks",
        "trust",
        "smoke",
        "deliberate",
        "bench",
        "audit",
        "controls",
    ),
    "envace_lite.course": ("minutes", "installs"),
}
"""The commands that only make the project's own tables, by the module that has them."""


class _Commands(TyperGroup):
    """Commands that know where another program has the one that was meant."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = super().get_command(ctx, cmd_name)
        for module, names in ELSEWHERE.items():
            if found is None and cmd_name in names:
                ctx.fail(f"{cmd_name!r} is a command of: python -m {module}")
        return found


def own_domain(source: str) -> Domain:
    """The domain that FILE.py:NAME names, registered; anything else is refused."""
    from envace_lite.world import Domain, register

    file, _, variable = source.rpartition(":")
    try:
        own = runpy.run_path(file)[variable]
    except (OSError, KeyError, ImportError) as error:
        raise typer.BadParameter(f"{source!r}: {error!r}; write FILE.py:NAME", param_hint="SOURCE") from error
    if not isinstance(own, Domain):
        raise typer.BadParameter(f"{variable} is no domain but a {type(own).__name__}", param_hint="SOURCE")
    register(own)
    return own


def new_app(about: str) -> typer.Typer:
    """A program without commands; its help begins with `about`."""
    return typer.Typer(
        cls=_Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=about
    )


def domain_names(names: str) -> list[str]:
    """The domains of an option: names separated by commas, or `all`."""
    from envace_lite.world import DOMAINS, get_domain

    return list(DOMAINS) if names == "all" else [get_domain(name.strip()).name for name in names.split(",")]


def command_line(program: str = "envace") -> str:
    """The command as it was typed, for a record."""
    return f"{program} {shlex.join(sys.argv[1:])}"


def split_name(name: str) -> str:
    """An option that names a split."""
    from envace_lite.world.draw import SPLITS

    if name not in SPLITS:
        raise typer.BadParameter(f"there are the splits {', '.join(SPLITS)}; {name!r} is none")
    return name


def arm_names(names: str) -> str:
    """An option that names arms."""
    from envace_lite.experiments.arms import ARMS

    for name in names.split(","):
        if name not in ARMS:
            raise typer.BadParameter(f"{name!r}; there are the arms {', '.join(ARMS)}")
    return names


def arm_name(name: str) -> str:
    """An option that names one arm."""
    if "," in name:
        raise typer.BadParameter(f"{name!r}; one arm at a time")
    return arm_names(name)


def cell_names(names: str) -> str:
    """An option that names cells of the trap."""
    from envace_lite.experiments.trap import CELLS

    for name in names.split(",") if names != "all" else ():
        if name not in CELLS:
            raise typer.BadParameter(f"{name!r}; there are the cells {', '.join(CELLS)}")
    return names


def writable(folder: Path) -> Path:
    """Make an output folder, so that one that cannot be written is found out before anything is trained."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass
    return folder


def run_missing(commands: dict[str, list[str]]) -> bool:
    """Run the commands whose record is missing, two at a time; whether one failed. Each writes a log to .work.

    Args:
        commands: by the name of their record, what follows `python -m`.

    An interrupt ends the running ones too; they continue from their checkpoints.
    """
    import subprocess
    from concurrent.futures import ThreadPoolExecutor

    from envace_lite.experiments.records import record_files
    from envace_lite.model.checkpoint import CheckpointError, claimed

    running: set[subprocess.Popen[bytes]] = set()
    stopped = False

    def run(name: str) -> int:
        log = paths.WORK / f"{name}.log"
        command = [sys.executable, "-m", *commands[name]]
        try:
            # A second study keeps off the log too. A run that outlived its killed study may still be writing to it.
            with claimed(paths.WORK, log.name), log.open("ab") as file:
                if stopped:
                    return 1
                child = subprocess.Popen(command, stdout=file, stderr=file)
                running.add(child)
                if stopped:  # in between
                    child.terminate()
                code = child.wait()
        except CheckpointError as error:
            print(f"{name}: {error}", flush=True)
            return 1
        ended = "recorded" if code == 0 else "stopped" if stopped else f"failed, see {log}"
        print(f"{name}: {ended}", flush=True)
        return code

    recorded = record_files()
    missing = [name for name in commands if name not in recorded]
    with ThreadPoolExecutor(2) as pool:
        try:
            codes = list(pool.map(run, missing))  # all of them, also after a failure
        finally:
            # Only the terminal's own interrupt reaches the children. None is running unless this one was interrupted.
            stopped = True
            for child in running:
                child.terminate()
    return any(codes)


def print_report(split: str, report: Report) -> None:
    """Every metric of an evaluation with its interval, one column a domain and kind of task."""
    table = report.summary()
    names = list(dict.fromkeys(table.index.get_level_values(0)))
    print(f"\n{split:18}" + "".join(f"{name:>24}" for name in names))
    for metric in dict.fromkeys(table.index.get_level_values(1)):
        cells = [table.loc[(name, metric)] for name in names]
        shown = [
            "-" if math.isnan(c.value) else f"{c.value:.3f} ({c.low:.3f} to {c.high:.3f})" for c in cells
        ]
        print(f"{metric:18}" + "".join(f"{cell:>24}" for cell in shown))


def print_measures(rows: Mapping[str, Mapping[str, str]]) -> None:
    """Every measure of a trained policy, one column a split.

    Args:
        rows: of each split, as they stand in a record.
    """
    from envace_lite.experiments.rows import MEASURES, unpack, value

    print(f"\n{'':18}" + "".join(f"{split:>10}" for split in rows))
    for measure in MEASURES:
        numbers = [value(unpack(some), measure) for some in rows.values()]
        print(f"{measure:18}" + "".join(f"{'-':>10}" if math.isnan(n) else f"{n:10.3f}" for n in numbers))


def main(app: typer.Typer, *expected: type[Exception]) -> None:
    """Run an app. Expected mistakes end with one line that says what to do, not with a traceback.

    Args:
        expected: mistakes that only this app's commands know.
    """
    import torch

    from envace_lite.experiments.records import RecordError
    from envace_lite.interrupts import done, interrupted
    from envace_lite.model.checkpoint import CheckpointError
    from envace_lite.model.language import VocabularyError
    from envace_lite.model.policy import PolicyError
    from envace_lite.world import TaskFileError, UnknownDomain
    from envace_lite.world.paths import CheckoutError

    torch.set_num_threads(1)  # the workers are the parallelism
    known = (CheckoutError, CheckpointError, PolicyError, RecordError, TaskFileError, VocabularyError)
    try:
        app()
    except (*known, *expected) as error:  # type: ignore[misc]
        sys.exit(f"envace: {error}")
    except UnknownDomain as error:
        sys.exit(f"envace: {error.args[0]}")
    except OSError as error:
        name, reason = error.filename or "a file", error.strerror or error
        sys.exit(f"envace: {name}: {reason}; choose another folder or free it")
    except SystemExit as end:
        if end.code == 130:  # typer's way of saying that the person interrupted
            interrupted()
        raise
    finally:
        done()
