"""The course as static HTML with an index: needs no server, no script and no network.

nbconvert renders the pages; its template is changed in two places. It leaves out the scripts that would be fetched from
elsewhere, and it keeps the alt text of images.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import nbformat
from jinja2 import DictLoader
from nbconvert import HTMLExporter
from nbconvert.filters import markdown2html

from envace_lite.experiments.pages import write_page
from envace_lite.world import paths

NOTEBOOKS = paths.ROOT / "notebooks"
_VIEW = "application/vnd.jupyter.widget-view+json"
_TEMPLATE = """
{%- extends 'lab/index.html.j2' -%}
{%- block html_head_js -%}{%- endblock -%}
{%- block html_head_js_mathjax -%}{%- endblock -%}
{%- block html_head_js_mermaidjs -%}{%- endblock -%}
{% block jupyter_widgets %}{% endblock %}
{% block extra_css %}<style>body { max-width: 60rem; margin: auto !important; }</style>{% endblock %}
{% block data_png scoped %}
<div class="jp-RenderedImage jp-OutputArea-output">
<img src="data:image/png;base64,{{ output.data['image/png'] | escape_html }}"
 alt="{{ (output | get_metadata('alt', 'image/png') or '') | escape_html }}">
</div>
{%- endblock data_png %}
"""
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 48rem; margin: 2rem auto; padding: 0 1rem; color: #1b1b1b; }
h1 { font-size: 1.6rem; } dt { font-weight: 600; margin-top: 1rem; } dd { margin: 0; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #ddd; }
"""


@dataclass(frozen=True)
class Chapter:
    """A notebook of the course, with what the index says about it."""

    path: Path
    title: str
    claim: str

    @property
    def page(self) -> str:
        """The file name of its page."""
        return f"{self.path.stem}.html"


def read_chapter(path: Path) -> Chapter:
    """Title and claim, which stand in the first cell of a notebook."""
    first = nbformat.read(path, as_version=4).cells[0].source
    title = first.splitlines()[0].removeprefix("# ")
    claim = re.search(r"\*\*Claim\.\*\* (.+?)\n\n", first, re.S)
    return Chapter(path, title, " ".join(claim[1].split()) if claim else "")


def as_html(path: Path) -> str:
    """A notebook as one page. A widget is shown as its static HTML."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if len(output.get("data", {})) > 1:
                output.data.pop(_VIEW, None)
    exporter: Any = HTMLExporter(
        extra_loaders=[DictLoader({"course.html.j2": _TEMPLATE})], template_file="course.html.j2"
    )
    body, _ = exporter.from_notebook_node(notebook, {"metadata": {"name": read_chapter(path).title}})
    return str(body)


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body><main>{body}</main></body></html>\n"
    )


def _entries(chapters: list[Chapter]) -> str:
    entries = (
        f'<dt><a href="{chapter.page}">{escape(chapter.title)}</a></dt><dd>{escape(chapter.claim)}</dd>'
        for chapter in chapters
    )
    return f"<dl>{''.join(entries)}</dl>"


def build(out: Path, folder: Path = NOTEBOOKS) -> Path:
    """Render all notebooks, the students' copies of the assignments and the teacher's page; returns the index."""
    chapters = [read_chapter(path) for path in sorted(folder.glob("*.ipynb"))]
    exercises = [read_chapter(path) for path in sorted((folder / "assignments" / "student").glob("*.ipynb"))]
    for chapter in [*chapters, *exercises]:
        write_page(out / chapter.page, as_html(chapter.path))
    teaching = folder / "TEACHING.md"
    write_page(
        out / "teaching.html", _page("For teachers", markdown2html(teaching.read_text(encoding="utf-8")))
    )
    body = (
        "<h1>World rehearsal in small</h1><p>The course as it was run. The same notebooks are live in JupyterLab "
        f"(<code>make lab</code>).</p>{_entries(chapters)}<h2>Assignments</h2>{_entries(exercises)}"
        '<h2>For teachers</h2><p><a href="teaching.html">Goals, minutes, stumbling blocks, grading</a></p>'
    )
    return write_page(out / "index.html", _page("envace_lite: the course", body))
