"""The notebooks of the course keep the rules, and each rule can fail."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lint_notebooks as linter

Notebook = dict[str, Any]


def code_cell(text: str, count: int, **outputs: Any) -> Notebook:
    return {
        "cell_type": "code",
        "execution_count": count,
        "metadata": {},
        "outputs": [outputs] if outputs else [],
        "source": text.splitlines(keepends=True),
    }


def good() -> Notebook:
    """A small notebook that breaks no rule."""
    png = {"image/png": "iVBORw0KGgo=", "text/plain": "<Figure>"}
    return {
        "cells": [
            {"cell_type": "markdown", "metadata": {}, "source": ["# Title ![a gap](gap.png)"]},
            code_cell("print(1)\n%matplotlib inline\nopen('x', encoding='utf-8')", 1),
            code_cell("", 99),
            code_cell(
                "display(fig)",
                2,
                output_type="display_data",
                data=png,
                metadata={"image/png": {"alt": "two lines that part"}},
            ),
        ],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def first(notebook: Notebook) -> Notebook:
    cell: Notebook = notebook["cells"][1]
    return cell


def figure(notebook: Notebook) -> Notebook:
    output: Notebook = notebook["cells"][3]["outputs"][0]
    return output


@pytest.mark.parametrize("path", linter.course(), ids=lambda path: path.name)
def test_course_notebook(path: Path) -> None:
    assert linter.lint(linter.read(path), path.stat().st_size) == []


def test_good_notebook_passes() -> None:
    assert linter.lint(good(), linter.MAX_BYTES) == []


def two_ignores(notebook: Notebook) -> None:
    first(notebook)["metadata"]["tags"] = ["nbval-ignore-output"]
    notebook["cells"][3]["source"] = ["# NBVAL_SKIP\n", "display(fig)"]


Break = Callable[[Notebook], Any]
BREAKS: dict[str, Break] = {
    "it was not run": lambda nb: first(nb).update(execution_count=None),
    "execution_count is 3, not 1": lambda nb: first(nb).update(execution_count=3),
    "kernelspec is not python3": lambda nb: nb["metadata"]["kernelspec"].update(name="my-machine"),
    "the kernelspec is not": lambda nb: nb["metadata"].pop("kernelspec"),
    "metadata.widgets is present": lambda nb: nb["metadata"].update(widgets={}),
    "a widget's view is saved": lambda nb: figure(nb)["data"].update({linter.VIEW: {"model_id": "1"}}),
    "the output has an SVG image": lambda nb: figure(nb)["data"].update({"image/svg+xml": "<svg/>"}),
    "the output has an SVG": lambda nb: figure(nb)["data"].update({"text/html": ["<b>", "<svg></svg>"]}),
    "an image in the HTML output has no alt text": lambda nb: figure(nb)["data"].update(
        {"text/html": "<img src='x.png'>"}
    ),
    "the output is an error (ValueError)": lambda nb: first(nb)["outputs"].append(
        {"output_type": "error", "ename": "ValueError", "evalue": "", "traceback": []}
    ),
    "2 cells tell nbval to look away": two_ignores,
    "16 lines, more than 15": lambda nb: first(nb).update(source=["1\n"] * 16),
    "line 1 has 89 characters": lambda nb: first(nb).update(source=["#" * 89]),
    "line 2 opens a file and names no encoding": lambda nb: first(nb).update(source="1\nopen('x')"),
    "line 1 is not Python": lambda nb: first(nb).update(source="def"),
    "image/png has no alt text": lambda nb: figure(nb).update(metadata={}),
    "image/png has no": lambda nb: figure(nb).update(metadata={"image/png": {"alt": " "}}),
    "cell 1: an image has no alt text": lambda nb: nb["cells"][0].update(source="![](gap.png)"),
    "cell 1: an image has no alt": lambda nb: nb["cells"][0].update(source='<img src="gap.png" alt="">'),
}


@pytest.mark.parametrize("message", BREAKS)
def test_each_rule_can_fail(message: str) -> None:
    notebook = good()
    BREAKS[message](notebook)
    problems = linter.lint(notebook)
    assert len(problems) == 1
    assert message in problems[0]


def test_size_cap_can_fail() -> None:
    assert linter.lint(good(), linter.MAX_BYTES + 1) == ["the file has 1,500,001 bytes, more than 1,500,000"]


def test_one_ignore_is_allowed() -> None:
    notebook = good()
    first(notebook)["metadata"]["tags"] = ["nbval-ignore-output"]
    assert linter.lint(notebook) == []


def test_fix_strips_widgets_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.ipynb"
    notebook = good()
    notebook["metadata"]["widgets"] = {"state": {}}
    figure(notebook)["data"][linter.VIEW] = {"model_id": "1"}
    path.write_text(json.dumps(notebook), encoding="utf-8")
    assert linter.main([str(path)]) == 1
    assert "metadata.widgets" in capsys.readouterr().out
    assert linter.main(["--fix", str(path)]) == 0
    assert linter.read(path) == good()


@pytest.mark.parametrize(
    "text",
    [
        "open(p)",
        "open(p, 'w')",
        "io.open(p)",
        "open(p, encoding=None)",
        "path.open()",
        "path.open('w')",
        "path.read_text()",
        "Path('x').write_text(text)",
    ],
)
def test_missing_encoding_is_found(text: str) -> None:
    assert list(linter.missing_encoding(ast.parse(text))) == [1]


@pytest.mark.parametrize(
    "text",
    [
        "open(p, 'rb')",
        "open(p, mode='wb')",
        "open(p, encoding='utf-8')",
        "open(p, 'r', -1, 'utf-8')",
        "path.open('rb')",
        "path.open(encoding='utf-8')",
        "path.read_text('utf-8')",
        "path.write_text(text, 'utf-8')",
        "path.write_text(text, encoding='utf-8')",
        "os.open(p, flags)",
        "open(p, **options)",
    ],
)
def test_named_encoding_passes(text: str) -> None:
    assert list(linter.missing_encoding(ast.parse(text))) == []


def sanitize_rules() -> list[tuple[str, str]]:
    """The rules as nbval reads them."""
    text = (linter.ROOT / "tests" / "nbval_sanitize.cfg").read_text(encoding="utf-8")
    rules: list[tuple[str, str]] = re.findall(r"^regex: (.*)$\n^replace: (.*)$", text, flags=re.M)
    assert len(rules) == len(re.findall(r"^regex:", text, flags=re.M)) == len(re.findall(r"^\[", text, re.M))
    return rules


def sanitize(text: str) -> str:
    for pattern, replacement in sanitize_rules():
        text = re.sub(pattern, replacement, text)
    return text


def test_no_sanitize_rule_is_dropped() -> None:
    assert all(pattern.strip() and replacement.strip() for pattern, replacement in sanitize_rules())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("done in 3.41 s", "done in 12 s"),
        ("2 minutes", "3 minutes"),
        ("3.2 steps/s, 1,200 tokens a second", "11 steps/s, 950.5 tokens a second"),
        ("elapsed 0:01:23", "elapsed 0:00:59"),
        ("<Task at 0x7f3a2b1c9d00>", "<Task at 0x10a2b3c4d5e>"),
        ("saved to /" + "opt/a/run.json", "saved to C:\\a\\run.json"),
        ("torch 2.13.0+cpu", "torch 2.9.1"),
        ("2026-01-02T03:04:05", "2027-11-12 13:14:15.5"),
        ("id " + "0a" * 16, "id " + "1b" * 16),
    ],
)
def test_sanitize_hides_what_differs_between_machines(one: str, other: str) -> None:
    assert sanitize(one) == sanitize(other)


@pytest.mark.parametrize(
    "text",
    [
        "real success 0.935 +- 0.035, step 200, 192 rollouts",
        "get_order o3 -> pending ; wallet 7",
        "fidelity 0.55 / 0.86 / 0.95",
        "<td>0.58</td><td>0.935</td></tr></tbody>",
        "act/rehearse data/runs/one.json",
    ],
)
def test_sanitize_keeps_results(text: str) -> None:
    assert sanitize(text) == text
