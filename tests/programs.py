"""Every command of the project, by its name: `envace NAME`, or behind `python -m`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from typing import Any

import typer

from envace_lite import cli
from envace_lite.course import __main__ as course
from envace_lite.experiments import __main__ as experiments
from envace_lite.experiments import shell

MAINS: dict[str, Callable[[], None]] = {
    "envace": cli.main,
    experiments.PROGRAM: lambda: shell.main(experiments.app),
    course.PROGRAM: lambda: shell.main(course.app),
}
APPS = {"envace": cli.app, experiments.PROGRAM: experiments.app, course.PROGRAM: course.app}
COMMANDS: dict[str, Any] = {}
PROGRAM_OF: dict[str, str] = {}
for program, app in APPS.items():
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        assert name not in COMMANDS, f"two programs have a command {name}"
        COMMANDS[name], PROGRAM_OF[name] = command, program


def run(*arguments: str, program: str | None = None) -> None:
    """Run a command in this process as the shell would; `SystemExit` as usual."""
    program = program or PROGRAM_OF.get(arguments[0] if arguments else "", "envace")
    sys.argv = [program.split()[-1], *arguments]
    MAINS[program]()


def parsed(line: str) -> dict[str, Any]:
    """The options of a command line; an unknown program, command or option is an error."""
    program = next(known for known in APPS if line.startswith(f"{known} "))
    name, *arguments = shlex.split(line.removeprefix(program), comments=True)
    assert PROGRAM_OF[name] == program, f"`{name}` is a command of `{PROGRAM_OF[name]}`"
    options: dict[str, Any] = COMMANDS[name].make_context(name, arguments).params
    return options
