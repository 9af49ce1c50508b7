"""The same notebooks and tests, computed as other machines would: which settings there are, and a run of each.

    python tests/elsewhere/settings.py              the settings that compute otherwise than this machine does as it is
    python tests/elsewhere/settings.py --save       the same and one more, recorded in data/runs
    python tests/elsewhere/settings.py --full       every combination of an instruction set, a library limit and threads
    python tests/elsewhere/settings.py --record 10  ten disturbed runs of the notebooks, recorded in data/runs
    python tests/elsewhere/settings.py --list       just say which settings compute alike

A setting that makes no difference to the bits of a training step and a probe (its *fingerprint*) makes none to a
notebook either, so one setting of each fingerprint is run. Which these are depends on the machine: a processor without
AVX-512 has no `avx512`, and one that is not of Intel's make ignores some of MKL's limits.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envace_lite.course.timing import strict_nbval

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = Path(__file__).resolve().parent

DISTURBED = {"ENVACE_DISTURB": "1e-5"}
SETTINGS: dict[str, dict[str, str]] = {
    "as it is": {},
    "logits disturbed by 1e-5": DISTURBED,
    "ATEN_CPU_CAPABILITY=default": {"ATEN_CPU_CAPABILITY": "default"},
    "ATEN_CPU_CAPABILITY=avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "ATEN_CPU_CAPABILITY=avx512": {"ATEN_CPU_CAPABILITY": "avx512"},
    "MKL_CBWR=SSE4_2": {"MKL_CBWR": "SSE4_2"},
    "MKL_ENABLE_INSTRUCTIONS=SSE4_2": {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    "MKL_ENABLE_INSTRUCTIONS=AVX2": {"MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "ONEDNN_MAX_CPU_ISA=SSE41": {"ONEDNN_MAX_CPU_ISA": "SSE41"},
    "ONEDNN_MAX_CPU_ISA=AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "two threads": {"ENVACE_THREADS": "2"},
    "deterministic algorithms": {"ENVACE_DETERMINISTIC": "1"},
}
"""What a process is told by its environment; see `sitecustomize.py` for those that begin with ENVACE."""

RECORDED_ONLY = (
    "ATEN_CPU_CAPABILITY=default",
    "MKL_CBWR=SSE4_2",
    "MKL_ENABLE_INSTRUCTIONS=SSE4_2",
    "MKL_ENABLE_INSTRUCTIONS=AVX2",
)
"""Run when the result is recorded, and not in each test. No machine computes like the first three unless it is told to;
the last is a part of what a processor with AVX2 does, for which `ATEN_CPU_CAPABILITY=avx2` stands in each test."""

LONGEST = ("04_train_it", "05_rehearsed_next_to_real")
"""Notebooks that are checked as the machine is and with disturbed logits, and under no other setting."""
TRAINS = "rewarded_rollouts_become_likelier"
"""The test whose claim rests on a training run."""
ILLEGAL = 4
"""The signal that ends a process which uses instructions that the processor lacks (SIGILL)."""
FINGERPRINT = """
import hashlib, torch
import envace_lite as lite
from envace_lite.train import TrainConfig, train
torch.set_num_threads(1)
base, digest = lite.load_policy(lite.paths.BASE), hashlib.sha256()
tasks = lite.shipped_tasks(["orders"], "test", 8)
policy, log = train(base, tasks, TrainConfig(steps=2, prompts=8, group_size=4), workers=2)
for value in policy.model.state_dict().values():
    digest.update(value.detach().contiguous().numpy().tobytes())
digest.update(repr(lite.probe(policy, tasks).confidence.tolist()).encode())
print(digest.hexdigest()[:12])
"""
"""A training step and a probe, down to the last bit."""


@dataclass(frozen=True)
class Job:
    """Something to be checked under a setting: a notebook, or the tests that sample.

    Args:
        setting: its name.
        what: a notebook; None for the tests.
        only: of the tests, those with this in their names.
    """

    setting: str
    what: Path | None
    only: str = ""


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process under a setting."""
    folders = [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "OMP_NUM_THREADS": settings.get("ENVACE_THREADS", "1"),
        "OMP_WAIT_POLICY": "PASSIVE",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, folders)),
        **settings,
    }


def fingerprint(settings: Mapping[str, str]) -> str | None:
    """What a short training and a probe come to under a setting, as a digest; None if the processor cannot do it."""
    done = subprocess.run(
        [sys.executable, "-c", FINGERPRINT],
        cwd=ROOT,
        env=environment(settings),
        capture_output=True,
        check=False,
        encoding="utf-8",
    )
    if done.returncode == -ILLEGAL:
        return None
    done.check_returncode()
    return done.stdout.split()[-1]


