"""For `make docs`: the figures lie beside `docs`, so they are added to its files, and links to them are turned."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

FIGURES = Path(__file__).resolve().parent.parent / "figures"


def on_files(files: Files, config: Any) -> Files:
    """Add every figure."""
    for path in sorted(FIGURES.glob("*.png")):
        files.append(File.generated(config, f"figures/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """`../figures/` of a page in `docs` is `figures/` there, and one level more below."""
    up = "../" * page.file.src_uri.count("/")
    return re.sub(r"\]\((?:\.\./)+figures/", f"]({up}figures/", markdown)
