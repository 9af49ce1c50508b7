"""Small wrong changes of the core, one at a time: do the tests notice?

    python tests/mutants.py              every listed mutation, and drawn ones of each file; a quarter of an hour
    python tests/mutants.py --save       the same, recorded in data/runs/mutants.json
    python tests/mutants.py --only gate  those of one file
    python tests/mutants.py --list       just say what would be changed

A mutant is *caught* when a test of its file fails, or runs for far too long. One that nobody could tell from the
original is *equivalent*; those are named in `EQUIVALENT`, each with the reason.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib.abc
import importlib.util
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TESTS = {
    "rollout.py": ["test_rollout.py"],
    "reward.py": ["test_reward.py"],
    "grpo.py": ["test_grpo.py"],
    "train.py": ["test_train.py"],
    "evaluate.py": ["test_evaluate.py"],
    "model/shared_prefix.py": ["test_decoding.py", "test_policy.py"],
    "fidelity/measures.py": ["test_fidelity.py", "test_evaluate.py"],
    "rehearsal/gate.py": ["test_gate.py", "test_journal.py", "test_turns.py"],
}
"""The files that are mutated, each with the tests that are to notice."""
PER_FILE = 20
"""Mutants drawn of each file."""
SECONDS = 120
"""A test run that takes longer is taken for an endless one."""
HERE = Path(__file__).resolve().parent

LISTED = {
    "a bootstrap of a ratio that does not pair numerator and denominator": (
        "fidelity/measures.py",
        "paired=True",
        "paired=False",
    ),
    "a message that is cut off is not counted": (
        "rollout.py",
        "record.outputs[self._author] += bool(self.message)",
        "pass",
    ),
    "`ask` is consulted for `revise`, so that approval commits a refused call": (
        "rehearsal/gate.py",
        'if action == "ask" and',
        'if action != "commit" and',
    ),
    "the lower bound of the clip is a constant": ("grpo.py", "ratio.clamp(1 - clip,", "ratio.clamp(0.8,"),
    "the gate's rule runs outside of its guard": (
        "rehearsal/gate.py",
        "            action, reason = self.rule(copy.deepcopy(call), imagined)",
        "        action, reason = self.rule(copy.deepcopy(call), imagined)",
    ),
}
"""Mutations that once survived, as (file, words, other words)."""

EQUIVALENT = {
    "rollout.py: 0.8 becomes 1.8: 0.8": "rows that are done leave the cache sooner: slower, the same tokens",
    "evaluate.py: 1000 becomes 1001: 1000": "one resample more or less of the bootstrap",
    "train.py: 1000003 becomes 1000004: 1000003": "another constant that keeps the seeds of two runs' steps apart",
    "train.py: the statement goes: bar.set_postfix({name: f'{row[name]:.2f}' for name in ('reward', 'info": (
        "what the progress bar shows"
    ),
}
"""Mutants that behave as the original does, by file and change, with the reason."""

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
SHOWN_ONLY = {"__repr__", "_repr_html_"}
"""Functions whose words a person reads; their numbers are tested elsewhere."""


@dataclass(frozen=True)
class Mutant:
    """A changed file.

    Args:
        file: within the library.
        name: where and what.
        source: the changed text.
    """

    file: str
    name: str
    source: str


def sites(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Each place that can be changed, with what the change would be, in a fixed order.

    `zip(..., strict=True)` stays: it only says what is so anyway.
    """
    left = {node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "strict"}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in SHOWN_ONLY:
            left |= set(ast.walk(node))
    for node in ast.walk(tree):
        if node in left:
            continue
        if isinstance(node, ast.Compare | ast.BinOp | ast.BoolOp | ast.AugAssign):
            op = node.ops[0] if isinstance(node, ast.Compare) else node.op
            if type(op) in SWAPS:
                yield node, f"{type(op).__name__} becomes {SWAPS[type(op)].__name__}"
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield node, "`not` goes"
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            yield node, f"{node.value} becomes {_other(node.value)}"
        elif isinstance(node, ast.If | ast.IfExp):
            yield node, "the condition is turned round"
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield node, "the statement goes"


def _other(value: float | bool) -> float | bool:
    return (not value) if isinstance(value, bool) else value + 1


def changed(tree: ast.Module, place: int) -> tuple[str, str]:
    """The text with one place changed, and the name of the change."""
    tree = copy.deepcopy(tree)
    node, what = list(sites(tree))[place]
    name = f"{what}: {ast.unparse(node).splitlines()[0][:70]}"
    if isinstance(node, ast.Compare):
        node.ops[0] = SWAPS[type(node.ops[0])]()  # type: ignore[assignment]
    elif isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign):
        node.op = SWAPS[type(node.op)]()  # type: ignore[assignment]
    elif isinstance(node, ast.Constant):
        node.value = _other(node.value)  # type: ignore[arg-type]
    elif isinstance(node, ast.If | ast.IfExp):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.UnaryOp):
        node.op = ast.UAdd()
        node.operand = ast.Call(ast.Name("bool", ast.Load()), [node.operand], [])
    else:
        node.value = ast.Constant(None)  # type: ignore[attr-defined]
    return ast.unparse(ast.fix_missing_locations(tree)), name


