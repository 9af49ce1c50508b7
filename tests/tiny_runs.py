"""Runs of all five kinds in small, each in a process of its own, which a test may interrupt, kill or starve.

    python tests/tiny_runs.py < requests

The interpreter imports everything once, which takes seconds, and forks for each run. The command line does the rest,
with tiny settings in place of its own. A request is a line of JSON: its number, and a run to start or `{"wait": PID}`.
The answer is its number, and the process id or the exit code. `ENVACE_ROOT` holds the policy that is trained.
"""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch

import programs
from envace_lite import interrupts, paths
from envace_lite.cli import texts
from envace_lite.experiments import arms, controls, deliberate, trap
from envace_lite.experiments.rewards import REWARDS
from envace_lite.pretraining import imitate
from envace_lite.pretraining.imitate import PretrainConfig
from envace_lite.rollout import Trajectory
from envace_lite.train import TrainConfig
from envace_lite.world import Task, load_tasks

TOO_LONG = 300
"""Seconds after which a run ends by itself, should its test be gone."""
TINY = TrainConfig(
    prompts=3,
    group_size=3,
    lr=1e-2,
    warmup=1,
    lora_rank=4,
    temperature=1.4,
    save_every=1,
    observe_every=2,
)


def odd_length(trajectory: Trajectory) -> float:
    """A reward that differs within most groups, so that each step moves the weights."""
    return float(len(trajectory.ids) % 2)


def make_small() -> None:
    """Put tiny settings in place of those of the library."""
    tasks = load_tasks(paths.DATA / "few.jsonl")

    def few(domains: Sequence[str], split: str, limit: int | None = None) -> list[Task]:
        return [task for task in tasks if task.domain in domains][:limit]

    def pretraining(base: PretrainConfig) -> PretrainConfig:
        small = tuple(replace(phase, steps=16, requests=8, batch=2) for phase in base.phases)
        return replace(base, phases=small, per_request=1, width=32, layers=1, save_every=8)

    def run_arm(policy: Any, arm: str, seed: int, config: TrainConfig, **options: Any) -> Any:
        return original(policy, arm, seed, replace(TINY, steps=config.steps), **options)

    original = arms.run_arm
    arms.run_arm = run_arm  # type: ignore[assignment]
    for module in (arms, controls, deliberate):
        module.shipped_tasks = few
    controls.GRID, controls.SAMPLES = (-4.0, 0.0), 2  # type: ignore[assignment]
    imitate.BASES = {name: pretraining(base) for name, base in imitate.BASES.items()}
    trap.TRAP_CONFIG, trap.TRAINING_TASKS = replace(TINY, lora_rank=0, lr=1e-3, steps=3), 8
    trap.assess.__defaults__ = (4,)
    arms.task_success = REWARDS["task_success"] = odd_length
    subprocess.Popen = Forked  # type: ignore[assignment, misc]


class Forked:
    """What `subprocess.Popen` does for the runs of a study, without another interpreter."""

    def __init__(self, command: list[str], stdout: IO[bytes], stderr: IO[bytes]) -> None:
        self.returncode: int | None = None
        self.pid = forked(command[3:], stdout.fileno())

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = ended(self.pid)
        return self.returncode

    def terminate(self) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)


def ended(pid: int) -> int:
    """Wait for a process; its exit code, or the negative number of the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Faulty:
    """A file that is being written, with what may go wrong in the middle: everything happens after half of it."""

    def __init__(self, file: IO[bytes], fault: str) -> None:
        self.file, self.fault = file, fault

    def __enter__(self) -> Faulty:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, data: Any) -> int:
        half = len(data) // 2
        self.file.write(data[:half])
        self.file.flush()
        if self.fault == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.fault == "hold":
            time.sleep(TOO_LONG)
        if self.fault == "slow":
            time.sleep(0.1)
        if self.fault in ("SIGKILL", "SIGINT"):
            os.kill(os.getpid(), getattr(signal, self.fault))
        return half + self.file.write(data[half:])


def break_something(fault: str, after: int, root: Path) -> None:
    """Let a run meet a fault.

    Args:
        fault: `read-only`, where no file below `root` can be opened to write; `fsync`, where the disk is found to be
            full when a file is to reach it; or one of `Faulty`, in a file that is to replace another.
        after: so many times it goes well. A fault comes once; `slow` comes each time.
    """
    left, open_file, open_number, make_folder, sync = [after], io.open, os.open, os.mkdir, os.fsync

    def due() -> bool:
        left[0] -= 1
        return left[0] == -1 or (left[0] < -1 and fault == "slow")

    def refuse(path: Any, writes: bool) -> None:
        if writes and not isinstance(path, int) and Path(os.fsdecode(path)).is_relative_to(root):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), os.fsdecode(path))

    def opened(path: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if fault == "read-only":
            refuse(path, mode[0] in "wax" or "+" in mode)
        file = open_file(path, mode, *rest, **options)
        return Faulty(file, fault) if str(path).endswith(".partial") and due() else file

    def opened_number(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        refuse(path, bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)))
        return open_number(path, flags, *rest, **options)

    def made(path: Any, *rest: Any, **options: Any) -> None:
        refuse(path, not Path(path).is_dir())
        make_folder(path, *rest, **options)

    def synced(number: int) -> None:
        if due():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(number)

    if fault == "fsync":
        os.fsync = synced
    else:
        io.open = opened  # type: ignore[assignment]
    if fault == "read-only":
        os.open, os.mkdir = opened_number, made  # type: ignore[assignment]


def forked(command: Sequence[str], said: int, prepare: Callable[[], None] = lambda: None) -> int:
    """Run a command of the command line in a process of its own, which ends as the interpreter would end it.

    Args:
        said: number of the open file to which its words go.
        prepare: called in the new process.
    """
    # An interrupt that comes before the new process can answer it has to wait, or it would go on in this one's code.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        return pid
    code = 1
    try:
        os.dup2(said, 1)
        os.dup2(said, 2)
        prepare()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        programs.run(*command)
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        else:
            code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def start(command: list[str], root: str, said: str, fault: str = "", after: int = 0) -> int:
    """Start a run in the folder `root`, in a group of processes of its own; its words go to the file `said`."""

    def prepare() -> None:
        signal.alarm(TOO_LONG)
        paths.RUNS, paths.WORK = Path(root) / "runs", Path(root) / "work"
        if fault:
            break_something(fault, after, Path(root))

    with Path(said).open("wb") as file:
        pid = forked(command, file.fileno(), prepare)
    os.setpgid(pid, pid)  # here, so that the group is there when the answer is
    return pid


LOADED = texts
"""Loaded before the runs are forked, so that not each of them has to."""


def main() -> None:
    """Answer requests until there are no more."""
    if not (hasattr(os, "fork") and hasattr(signal, "alarm")):
        sys.exit("this system cannot fork")
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, interrupts.interrupted)
    make_small()
    answer = partial(print, flush=True)
    answer("ready")
    for line in sys.stdin:
        number, request = json.loads(line)
        answer(number, ended(request["wait"]) if "wait" in request else start(**request))


if __name__ == "__main__":
    main()