def alike(settings: Mapping[str, Mapping[str, str]]) -> dict[str, list[str]]:
    """The names of the settings that compute alike, under the first of each kind; those of no use here are left out."""
    with ThreadPoolExecutor(2) as pool:
        prints = list(pool.map(fingerprint, settings.values()))
    kinds: dict[str, list[str]] = {}
    for name, found in zip(settings, prints, strict=True):
        if found is None:
            print(f"{name}: this processor lacks the instructions", flush=True)
        else:
            kinds.setdefault(found, []).append(name)
    return {names[0]: names[1:] for names in kinds.values()}


def every_combination() -> dict[str, dict[str, str]]:
    """An instruction set, a limit of a library, a number of threads and a disturbance: the full product."""
    choices: list[list[str]] = [
        ["", "ATEN_CPU_CAPABILITY=default", "ATEN_CPU_CAPABILITY=avx2", "ATEN_CPU_CAPABILITY=avx512"],
        ["", "MKL_CBWR=SSE4_2", "MKL_CBWR=COMPATIBLE"],
        ["", "two threads"],
        ["", "logits disturbed by 1e-5"],
    ]
    product = {}
    for names in itertools.product(*choices):
        chosen = [name for name in names if name]
        known = {
            **SETTINGS,
            "MKL_CBWR=COMPATIBLE": {"MKL_CBWR": "COMPATIBLE"},
        }  # twice as slow: not in each test
        product[", ".join(chosen) or "as it is"] = {k: v for name in chosen for k, v in known[name].items()}
    return product


def notebooks() -> list[Path]:
    """The notebooks of the course, those that take longest first, by their recorded times."""
    found = sorted((ROOT / "notebooks").glob("*.ipynb"))
    seconds = json.loads((ROOT / "data" / "runs" / "notebooks.json").read_text(encoding="utf-8"))["seconds"]
    return sorted(found, key=lambda path: -seconds.get(path.stem, 0.0))


def solutions() -> list[Path]:
    """The solved assignments. They decode greedily only, and their copies for nbgrader have the same cells."""
    return sorted((ROOT / "notebooks" / "assignments" / "solution").glob("*.ipynb"))


def samples(path: Path) -> bool:
    """Whether a notebook draws tokens at random, or trains; the others only decode greedily, with a checked lead.

    `04_train_it` and `05_rehearsed_next_to_real` train as `06_the_simpler_world` does and take longest of all. Under a
    setting that is one of many the latter stands for the three.
    """
    text = path.read_text(encoding="utf-8")
    return ("Generator()" in text or "train(" in text) and path.stem not in LONGEST


def jobs(settings: Mapping[str, Mapping[str, str]]) -> list[Job]:
    """What is checked: everything as it is and with disturbed logits, and what samples under each other setting.

    As the machine is, the tests have been run before.
    """
    found = []
    for name, values in settings.items():
        chosen = [path for path in notebooks() if values in ({}, DISTURBED) or samples(path)]
        found += [Job(name, path) for path in chosen]
        found += [Job(name, None)] if values else [Job(name, path) for path in solutions()]
    return found


def check(job: Job, settings: Mapping[str, str], more: Sequence[str] = ()) -> str:
    """Check one job under a setting; the end of what was said if it fails."""
    options, _ = strict_nbval()
    # Noise is another one each time. A real machine gives the same bits for the same sum.
    unlike = " and not same_bits" if "ENVACE_DISTURB" in settings else ""
    which = ["-k", job.only, "tests/test_train.py"] if job.only else ["tests"]
    tests = ["-m", f"samples and not long{unlike}", *which]
    command = tests if job.what is None else [*options, *more, str(job.what)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *command],
        cwd=ROOT,
        env=environment(settings),
        capture_output=True,
        check=False,
        encoding="utf-8",
    )
    return done.stdout[-6000:] + done.stderr[-2000:] if done.returncode else ""


def run(settings: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, Any]]:
    """Check under one setting of each kind, two jobs at a time.

    Returns:
        By the name of a setting: how many jobs passed and failed, the seconds that they took together, and the
        settings that compute alike.
    """
    kinds = alike(settings)
    done: dict[str, dict[str, Any]] = {
        name: {"passed": 0, "failed": 0, "seconds": 0.0, "alike": others} for name, others in kinds.items()
    }
    for name, others in kinds.items():
        print(f"{name}" + (f" (and so do: {'; '.join(others)})" if others else ""), flush=True)

    def finish(job: Job) -> None:
        start = time.perf_counter()
        failed = check(job, settings[job.setting])
        entry, what = done[job.setting], job.what.stem if job.what else "tests that sample"
        entry["seconds"] = round(entry["seconds"] + time.perf_counter() - start, 1)
        entry["failed" if failed else "passed"] += 1
        verdict = "fails" if failed else "passes"
        print(f"{what}, {job.setting}: {verdict}, {time.perf_counter() - start:.0f} s", flush=True)
        if failed:
            print(failed, flush=True)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(finish, jobs({name: settings[name] for name in kinds})))
    return done


