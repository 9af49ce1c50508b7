"""Rules for committed notebooks, so that they look right on a code host and pass strict nbval.

Run it to check the notebooks of the course, or those that are named:

    python tests/lint_notebooks.py [--fix] [NOTEBOOK ...]

`--fix` strips what only a running kernel can show: `metadata.widgets`, which makes a code host refuse a notebook, and
views of widgets, where their HTML or text stands beside them.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MAX_BYTES = 1_500_000
MAX_CELL_LINES = 15
WORLD, MAX_WORLD_LINES = "world", 60
"""A cell with this tag writes a whole world, which is to stand in one piece."""
MAX_LINE = 88
MAX_IGNORES = 1
VIEW = "application/vnd.jupyter.widget-view+json"
IGNORE_TAGS = {"nbval-ignore-output", "nbval-skip", "nbval-raises-exception", "raises-exception"}
IGNORE_COMMENT = re.compile(r"^\s*#\s*(?:NBVAL_IGNORE_OUTPUT|NBVAL_SKIP|NBVAL_RAISES_EXCEPTION)\b", re.M)
UNDESCRIBED = re.compile(r"!\[\s*\]\(|<img\b(?![^>]*\balt\s*=\s*[\"'][^\"']*\w)[^>]*>", re.I)

Notebook = dict[str, Any]

# Where `encoding` stands when it is given by position, and where the mode stands.
_ENCODING_AT = {"open": 3, "method open": 2, "read_text": 0, "write_text": 1}
_MODE_AT = {"open": 1, "method open": 0}
_OTHER_OPEN = {"os", "Image", "responder", "tarfile", "webbrowser", "zipfile"}


def missing_encoding(tree: ast.AST) -> Iterator[int]:
    """Lines of `open`, `read_text` and `write_text` in text mode that do not name an encoding."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(id="open") | ast.Attribute(attr="open", value=ast.Name(id="io" | "codecs")):
                kind = "open"
            case ast.Attribute(attr="open", value=ast.Name(id=owner)) if owner in _OTHER_OPEN:
                continue
            case ast.Attribute(attr="open", value=ast.Call(func=ast.Name(id="super"))):
                continue
            case ast.Attribute(attr="open"):
                kind = "method open"
            case ast.Attribute(attr="read_text" | "write_text" as kind):
                pass
            case _:
                continue
        named = {word.arg: word.value for word in node.keywords}
        if None in named:  # **kwargs: it cannot be known
            continue
        mode = _argument(node, named, "mode", _MODE_AT.get(kind))
        if isinstance(mode, ast.Constant) and "b" in str(mode.value):
            continue
        encoding = _argument(node, named, "encoding", _ENCODING_AT[kind])
        if encoding is None or (isinstance(encoding, ast.Constant) and encoding.value is None):
            yield node.lineno


def _argument(
    call: ast.Call, named: dict[str | None, ast.expr], name: str, position: int | None
) -> ast.expr | None:
    if name in named:
        return named[name]
    if position is not None and len(call.args) > position:
        return call.args[position]
    return None


def source(cell: Notebook) -> str:
    """The text of a cell; a notebook file may hold it as a list of lines."""
    return "".join(cell["source"])


def python_source(cell: Notebook) -> str:
    """The same without IPython's magics and shell lines, so that `ast` can read it."""
    if source(cell).startswith("%%"):
        return ""
    return "\n".join(re.sub(r"^(\s*)[%!].*", r"\1pass", line) for line in source(cell).splitlines())


def lint(notebook: Notebook, size: int = 0) -> list[str]:
    """What is wrong with a notebook, one sentence each.

    Args:
        notebook: the notebook as its JSON says it.
        size: its size on disk, in bytes.
    """
    return list(_lint(notebook, size))


