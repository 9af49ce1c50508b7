"""Where the shipped data lies and where figures go."""

import os
from pathlib import Path

ROOT = Path(os.environ.get("ENVACE_ROOT", Path(__file__).resolve().parent.parent))
"""The project's folder; set the environment variable `ENVACE_ROOT` to use another."""
DATA = ROOT / "data"
BASE = DATA / "base"
REHEARSED = DATA / "rehearsed"
"""The base after world rehearsal on all domains (seed 0)."""
RUNS = DATA / "runs"
FIGURES = ROOT / "figures"
WORK = ROOT / ".work"
"""Checkpoints of unfinished runs; not part of the project's history."""


def task_file(domain: str, split: str) -> Path:
    """The shipped tasks of a domain: `train`, `test` or `held_out`."""
    return DATA / "tasks" / f"{domain}.{split}.jsonl"
