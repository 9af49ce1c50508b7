"""Assignments: one master, from which the student's copy, the solution and the nbgrader source are made.

A master is a plain Python file that runs from top to bottom. A line `# %% KIND NAME` begins a cell:

    # %% [markdown]                        text, each line behind `# `
    # %% given NAME                        code that is handed out as it is
    # %% solution NAME                     what the student writes, between BEGIN SOLUTION and END SOLUTION
    # %% test NAME POINTS what it looks at  a question, with hidden tests between their own markers
    # %% demo NAME                         ungraded: what can be done with the solution

The notebooks carry nbgrader's metadata (schema 3), so either grader can grade them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Any

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from envace_lite.world import paths

FOLDER = paths.ROOT / "notebooks" / "assignments"
STUB = '# YOUR CODE HERE\nraise NotImplementedError("write your solution here")'
_HEADER = re.compile(r"# %% (?:(\[markdown\])|(given|solution|demo) ([\w-]+)|(test) ([\w-]+) (\d+) (.+))")
_SOLUTION = re.compile(r"^([ ]*)### BEGIN SOLUTION\n.*?^[ ]*### END SOLUTION\n?", re.M | re.S)
_HIDDEN = re.compile(r"^### BEGIN HIDDEN TESTS\n(.*?)^### END HIDDEN TESTS\n?", re.M | re.S)
_MARKER = re.compile(r"^[ ]*### (?:BEGIN|END) (?:SOLUTION|HIDDEN TESTS)\n?", re.M)


class MasterError(ValueError):
    """A master is not in the form that the module describes; the message names file and line."""


@dataclass(frozen=True)
class Part:
    """One cell of a master.

    Args:
        kind: `markdown`, `given`, `solution`, `test` or `demo`.
        name: its `grade_id`.
        text: the cell's text, markers and all.
        points: of a test.
        about: what a test looks at, in a few words.
    """

    kind: str
    name: str
    text: str
    points: int = 0
    about: str = ""

    @property
    def shown(self) -> str:
        """The text without its hidden tests."""
        return _HIDDEN.sub("", self.text).rstrip("\n")

    @property
    def hidden(self) -> str:
        """The hidden tests alone."""
        return "\n".join(_HIDDEN.findall(self.text))

    @property
    def stub(self) -> str:
        """The text with the solution replaced by a stub."""
        return _SOLUTION.sub(lambda found: indent(STUB, found[1]) + "\n", self.text).rstrip("\n")

    @property
    def solved(self) -> str:
        """The text with the solution and without markers."""
        return _MARKER.sub("", self.text).rstrip("\n")


@dataclass(frozen=True)
class Assignment:
    """A master that was read."""

    name: str
    parts: Sequence[Part]

    @property
    def questions(self) -> list[Part]:
        """The tests, each worth its points."""
        return [part for part in self.parts if part.kind == "test"]

    @property
    def points(self) -> int:
        """The most that can be reached."""
        return sum(question.points for question in self.questions)

    def notebook(self, version: str) -> Any:
        """One of the versions: `student`, `solution` or `source` (for nbgrader)."""
        cells = []
        for place, part in enumerate(self.parts):
            text, about = _text(part, version), {"id": part.name or f"text-{place}"}
            if part.kind == "markdown":
                cells.append(new_markdown_cell(text, **about))
            else:
                cells.append(new_code_cell(text, metadata={"nbgrader": _metadata(part)}, **about))
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook = new_notebook(cells=cells, metadata={"kernelspec": kernel, "assignment": self.name})
        nbformat.validate(notebook)
        return notebook

    def rubric(self) -> str:
        """What each question looks at, as a markdown table."""
        rows = [f"| `{q.name}` | {q.points} | {q.about} |" for q in self.questions]
        head = ["| question | points | what it looks at |", "| --- | --- | --- |"]
        return "\n".join([f"## {self.name}: {self.points} points", "", *head, *rows, ""])


def _text(part: Part, version: str) -> str:
    if version == "source" or part.kind in ("markdown", "given"):
        return part.text
    if version == "solution":
        return part.solved
    return _kindly(part) if part.kind in ("test", "demo") else part.stub


def _kindly(part: Part) -> str:
    """A test or a demo that says what is missing instead of stopping a notebook that runs all its cells."""
    passed = '\n    print("Passed.")' if part.kind == "test" else ""
    return (
        f"try:\n{indent(part.shown, '    ')}{passed}\n"
        'except Exception as problem:\n    print("Not yet:", problem or type(problem).__name__)'
    )


def _metadata(part: Part) -> dict[str, Any]:
    graded = {"points": part.points} if part.kind == "test" else {}
    return {
        "grade": part.kind == "test",
        "grade_id": part.name,
        "locked": part.kind != "solution",
        **graded,
        "schema_version": 3,
        "solution": part.kind == "solution",
        "task": False,
    }


def read_master(path: Path) -> Assignment:
    """Read a master.

    Raises:
        MasterError: a header is unknown, a name occurs twice, or a solution has no markers.
    """
    parts: list[Part] = []
    lines = path.read_text(encoding="utf-8").splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("# %%")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        found = _HEADER.fullmatch(lines[start])
        if not found:
            raise MasterError(f"{path.name}, line {start + 1}: no such cell: {lines[start]!r}")
        body = lines[start + 1 : end]
        kind = "markdown" if found[1] else found[2] or found[4]
        if kind == "markdown":
            body = [line.removeprefix("#").removeprefix(" ") for line in body]
        text = "\n".join(body).strip("\n")
        name = found[3] or found[5] or ""
        if name and name in {part.name for part in parts}:
            raise MasterError(f"{path.name}, line {start + 1}: the name {name!r} occurs twice")
        if kind == "solution" and not _SOLUTION.search(text + "\n"):
            raise MasterError(f"{path.name}, line {start + 1}: the solution {name!r} has no markers")
        parts.append(Part(kind, name, text, int(found[6] or 0), found[7] or ""))
    return Assignment(path.stem, parts)


def masters(folder: Path = FOLDER) -> list[Assignment]:
    """All assignments of a folder, by name."""
    return [read_master(path) for path in sorted((folder / "masters").glob("*.py"))]


def generate(folder: Path = FOLDER, out: Path | None = None) -> list[Path]:
    """Write all versions and the rubric; returns the files."""
    out, written = out or folder, []
    assignments = masters(folder)
    for assignment in assignments:
        for version in ("student", "solution", "source"):
            within = Path(version, assignment.name) if version == "source" else Path(version)
            path = out / within / f"{assignment.name}.ipynb"
            path.parent.mkdir(parents=True, exist_ok=True)
            text = nbformat.writes(assignment.notebook(version)) + "\n"
            path.write_text(text, encoding="utf-8", newline="\n")
            written.append(path)
    rubric = out / "RUBRIC.md"
    rubric.write_text("# Rubric\n\n" + "\n".join(a.rubric() for a in assignments), encoding="utf-8")
    return [*written, rubric]