def _lint(notebook: Notebook, size: int) -> Iterator[str]:
    metadata = notebook["metadata"]
    if size > MAX_BYTES:
        yield f"the file has {size:,} bytes, more than {MAX_BYTES:,}"
    if metadata.get("kernelspec", {}).get("name") != "python3":
        yield "the kernelspec is not python3"
    if "widgets" in metadata:
        yield "metadata.widgets is present; --fix strips it"
    ignores, expected = 0, 0
    for number, cell in enumerate(notebook["cells"], 1):
        where = f"cell {number}"
        if cell["cell_type"] == "markdown" and UNDESCRIBED.search(source(cell)):
            yield f"{where}: an image has no alt text"
        if cell["cell_type"] != "code" or not source(cell).strip():
            continue
        expected += 1
        if cell["execution_count"] is None:
            yield f"{where}: it was not run"
        elif cell["execution_count"] != expected:
            yield f"{where}: execution_count is {cell['execution_count']}, not {expected}; run all in order"
        tags = IGNORE_TAGS & set(cell["metadata"].get("tags", []))
        ignores += bool(tags or IGNORE_COMMENT.search(source(cell)))
        yield from (f"{where}: {message}" for message in (*_code(cell), *_rule(cell)))
        for output in cell["outputs"]:
            yield from (f"{where}: {message}" for message in _output(output))
    if ignores > MAX_IGNORES:
        yield f"{ignores} cells tell nbval to look away, more than {MAX_IGNORES}"


def _code(cell: Notebook) -> Iterator[str]:
    lines = source(cell).splitlines()
    most = MAX_WORLD_LINES if WORLD in cell["metadata"].get("tags", []) else MAX_CELL_LINES
    if len(lines) > most:
        yield f"{len(lines)} lines, more than {most}"
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_LINE:
            yield f"line {number} has {len(line)} characters, more than {MAX_LINE}"
    try:
        tree = ast.parse(python_source(cell))
    except SyntaxError as error:
        yield f"line {error.lineno} is not Python"
        return
    for number in missing_encoding(tree):
        yield f"line {number} opens a file and names no encoding"


def _rule(cell: Notebook) -> Iterator[str]:
    """A cell whose numbers may differ elsewhere tells the reader so, by the same number as its rule."""
    rule = cell["metadata"].get("compare", {})
    told = re.findall(r"^# .*on another machine.* by (\d+(?:\.\d+)?)\b", source(cell), re.M)
    wanted = [f"{rule['within']:g}"] if "within" in rule else []
    if told != wanted:
        yield f"its rule says that numbers may differ by {wanted or 'nothing'}, its text by {told or 'nothing'}"


def _output(output: Notebook) -> Iterator[str]:
    if output["output_type"] == "error":
        yield f"the output is an error ({output.get('ename', 'unknown')})"
    data = output.get("data", {})
    html = "".join(data.get("text/html", ""))
    if "image/svg+xml" in data or "<svg" in html.lower():
        yield "the output has an SVG image"
    if UNDESCRIBED.search(html):
        yield "an image in the HTML output has no alt text"
    if VIEW in data:
        yield "a widget's view is saved, which nobody can open without its kernel; --fix strips it"
    for kind in data:
        described = str(output.get("metadata", {}).get(kind, {}).get("alt", "")).strip()
        if kind.startswith("image/") and kind != "image/svg+xml" and not described:
            yield f'{kind} has no alt text; display(fig, metadata={{"{kind}": {{"alt": ...}}}})'


def fix(notebook: Notebook) -> bool:
    """Strip the saved state and views of widgets; says whether there was any."""
    found = notebook["metadata"].pop("widgets", None) is not None
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            if len(output.get("data", {})) > 1:
                found |= output["data"].pop(VIEW, None) is not None
    return found


def course() -> list[Path]:
    """The notebooks of the course, in order."""
    return sorted((ROOT / "notebooks").glob("*.ipynb"))


def read(path: Path) -> Notebook:
    """A notebook file as JSON."""
    notebook: Notebook = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def main(arguments: list[str] | None = None) -> int:
    """Check notebooks, print what is wrong, and return the exit status."""
    parser = argparse.ArgumentParser(description="Check committed notebooks.")
    parser.add_argument("--fix", action="store_true", help="strip metadata.widgets first")
    parser.add_argument("notebooks", nargs="*", type=Path, help="those of the course when none is named")
    options = parser.parse_args(arguments)
    failed = False
    for path in options.notebooks or course():
        notebook = read(path)
        if options.fix and fix(notebook):
            text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
            path.write_text(text, encoding="utf-8", newline="\n")
        for problem in lint(notebook, path.stat().st_size):
            failed = True
            print(f"{path}: {problem}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
