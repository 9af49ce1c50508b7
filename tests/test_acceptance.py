"""The page of what users of such material ran into names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROWS = re.findall(
    r"^\| (\d+) \| \[.+?\]\(https://github\.com/.+?\) \| .+? \| (.+) \|$",
    (ROOT / "docs" / "acceptance.md").read_text(encoding="utf-8"),
    re.M,
)


def missing_tests(text: str) -> list[str]:
    """Tests that a text names and that do not exist."""
    missing = []
    for file, name in re.findall(r"`(test_\w+\.py)::(\w+)`", text):
        path = ROOT / "tests" / file
        tree = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else ast.Module([], [])
        if name not in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}:
            missing.append(f"{file}::{name}")
    return missing


def test_every_report_has_its_row() -> None:
    assert [int(number) for number, _ in ROWS] == list(range(1, 29))


@pytest.mark.parametrize(("number", "here"), ROWS, ids=[number for number, _ in ROWS])
def test_a_row_names_a_test_or_the_reason(number: str, here: str) -> None:
    assert "`test_" in here or re.search(r"the same test;|no unit test:", here), number
    assert missing_tests(here) == []


def test_a_test_that_does_not_exist_is_found() -> None:
    text = "`test_acceptance.py::test_every_report_has_its_row`, `test_acceptance.py::test_gone`, `test_x.py::test_y`"
    assert missing_tests(text) == ["test_acceptance.py::test_gone", "test_x.py::test_y"]
