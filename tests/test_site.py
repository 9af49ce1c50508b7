"""The rendered course, and what a change behind a notebook's back does."""

from __future__ import annotations

import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_notebook

import course
import lint_notebooks as linter
from envace_lite.course import site

every_notebook = pytest.mark.parametrize("path", course.COURSE, ids=lambda path: path.stem)


def words(html: str) -> str:
    """What a reader of a page sees, without spaces."""
    return re.sub(r"\s+", "", unescape(re.sub(r"<[^>]*>", "", html)))


def page_problems(path: Path, html: str) -> list[str]:
    """What a page lacks beside its notebook."""
    problems = []
    described = re.compile(r"alt=[\"'](?!No description)[^\"']*\w")
    if not all(described.search(picture) for picture in re.findall(r"<img\b[^>]*>", html)):
        problems.append("an image has no alt text")
    if re.search(r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=[\"']?(?:https?:)?//", html):
        problems.append("something is fetched from elsewhere")
    seen = words(html)
    for cell in linter.read(path)["cells"]:
        if cell["cell_type"] == "code" and words_of(linter.source(cell)) not in seen:
            problems.append(f"a cell is missing: {linter.source(cell)[:40]}")
        for output in cell.get("outputs", []):
            html, text = "".join(output.get("data", {}).get("text/html", "")), "".join(output.get("text", ""))
            if words(html) + words_of(text) not in seen:
                problems.append(f"an output is missing: {(html + text)[:40]}")
    return problems


def words_of(text: str) -> str:
    return re.sub(r"\s+", "", text)


@every_notebook
def test_a_page_holds_everything_and_needs_nothing(path: Path) -> None:
    assert page_problems(path, site.as_html(path)) == []


def test_each_step_of_a_rollout_is_on_the_page() -> None:
    path = course.named("02")
    html = site.as_html(path)
    outputs = [o for cell in linter.read(path)["cells"] for o in cell.get("outputs", [])]
    shown = ["".join(output.get("data", {}).get("text/html", "")) for output in outputs]
    rollouts = [found[1] for one in shown if (found := re.search(r"Step 1 of (\d+)", one))]
    assert len(rollouts) == 2
    for count in rollouts:
        for place in range(1, int(count) + 1):
            assert html.count(f"Step {place} of {count}") >= rollouts.count(count)


def test_a_page_can_lack_something() -> None:
    path = course.named("00")
    html = site.as_html(path)
    step = re.search(r"Step 3 of \d+", html)
    assert step
    for old, new, problem in (
        (step[0], "", "an output is missing"),
        (' alt="', ' title="', "an image has no alt text"),
        ("</head>", '<script src="https://a.org/x.js"></script></head>', "fetched from elsewhere"),
        ("o6:", "o7:", "an output is missing"),
    ):
        changed = html.replace(old, new)
        assert changed != html, old
        assert any(problem in found for found in page_problems(path, changed))


def test_the_index_leads_to_every_page(tmp_path: Path) -> None:
    small = tmp_path / "notebooks"
    (small / "assignments" / "student").mkdir(parents=True)
    for name in ("one", "assignments/student/two"):
        cell = nbformat.v4.new_markdown_cell(
            f"# Title {name[-3:]}\n\n**Claim.** It holds\nfor <all>.\n\nMore."
        )
        nbformat.write(new_notebook(cells=[cell]), small / f"{name}.ipynb")
    (small / "TEACHING.md").write_text("# Teach\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n", encoding="utf-8")
    index = site.build(tmp_path / "out", small)
    html = index.read_text(encoding="utf-8")
    targets = re.findall(r'href="([^"]+)"', html)
    assert targets == ["one.html", "two.html", "teaching.html"]
    assert all((tmp_path / "out" / target).is_file() for target in targets)
    assert "It holds for &lt;all&gt;." in html
    assert "<table>" in (tmp_path / "out" / "teaching.html").read_text(encoding="utf-8")


def test_the_teachers_page_names_every_notebook_and_assignment() -> None:
    text = (linter.ROOT / "notebooks" / "TEACHING.md").read_text(encoding="utf-8")
    student = sorted((linter.ROOT / "notebooks" / "assignments" / "student").glob("*.ipynb"))
    assert all(f"`{path.stem}`" in text for path in [*course.COURSE, *student])


# Strict nbval notices what was changed behind a notebook's back -----------------------------------------------


def cell_starting(path: Path, start: str) -> nbformat.NotebookNode:
    return next(cell for cell in nbformat.read(path, as_version=4).cells if cell.source.startswith(start))


def nbval(path: Path) -> tuple[int, str]:
    """Exit status and report of the run that `make test` makes."""
    sanitize = linter.ROOT / "tests" / "nbval_sanitize.cfg"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-rA", "--nbval"]
    command += ["-c", str(linter.ROOT / "pyproject.toml"), "--nbval-sanitize-with", str(sanitize), str(path)]
    ended = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, cwd=path.parent)
    return ended.returncode, ended.stdout


def test_a_changed_output_step_or_number_fails(tmp_path: Path) -> None:
    first = course.named("00")
    starts = ("try:", "from envace_lite import TrainConfig", "base =", "tasks =", "[episode] = rollout(base")
    cells = [cell_starting(first, start) for start in (*starts, "prediction =", "before = measure(")]
    notebook = new_notebook(cells=cells, metadata=nbformat.read(first, as_version=4).metadata)
    path = tmp_path / "small.ipynb"
    nbformat.write(notebook, path)
    status, report = nbval(path)
    assert status == 0, report

    cells[0].outputs[0].text = cells[0].outputs[0].text.replace("envace_lite", "envace_heavy")
    step = cells[4].outputs[0].data
    step["text/html"] = re.sub(r"Step 3 of (\d+)", r"Step 3 of 1\1", step["text/html"])
    numbers = cells[6].outputs[0]
    numbers.text = re.sub(r"(fidelity +0\.\d\d)(\d)", lambda m: f"{m[1]}{(int(m[2]) + 1) % 10}", numbers.text)
    nbformat.write(notebook, path)
    status, report = nbval(path)
    assert status == 1
    assert sorted(re.findall(r"FAILED .*::Cell (\d+)", report)) == ["0", "4", "6"], report
