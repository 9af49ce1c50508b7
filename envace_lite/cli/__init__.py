"""The command line: `envace demo`, `envace train`, `envace evaluate` and the rest; each `--help` teaches."""

from __future__ import annotations

import sys

import torch

from envace_lite.cli.shared import app

# isort: off
from envace_lite.cli import looking, training, comparing, course  # noqa: F401 (they add their commands, in this order)
# isort: on

__all__ = ["app", "main"]


def main() -> None:
    """Entry point. Expected mistakes end with one line that says what to do, not with a traceback."""
    from envace_lite.course.assignments import MasterError
    from envace_lite.experiments.records import RecordError
    from envace_lite.interrupts import done, interrupted
    from envace_lite.model.chat import VocabularyError
    from envace_lite.model.checkpoint import CheckpointError
    from envace_lite.model.policy import PolicyError
    from envace_lite.world import TaskFileError, UnknownDomain
    from envace_lite.world.paths import CheckoutError

    torch.set_num_threads(1)  # the workers are the parallelism
    try:
        app()
    except (
        CheckoutError,
        CheckpointError,
        MasterError,
        PolicyError,
        RecordError,
        TaskFileError,
        VocabularyError,
    ) as error:
        sys.exit(f"envace: {error}")
    except UnknownDomain as error:
        sys.exit(f"envace: {error.args[0]}")
    except OSError as error:
        sys.exit(
            f"envace: {error.filename or 'a file'}: {error.strerror or error}; choose another folder or free it"
        )
    except SystemExit as end:
        if end.code == 130:  # typer's way of saying that the person interrupted
            interrupted()
        raise
    finally:
        done()
