"""Reading the notebooks of the course in tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lint_notebooks as linter

Notebook = dict[str, Any]
COURSE = linter.course()


def named(number: str) -> Path:
    """A notebook by the number that its name begins with."""
    return next(path for path in COURSE if path.name.startswith(number))


def code_cells(path: Path) -> Iterator[str]:
    """The code cells of a notebook, without magics."""
    for cell in linter.read(path)["cells"]:
        if cell["cell_type"] == "code":
            yield linter.python_source(cell)


def definitions(path: Path, *names: str, **known: Any) -> list[Any]:
    """Functions as a notebook defines them, run among its imports and what else they are to know."""
    space = dict(known)
    for text in code_cells(path):
        for node in ast.parse(text).body:
            wanted = isinstance(node, ast.FunctionDef) and node.name in names
            if wanted or isinstance(node, ast.Import | ast.ImportFrom):
                exec(compile(ast.Module([node], []), path.name, "exec"), space)
    return [space[name] for name in names]


def exercises(path: Path) -> list[tuple[int, str, str]]:
    """Place of each exercise's cell, the expected output and the solution."""
    found, cells = [], linter.read(path)["cells"]
    for place, cell in enumerate(cells):
        if "exercise" in cell["metadata"].get("tags", []):
            folded = "".join(cells[place + 2]["source"])
            expected, solution = re.findall(r"```(?:text|python)\n(.*?)\n```", folded, re.S)
            found.append((place, expected, solution))
    return found