def save(settings: Mapping[str, Any], command: str) -> Path:
    """Write the record `elsewhere-PROCESSOR`, one for each kind of processor."""
    import torch

    from envace_lite.experiments.records import write_record

    about = {"kind": "elsewhere", "command": command, "seed": 0, "config": SETTINGS, "cores": os.cpu_count()}
    able = torch.backends.cpu.get_cpu_capability()
    about["processor"] = f"{platform.machine()} with {able}"
    return write_record(f"elsewhere-{able.lower()}", {**about, "settings": settings})


def disturbances(count: int) -> dict[str, dict[str, str]]:
    """So many disturbed runs: each with another noise, every third with two threads, every third with other kernels."""
    kinds: list[dict[str, str]] = [{}, {"ENVACE_THREADS": "2"}, {"ATEN_CPU_CAPABILITY": "default"}]
    return {
        f"disturbed {seed}": {**DISTURBED, "ENVACE_DISTURB_SEED": str(seed), **kinds[seed % 3]}
        for seed in range(1, count + 1)
    }


def disturbed_run(name: str, settings: Mapping[str, str], folder: Path) -> tuple[list[dict[str, Any]], bool]:
    """How far each cell came out in a disturbed run, and whether the test that rests on a training passed.

    What was run before is read from the folder.
    """
    report, tests = folder / f"{name}.jsonl", folder / f"{name}.tests"
    start = time.perf_counter()
    if not report.is_file():
        partial = folder / f"{name}.partial"
        partial.unlink(missing_ok=True)
        with ThreadPoolExecutor(2) as pool:
            more = ["--rules-report", str(partial)]
            ran = list(pool.map(lambda path: check(Job(name, path), settings, more), notebooks()))
        partial.replace(report)
        print(f"{name}: notebooks {'differ' if any(ran) else 'as committed'}", *filter(None, ran), flush=True)
    if not tests.is_file():
        tests.write_text(check(Job(name, None, TRAINS), settings), encoding="utf-8")
    failed = tests.read_text(encoding="utf-8")
    print(f"{name}: tests {'fail' if failed else 'pass'}, {time.perf_counter() - start:.0f} s", flush=True)
    return [json.loads(row) for row in report.read_text(encoding="utf-8").splitlines()], not failed


def record(count: int, command: str) -> Path:
    """Run the notebooks, and the test that rests on a training, disturbed so many times; record how it came out.

    Each run leaves its report in `.work/disturbed`; an interrupted recording is continued by the same command.
    """
    from envace_lite.experiments.records import write_record

    folder = ROOT / ".work" / "disturbed"
    folder.mkdir(parents=True, exist_ok=True)
    runs: dict[str, list[dict[str, Any]]] = {}
    passed = 0
    for name, settings in disturbances(count).items():
        rows, well = disturbed_run(name, settings, folder)
        passed += well
        for row in rows:
            runs.setdefault(f"{row['notebook']}:{row['cell']}", []).append(row)
    cells: dict[str, dict[str, Any]] = {}
    for place, rows in sorted(runs.items()):
        cells[place] = {
            "rule": " ".join(rows[0]["rule"]) or "to the letter",
            "runs": len(rows),
            "kept": sum(row["equal"] for row in rows),
            "farthest": round(max(row["farthest"] for row in rows), 4),
        }
        if problems := sorted({problem for row in rows if not row["equal"] for problem in row["problems"]}):
            cells[place]["problems"] = problems[:5]
    config = {"scale": float(DISTURBED["ENVACE_DISTURB"]), "seeds": list(range(1, count + 1))}
    about = {"kind": "disturbed", "command": command, "seed": 1, "config": config}
    return write_record("disturbed", {**about, "runs": count, "tests_passed": passed, "cells": cells})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for; the exit status says whether all of it passed."""
    parser = argparse.ArgumentParser(
        description="Check the notebooks and tests as other machines would compute them."
    )
    parser.add_argument("--full", action="store_true", help="every combination")
    parser.add_argument(
        "--list", action="store_true", help="say which settings compute alike, and run nothing"
    )
    parser.add_argument("--save", action="store_true", help="record the result in data/runs")
    parser.add_argument("--record", type=int, metavar="N", help="N disturbed runs of the notebooks, recorded")
    options = parser.parse_args(arguments)
    if options.list:
        for name, others in alike(SETTINGS).items():
            print(f"{name}" + "".join(f"\n    {other}" for other in others))
        return 0
    if options.record:
        print(record(options.record, f"python tests/elsewhere/settings.py --record {options.record}"))
        return 0
    usual = {name: values for name, values in SETTINGS.items() if options.save or name not in RECORDED_ONLY}
    done = run(every_combination() if options.full else usual)
    if options.save:
        print(save(done, "python tests/elsewhere/settings.py --save"))
    passed, failed = (sum(entry[key] for entry in done.values()) for key in ("passed", "failed"))
    print(f"elsewhere: {passed} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
