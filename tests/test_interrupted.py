"""Runs of all five kinds that are interrupted, killed, starved or started twice: in the end nothing is lost.

Each run is a process of its own (see `tiny_runs`), so what is tested is what happens to files when a process dies.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

from envace_lite.experiments.records import RecordError, read_record, write_record
from envace_lite.model.checkpoint import CheckpointError, claimed, load_state, replacing, save_state
from envace_lite.model.policy import Policy, PolicyError, load_policy
from envace_lite.world import Task, save_tasks
from helpers import copied, same_weights, weights

Lessons = list[tuple[Task, list[dict[str, Any]]]]
COMMANDS = {
    "train": "train --steps 3 --workers 1 --seed 3 --domain bank",
    "study": "study --arms rehearsal,execute --seeds 1 --steps 2",
    "deliberate": "deliberate --policy apt=BASE --methods plain,greedy,vote --budgets 0,2 --domain bank",
    "pretrain": "pretrain --recipe habits_10 --workers 1",
    "trap": "trap --cells dial-20 --seed 0",
}
SPOKEN = "envace: interrupted; the same command continues from the last checkpoint"
KINDS = pytest.mark.parametrize("kind", COMMANDS)
REPOSITORY = Path(__file__).resolve().parent.parent


@dataclass
class Run:
    """A run under way. `end` waits for it, and returns its exit code."""

    pid: int
    root: Path
    said: Path
    end: Callable[[], int]

    @property
    def lines(self) -> list[str]:
        """What it said, without progress bars."""
        said = re.split(r"[\r\n]+", self.said.read_text(encoding="utf-8"))
        bar = re.compile(r"\d%\||\d(it|step)/s|\dstep \[")
        return [line for line in said if line.strip() and not bar.search(line)]

    def kill(self, number: int, *, group: bool = True) -> None:
        """Send a signal, to its children as well if it is for the group. A run that has ended stays as it is."""
        (os.killpg if group else os.kill)(self.pid, number)


@dataclass
class Tiny:
    """The interpreter from which all runs are forked, and what came of runs that nothing happened to."""

    process: subprocess.Popen[str]
    base: Path
    whole: dict[str, tuple[dict[str, Any], float]] = field(default_factory=dict)
    asked: int = 0

    def ask(self, request: dict[str, Any]) -> int:
        assert self.process.stdin
        assert self.process.stdout
        self.asked += 1
        self.process.stdin.write(json.dumps([self.asked, request]) + "\n")
        self.process.stdin.flush()
        number, answer = map(int, self.process.stdout.readline().split())
        assert number == self.asked
        return answer

    def start(self, kind: str, root: Path, fault: str = "", after: int = 0) -> Run:
        root.mkdir(exist_ok=True)
        command = COMMANDS[kind].replace("BASE", str(self.base)).split()
        said = root / f"said-{self.asked}.txt"
        about = {"command": command, "root": str(root), "said": str(said), "fault": fault, "after": after}
        pid = self.ask(about)
        assert pid > 1
        return Run(pid, root, said, lambda: self.ask({"wait": pid}))

    def finish(self, kind: str, root: Path) -> dict[str, Any]:
        """Run until it is done, as a person would who repeats the command; what came of it."""
        for _ in range(100):
            run = self.start(kind, root)
            if run.end() == 0:
                return outcome(root)
            # The children of a study that was killed alone go on by themselves.
            assert any("is in use by another run" in line for line in run.lines), run.lines
            time.sleep(0.3)
        raise AssertionError(f"{kind} does not end: {run.lines}")


def outcome(root: Path) -> dict[str, Any]:
    """Everything that a run leaves but for times: its records, and its policies to the last bit."""

    def timeless(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: timeless(v) for k, v in value.items() if k not in ("seconds", "date")}
        return [timeless(entry) for entry in value] if isinstance(value, list) else value

    left = {path.name: timeless(read_record(path)) for path in (root / "runs").glob("*.json")}
    for path in (root / "work").glob("*/policy/model.safetensors"):
        left[path.parent.parent.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    assert list(root.rglob("*.partial")) == [], "half a file is left"
    return left


def progress(root: Path) -> int:
    """How far the runs of a folder are; a checkpoint or a record that is not whole is an error."""
    far = 0
    for path in (root / "work").glob("*/*.pt"):
        state = load_state(path)
        far += 1000 * state.get("phase", 0) + state.get("step", 0)
    return far + sum(1 + len(read_record(path).get("cells", ())) for path in (root / "runs").glob("*.json"))


@pytest.fixture(scope="module")
def tiny_runs(apt: Policy, lessons: Lessons, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    if not (hasattr(os, "fork") and hasattr(os, "killpg")):
        pytest.skip("the runs are forked, and killed in groups")
    root = tmp_path_factory.mktemp("root")
    apt.save(root / "data" / "base")
    one_a_domain = {task.domain: task for task, _ in lessons}
    save_tasks(root / "data" / "few.jsonl", [*one_a_domain.values()])
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("tiny_runs.py"))],
        env={**os.environ, "ENVACE_ROOT": str(root), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    yield Tiny(process, root / "data" / "base")
    process.kill()
    process.communicate()


@pytest.fixture
def whole(
    tiny_runs: Tiny, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], float]:
    """What comes of a run that nothing happens to, and its seconds."""
    if kind not in tiny_runs.whole:
        root, begin = tmp_path_factory.mktemp(f"whole-{kind}"), time.perf_counter()
        run = tiny_runs.start(kind, root)
        assert run.end() == 0, run.lines
        tiny_runs.whole[kind] = outcome(root), time.perf_counter() - begin
    return tiny_runs.whole[kind]


def check_end(run: Run, code: int, number: int) -> None:
    """A run that got a signal died of it without a word, said one line, or had already ended."""
    text = "\n".join([*run.lines, *(log.read_text("utf-8") for log in (run.root / "work").glob("*.log"))])
    assert "Traceback" not in text, text
    if code == 1 and any("is in use by another run" in line for line in run.lines):
        return  # by a child of a study that was killed alone
    assert code in (0, -signal.SIGKILL if number == signal.SIGKILL else 1, -number), (code, text)
    if code == 1:
        assert run.lines[-1].endswith(SPOKEN), text
        others = [line for line in run.lines[:-1] if not re.search(r": (stopped|recorded|failed)", line)]
        assert not others, text


# At random moments -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["study"])
def test_the_tiny_runs_train(tiny_runs: Tiny, kind: str, whole: Any) -> None:
    """The weights differ from the base and between the kinds: to resume them is worth something."""
    left = {name: value for name, value in whole[0].items() if not name.endswith(".json")}
    base = hashlib.sha256((tiny_runs.base / "model.safetensors").read_bytes()).hexdigest()
    assert set(left) == {"rehearsal-base-2steps-0", "execute-base-2steps-0"}
    assert len({base, *left.values()}) == 3


def interrupted_often(tiny_runs: Tiny, kind: str, whole: Any, root: Path, count: int, seed: int) -> None:
    """Interrupt a run again and again, each time where the last one stopped; a finished one is begun anew."""
    expected, seconds = whole
    rng, folder, far = random.Random(f"{kind}/{seed}"), root / "0", 0
    for number in range(count):
        run = tiny_runs.start(kind, folder, *rng.choice([("", 0), ("slow", 0)]))
        time.sleep(rng.random() * seconds * 0.9)
        sent = (signal.SIGINT, signal.SIGKILL)[number % 2]
        run.kill(sent, group=rng.random() < 0.7)
        code = run.end()
        check_end(run, code, sent)
        assert progress(folder) >= far, "something is lost"
        far = progress(folder)
        if code == 0:
            assert outcome(folder) == expected
            folder, far = root / str(number + 1), 0
    assert tiny_runs.finish(kind, folder) == expected


@KINDS
def test_a_run_is_killed_and_interrupted(tiny_runs: Tiny, kind: str, whole: Any, tmp_path: Path) -> None:
    interrupted_often(tiny_runs, kind, whole, tmp_path, count=1 if kind == "study" else 2, seed=0)


@pytest.mark.long
@KINDS
def test_a_run_is_killed_and_interrupted_twenty_times(
    tiny_runs: Tiny, kind: str, whole: Any, tmp_path: Path
) -> None:
    interrupted_often(tiny_runs, kind, whole, tmp_path, count=20, seed=1)


# While a file is written -----------------------------------------------------------------------------------


def broken_while_writing(tiny_runs: Tiny, kind: str, whole: Any, root: Path, fault: str, after: int) -> None:
    run = tiny_runs.start(kind, root, fault, after)
    code = run.end()
    if kind == "study":  # the fault is that of its children; it ends all the same, and says whose it was
        assert code in (0, 1), run.lines
    elif fault in ("SIGKILL", "SIGINT"):
        check_end(run, code, getattr(signal, fault))
        assert code != 0, "the fault never came"
    else:
        assert code == 1
        assert len(run.lines) == 1, run.lines
        assert re.match(
            r"envace: cannot write the (checkpoint|record) .*No space left on device", run.lines[0]
        )
    progress(root)
    if fault != "SIGKILL" and kind != "study":
        assert list(root.rglob("*.partial")) == [], "half a file takes the space that was missing"
    assert tiny_runs.finish(kind, root) == whole[0]


@pytest.mark.long
@pytest.mark.parametrize("fault", ["SIGKILL", "SIGINT", "full", "fsync"])
@pytest.mark.parametrize("after", range(5))
@KINDS
def test_every_write_may_fail(
    tiny_runs: Tiny, kind: str, whole: Any, tmp_path: Path, fault: str, after: int
) -> None:
    """A base is written five times, at last at the end of its second phase; the other kinds four times."""
    if kind != "pretrain" and after > 3:
        pytest.skip("it does not write so often")
    broken_while_writing(tiny_runs, kind, whole, tmp_path, fault, after)


@pytest.mark.parametrize(
    ("kind", "fault", "after"),
    [
        ("train", "SIGKILL", 1),
        ("train", "SIGINT", 3),
        ("deliberate", "full", 2),
        ("pretrain", "fsync", 2),
        ("pretrain", "SIGKILL", 4),
        ("trap", "full", 1),
    ],
)
def test_a_write_fails(
    tiny_runs: Tiny, kind: str, whole: Any, tmp_path: Path, fault: str, after: int
) -> None:
    """A checkpoint or a record that is half written: there is no space, also if that is found out late; or the end."""
    broken_while_writing(tiny_runs, kind, whole, tmp_path, fault, after)


@KINDS
def test_a_folder_that_cannot_be_written(tiny_runs: Tiny, kind: str, tmp_path: Path) -> None:
    """It is found out before anything is trained."""
    run = tiny_runs.start(kind, tmp_path, "read-only")
    assert run.end() == 1
    assert len(run.lines) == 1 or kind == "study", run.lines
    assert any("Read-only file system; choose another folder" in line for line in run.lines), run.lines
    assert "Traceback" not in "".join(run.lines)
    assert [path.name for path in tmp_path.iterdir()] == [run.said.name]


# Two processes in one folder -------------------------------------------------------------------------------


def until_free(lock: Path) -> None:
    """The children of a killed study take a moment to die."""
    for left in reversed(range(50)):
        try:
            with claimed(lock.parent, lock.name.removeprefix(".").removesuffix(".lock")):
                return
        except CheckpointError:
            assert left, f"{lock} is still held"
            time.sleep(0.2)


@KINDS
def test_a_second_process_is_refused(tiny_runs: Tiny, kind: str, whole: Any, tmp_path: Path) -> None:
    """In one sentence; and when the first is killed nothing of its claim is left."""
    first = tiny_runs.start(kind, tmp_path, "hold")
    deadline = time.monotonic() + 120
    while not list(tmp_path.rglob("*.partial")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    second = tiny_runs.start(kind, tmp_path)
    assert second.end() == 1
    refused = [
        line for line in second.lines if line.endswith("in use by another run; wait until that has ended")
    ]
    assert refused, second.lines
    if kind != "study":
        assert second.lines == refused
        assert refused[0].startswith("envace: ")
    first.kill(signal.SIGKILL)
    assert first.end() == -signal.SIGKILL
    locks = list(tmp_path.rglob(".*.lock"))
    assert locks
    for lock in locks:
        until_free(lock)
    if kind == "pretrain":
        assert tiny_runs.finish(kind, tmp_path) == whole[0]


def test_a_claim_is_of_one_thread_and_may_be_nested(tmp_path: Path) -> None:
    with claimed(tmp_path), claimed(tmp_path):
        pass
    code = f"from envace_lite.model.checkpoint import claimed\nwith claimed({str(tmp_path)!r}): pass"
    from concurrent.futures import ThreadPoolExecutor

    with claimed(tmp_path), ThreadPoolExecutor(1) as pool:
        with claimed(tmp_path):
            pass
        with pytest.raises(CheckpointError, match="in use by another run"):
            pool.submit(exec, code).result()
        with claimed(tmp_path, "another"):  # of the same folder, by name
            pass
    with claimed(tmp_path):
        pass


# Files -----------------------------------------------------------------------------------------------------


def write(path: Path, afterwards: Callable[[], None]) -> None:
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
        afterwards()


@pytest.mark.parametrize("moment", ["write", "sync", "rename"])
def test_a_file_is_replaced_when_it_is_complete(
    tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old one stays until the new one has reached the disk."""
    path, order = tmp_path / "file", list[str]()
    path.write_bytes(b"old")

    def fails(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    sync, rename = os.fsync, Path.replace
    with monkeypatch.context() as patch:
        if moment == "sync":
            patch.setattr(os, "fsync", fails)
        if moment == "rename":
            patch.setattr(Path, "replace", fails)
        with pytest.raises(OSError, match="No space left"):
            write(path, fails if moment == "write" else lambda: None)
    assert path.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    monkeypatch.setattr(os, "fsync", lambda number: (order.append("sync"), sync(number)))
    monkeypatch.setattr(Path, "replace", lambda one, other: (order.append("rename"), rename(one, other)))
    write(path, lambda: None)
    assert path.read_bytes() == b"new"
    assert order == ["sync", "rename"]


@pytest.fixture
def small_disk() -> Iterator[None]:
    """The operating system itself refuses to write more than 20 kB to a file."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("small_disk")
def test_what_does_not_fit_leaves_what_was_there(apt: Policy, tmp_path: Path) -> None:
    """A checkpoint, a record and a policy."""
    save_state(tmp_path / "state.pt", {}, step=1)
    write_record("one", {"seed": 1}, tmp_path)
    with pytest.raises(
        CheckpointError, match=r"^cannot write the checkpoint .*state\.pt: File too large; [^\n]+$"
    ):
        save_state(tmp_path / "state.pt", {}, step=2, weights=weights(apt))
    with pytest.raises(RecordError, match=r"^cannot write the record .*one\.json: File too large; [^\n]+$"):
        write_record("one", {"seed": 2, "rows": list(range(9999))}, tmp_path)
    with pytest.raises(PolicyError, match=r"^cannot write the policy to [^\n]+ File too large[^\n]*$"):
        apt.save(tmp_path / "policy")
    assert load_state(tmp_path / "state.pt")["step"] == 1
    assert read_record(tmp_path / "one.json")["seed"] == 1
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"state.pt", "one.json"}


def test_a_policy_is_replaced_when_it_is_complete(
    apt: Policy, tiny: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what a killed process left of one is thrown away."""
    apt.save(tmp_path)
    (tmp_path / "README.md").write_text("mine", encoding="utf-8")
    (tmp_path / ".partial").mkdir()
    (tmp_path / ".partial" / "half").write_bytes(b"")
    changed = copied(apt)
    next(changed.model.parameters()).data += 1

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(
            type(apt.chat.tokenizer), "save_pretrained", interrupt
        )  # the weights are written before
        with pytest.raises(KeyboardInterrupt):
            changed.save(tmp_path)
    assert same_weights(weights(load_policy(tmp_path)), weights(apt))
    changed.save(tmp_path)
    assert same_weights(weights(load_policy(tmp_path)), weights(changed))
    assert not (tmp_path / ".partial").exists()
    assert not (tmp_path / "half").exists()
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == "mine"


# The command line ------------------------------------------------------------------------------------------


def until(stream: IO[str], word: str) -> None:
    """Read up to a line that holds a word."""
    assert any(word in line for line in iter(stream.readline, "")), f"{word} never came"


@pytest.mark.parametrize("script", [True, False], ids=["envace", "python -m"])
def test_an_interrupt_while_everything_is_imported(script: bool, tmp_path: Path) -> None:
    """One line, not a traceback through the import of torch."""
    (tmp_path / "envace").write_text("from envace_lite.cli import main\nmain()\n", encoding="utf-8")
    way = [str(tmp_path / "envace")] if script else ["-m", "envace_lite.cli"]
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", *way, "train"],
        env={**os.environ, "ENVACE_ROOT": str(tmp_path), "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    assert process.stderr
    until(process.stderr, "envace_lite.interrupts")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert [line for line in err.splitlines() if not line.startswith("import time:")] == [SPOKEN]
    assert (process.returncode, out) == (1, "")
    assert [path.name for path in tmp_path.iterdir()] == ["envace"]
