"""The command line: `envace demo`, `envace train`, `envace evaluate` and the rest; each `--help` teaches.

What only makes the project's own tables runs as `python -m envace_lite.experiments` and `python -m envace_lite.course`.
"""

from __future__ import annotations

from envace_lite.cli.shared import app
from envace_lite.experiments import shell

# isort: off
from envace_lite.cli import looking, training, teaching  # noqa: F401 (they add their commands, in this order)
# isort: on

__all__ = ["app", "main"]


def main() -> None:
    """Entry point."""
    from envace_lite.course.assignments import MasterError

    shell.main(app, MasterError)
