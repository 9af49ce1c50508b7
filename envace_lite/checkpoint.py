"""Checkpoints that survive an interrupt: a new one replaces the old one only when it is complete on disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read; the message says what to do."""


def save_state(path: Path | str, state: dict[str, Any]) -> None:
    """Write a state next to its final place and rename it, so that an interrupt leaves the earlier one whole.

    Raises:
        CheckpointError: when the folder cannot be written.
    """
    path = Path(path)
    partial = path.with_suffix(path.suffix + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(
            f"cannot write the checkpoint {path}: {error}; an earlier one is untouched"
        ) from error


def load_state(path: Path | str) -> dict[str, Any]:
    """Read a state.

    Raises:
        CheckpointError: when the file is damaged.
    """
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
    except Exception as error:  # torch raises half a dozen unrelated types for a damaged file
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{path} is damaged ({reason}); delete it to start again") from error
    return state
