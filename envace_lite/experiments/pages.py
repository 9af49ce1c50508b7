"""Static HTML: rehearsed responses next to real ones, step by step. Needs no server and no script."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from html import escape
from pathlib import Path

import pandas as pd

from envace_lite.world import Task

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1b1b1b; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .3rem; }
code { font-size: .92em; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem; border-bottom: 1px solid #ddd; }
th { font-weight: 600; } .said { margin: .2rem 0 .6rem; color: #333; }
.same::before { content: "= "; } .differs::before { content: "≠ "; font-weight: 700; }
td:first-child code { white-space: nowrap; }
mark { background: #fde3cf; border-bottom: 2px solid #b84a00; padding: 0 .1em; }
summary { cursor: pointer; } .tools { color: #444; font-size: .9rem; }
"""


def mark_difference(real: str, other: str) -> str:
    """`other` as HTML, with the words that differ from `real` marked."""
    wanted, given = real.split(), other.split()
    parts = []
    for tag, _, _, start, end in SequenceMatcher(None, wanted, given, autojunk=False).get_opcodes():
        words = escape(" ".join(given[start:end]))
        if tag == "delete":
            parts.append("<mark>(missing)</mark>")
        elif words:
            parts.append(words if tag == "equal" else f"<mark>{words}</mark>")
    return " ".join(parts)


def side_by_side(tasks: Sequence[Task], columns: dict[str, pd.DataFrame], *, title: str, intro: str) -> str:
    """A page with one section a task: each call, the real response, and what each policy rehearsed.

    Args:
        tasks: which tasks to show.
        columns: heading -> the frame of `fidelity.compare`, all on the same pairs.
    """
    first = next(iter(columns.values()))
    sections = []
    for task in tasks:
        rows = []
        for place in first.index[first.task == task.id]:
            pair = first.loc[place]
            what = "planned" if pair.planned else "what if"
            cells = [f"<td>{pair.depth + 1}. {what}<br><code>{escape(pair.call)}</code></td>"]
            cells.append(f"<td><code>{escape(pair.real)}</code></td>")
            for frame in columns.values():
                mine = frame.loc[place]
                word = "same" if mine.exact else "differs"
                cells.append(
                    f'<td class="{word}"><span>{word}:</span> '
                    f"<code>{mark_difference(pair.real, mine.rehearsed)}</code></td>"
                )
            rows.append(f"<tr>{''.join(cells)}</tr>")
        said = "<br>".join(f"<b>{m['role']}</b> {escape(m['content'])}" for m in task.messages)
        listed = "<br>".join(
            f"<code>{escape(tool['function']['name'])}</code>: {escape(tool['function']['description'])}"
            for tool in task.tools
        )
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("call", "real response", *columns))
        sections.append(
            f"<section><h2>{escape(task.id)}</h2><p class='said'>{said}</p>"
            f"<details><summary>tools</summary><p class='tools'>{listed}</p></details>"
            f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></section>"
        )
    return _page(title, intro, "".join(sections))


def worst_first(frame: pd.DataFrame, *, title: str, limit: int = 300) -> str:
    """A page of rehearsed next to real responses with differing words marked.

    First the real errors that are told as a success, then other wrong verdicts, then the rest by the number of wrong
    parts; the most confident mistakes come first.

    Args:
        frame: from `fidelity.compare`.
        limit: most rows.
    """
    keys = pd.DataFrame(
        {
            "cheerful": frame.real_error & frame.rehearsed_success,
            "verdict": frame.real_error != frame.rehearsed_error,
            "differs": ~frame.exact,
            "wrong": frame.filter(like="wrong_").sum(axis=1),
            "sure": frame.confidence.fillna(0),
        }
    )
    order = keys.sort_values([*map(str, keys)], ascending=False).index[:limit]
    rows = []
    for row in frame.loc[order].to_dict("records"):
        word = "same" if row["exact"] else "differs"
        sure = "" if pd.isna(row["confidence"]) else f"<br>probability {row['confidence']:.2f}"
        rows.append(
            f"<tr><td><code>{escape(row['task'])}</code><br>depth {row['depth']}, {row['mutation']}</td>"
            f"<td><code>{escape(row['call'])}</code></td><td><code>{escape(row['real'])}</code></td>"
            f'<td class="{word}"><span>{word}:</span> '
            f"<code>{mark_difference(row['real'], row['rehearsed'])}</code>{sure}</td></tr>"
        )
    heads = ("where", "call", "real response", "rehearsed response")
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    intro = (
        f"{frame.exact.sum()} of {len(frame)} rehearsed responses equal the real one in every word; "
        f"{(frame.real_error & frame.rehearsed_success).sum()} of {frame.real_error.sum()} real errors are told as a "
        f"success. The {len(order)} worst are shown, these errors first."
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return _page(title, intro, table)


def _page(title: str, intro: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<main><h1>{escape(title)}</h1><p>{escape(intro)}</p>{body}</main></body></html>\n"
    )


def write_page(path: Path | str, html: str) -> Path:
    """Write a page."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html, encoding="utf-8")
    return path
