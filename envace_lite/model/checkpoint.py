"""Checkpoints that survive an interrupt, and folders that belong to one run at a time.

A new file replaces the old one only when it is complete on disk. A run claims its folder with a lock of the operating
system, which ends with the process that holds it, also when that is killed: there is no stale lock to delete.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import torch
from filelock import FileLock, Timeout


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read, or its folder is in use; the message says what to do."""


@contextmanager
def claimed(folder: Path | str, name: str = "") -> Iterator[None]:
    """Keep a folder for this run: another process, or another thread, is refused. One thread may nest its claims.

    Args:
        name: of the run, where several share a folder.

    Raises:
        CheckpointError: the folder is in use, or cannot be written.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # A singleton: a thread that claims the folder again gets the lock that it holds, which counts its claims.
        lock = FileLock(folder / f".{name or 'run'}.lock", is_singleton=True)
        lock.acquire(blocking=False)
    except Timeout:
        raise CheckpointError(
            f"{folder / name} is in use by another run; wait until that has ended"
        ) from None
    except OSError as error:
        raise CheckpointError(
            f"cannot write the checkpoints of {folder / name}: {error.strerror or error}; "
            "choose another folder or free it"
        ) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes the place of an earlier one at the end, when it is complete on disk, and not before.

    What a killed process leaves is called `NAME.partial`; it is never read, and the next write takes its place.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            yield file
            # On disk before it gets the name: otherwise a power cut could leave the name with an empty file.
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        # Half a file would only take the space that was missing.
        with suppress(OSError):
            partial.unlink()
        raise


def save_state(path: Path | str, identity: dict[str, Any], **state: Any) -> None:
    """Write a state, and with it what has to be the same when the run is continued (`identity`).

    An interrupt leaves the earlier one whole. Raises `CheckpointError` when it cannot be written.
    """
    # In memory first: a full disk, or an interrupt, within torch's own writing ends as "unexpected pos 768 vs 662".
    whole = io.BytesIO()
    torch.save({"identity": identity, **state}, whole)
    try:
        with replacing(Path(path)) as file:
            file.write(whole.getbuffer())
    except OSError as error:
        raise CheckpointError(
            f"cannot write the checkpoint {path}: {error.strerror or error}; an earlier one is untouched"
        ) from error


def load_state(path: Path | str, identity: dict[str, Any] | None = None) -> dict[str, Any]:
    """Read a state. With `identity`, that of the run that wants to go on, only the state of this very run.

    Raises:
        CheckpointError: the file is damaged, or of a run with another identity.
    """
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
    # torch raises half a dozen unrelated types for a damaged file.
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{path} is damaged ({reason}); delete it to start again") from error
    if identity is not None and state.get("identity") != identity:
        raise CheckpointError(f"{path} has another configuration; delete it or choose another folder")
    return state