def without_annotations(tree: ast.Module) -> ast.Module:
    """The tree without the parts of functions that only a person or a type checker reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            for argument in [*node.args.args, *node.args.kwonlyargs]:
                argument.annotation = None
    return tree


def mutants(file: str, count: int) -> list[Mutant]:
    """The listed mutations of a file, and `count` drawn ones; always the same."""
    text = (ROOT / "envace_lite" / file).read_text(encoding="utf-8")
    found = []
    for name, (where, words, others) in LISTED.items():
        if where == file:
            assert text.count(words) == 1, f"{file} no longer holds {words!r}"
            found.append(Mutant(file, name, text.replace(words, others)))
    original = ast.parse(text)
    stripped = without_annotations(copy.deepcopy(original))
    places = list(range(len(list(sites(stripped)))))
    for place in sorted(Random(file).sample(places, min(count, len(places)))):
        source, name = changed(stripped, place)
        found.append(Mutant(file, name, source))
    return found


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):
    """Imports one module from a changed text."""

    def __init__(self, mutant: Mutant):
        self.path = str(ROOT / "envace_lite" / mutant.file)
        self.name = "envace_lite." + mutant.file.removesuffix(".py").replace("/", ".")
        self.source = mutant.source.encode("utf-8")

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self.path, loader=self)

    def get_filename(self, name: str) -> str:
        return self.path

    def get_data(self, path: Any) -> bytes:
        return self.source


def attempt(mutant: Mutant | None, tests: Sequence[str]) -> None:
    """Run the tests on a mutant, in this process, which ends with what pytest says."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    if mutant:
        sys.meta_path.insert(0, Mutated(mutant))
    import pytest

    paths = [str(HERE / name) for name in tests]
    early = "ignore::pytest.PytestAssertRewriteWarning"  # some plugins' modules are there already
    code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-W", early, *paths])
    os._exit(int(code))


def outcome(mutant: Mutant | None, tests: Sequence[str]) -> str:
    """`caught`, `survived` or `endless`."""
    process = multiprocessing.get_context("fork").Process(target=attempt, args=(mutant, tests))
    process.start()
    process.join(SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
        return "endless"
    return "survived" if process.exitcode == 0 else "caught"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="files with this in their names")
    parser.add_argument("--count", type=int, default=PER_FILE, help="mutants drawn of each file")
    parser.add_argument("--list", action="store_true", help="say what would be changed")
    parser.add_argument("--save", action="store_true", help="record the result")
    options = parser.parse_args()
    files = [file for file in TESTS if options.only in file]
    if options.list:
        for file in files:
            print(*(f"{file}: {mutant.name}" for mutant in mutants(file, options.count)), sep="\n")
        return 0
    sys.path.insert(0, str(HERE))
    with contextlib.suppress(ImportError):  # once for all mutants: these take seconds
        import hypothesis  # noqa: F401
        import pandas  # noqa: F401
        import peft  # noqa: F401
        import scipy.stats  # noqa: F401
        import torch
        import transformers.models.llama  # noqa: F401
        import typer  # noqa: F401

        torch.set_num_threads(1)
    start, counts, survivors = time.perf_counter(), {}, []
    with ThreadPoolExecutor(2) as pool:
        for file in files:
            unchanged = ast.unparse(
                without_annotations(ast.parse((ROOT / "envace_lite" / file).read_text("utf-8")))
            )
            same = outcome(Mutant(file, "none", unchanged), TESTS[file])
            assert same == "survived", f"the tests of {file} fail without any change"
            some = [m for m in mutants(file, options.count) if f"{file}: {m.name}" not in EQUIVALENT]
            ends = list(pool.map(lambda mutant, tests=TESTS[file]: outcome(mutant, tests), some))
            left = [f"{file}: {m.name}" for m, end in zip(some, ends, strict=True) if end == "survived"]
            counts[file] = {"mutants": len(some), "caught": len(some) - len(left)}
            survivors += left
            print(f"{file}: {counts[file]['caught']} of {len(some)} caught", *left, sep="\n    ", flush=True)
    caught, tried = (sum(c[key] for c in counts.values()) for key in ("caught", "mutants"))
    minutes = (time.perf_counter() - start) / 60
    print(f"{caught} of {tried} caught ({caught / tried:.1%}), in {minutes:.1f} minutes")
    if options.save:
        from envace_lite.experiments.records import write_record

        config = {"per_file": options.count, "equivalent": sorted(EQUIVALENT)}
        record = {"kind": "mutants", "command": "python tests/mutants.py --save", "seed": 0, "config": config}
        write_record(
            "mutants", {**record, "files": counts, "survivors": survivors, "minutes": round(minutes, 1)}
        )
    return int(caught < 0.9 * tried or any(name in left for name in LISTED for left in survivors))


if __name__ == "__main__":
    sys.exit(main())
