"""A plugin of pytest for nbval: what the output of a notebook's cell may differ in on another machine.

Without a rule every output has to be equal to the letter, and whatever tokens the cell has chosen must have been chosen
clearly: on another processor the last bit of a logit is another one. A rule stands in the metadata of its cell, as
`compare`, and a cell whose numbers may differ says so in its source:

    {"compare": {"within": 0.15}}    the same words, rows and signs; each number may be 0.15 away
    {"compare": {"tokens": "any"}}   equal to the letter, whichever tokens are chosen

Use it by `pytest -p nbval_rules --nbval ...` with `tests` and `tests/elsewhere` on `PYTHONPATH`. With
`--rules-report FILE` it writes down, as lines of JSON, how far each cell was from what is committed.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any

import pytest

LEAST_LEAD = 1e-3
"""By so much log-probability a greedy choice has to lead the second one, where a cell is compared to the letter."""
LEAST_DISTANCE = 1e-4
"""So far, in probability, a random number has to be from choosing another token there. The disturbance that stands for
another machine moves these borders by about 1e-5."""
SECONDS_FOR_OUTPUT = 60
"""How long nbval waits for what a cell has printed; its own five seconds are too few on a crowded machine."""

NUMBER = re.compile(r"(?<![\w.:/-])[-+]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w:])")
_ROW_ENDS = re.compile(r"</(?:tr|p|div|details|caption|summary)>|<br\s*/?>")
_NOT_COMPARED = ("image/png", "application/vnd.jupyter.widget-view+json")

Output = Mapping[str, Any]


@dataclass
class Comparison:
    """How an output differs from the committed one.

    Attributes:
        problems: what the rule does not allow, a sentence each.
        farthest: the greatest distance between two numbers.
    """

    problems: list[str] = field(default_factory=list)
    farthest: float = 0.0


def rule_of(cell: Mapping[str, Any]) -> dict[str, Any]:
    """The rule of a cell; empty if there is none.

    Raises:
        ValueError: the metadata holds something else.
    """
    rule = dict(cell["metadata"].get("compare", {}))
    match rule:
        case {"within": int() | float() as within, **rest} if within > 0 and not rest:
            pass
        case {"tokens": "any", **rest} if not rest:
            pass
        case _ if rule:
            raise ValueError(f"no rule for comparing: {rule}")
    return rule


def compare(
    committed: Sequence[Output], new: Sequence[Output], within: float, clean: Any = str
) -> Comparison:
    """Compare outputs number by number, and everything between the numbers to the letter.

    Args:
        committed, new: outputs as a notebook holds them.
        within: how far a number may be away.
        clean: a function that replaces what may always differ (see `nbval_sanitize.cfg`).
    """
    one, other = by_kind(committed, clean), by_kind(new, clean)
    found = Comparison()
    if one.keys() != other.keys():
        found.problems.append(f"outputs of the kinds {sorted(other)}, not {sorted(one)}")
        return found
    for kind, lines in one.items():
        if len(lines) != len(other[kind]):
            found.problems.append(f"{kind}: {len(other[kind])} lines, not {len(lines)}")
            continue
        for was, now in zip(lines, other[kind], strict=True):
            _compare_lines(kind, was, now, within, found)
    return found


def _compare_lines(kind: str, was: str, now: str, within: float, found: Comparison) -> None:
    if NUMBER.sub("0", was) != NUMBER.sub("0", now):
        found.problems.append(f"{kind}: {now!r}, not {was!r}")
        return
    for before, after in zip(NUMBER.findall(was), NUMBER.findall(now), strict=True):
        a, b = (float(text.replace(",", "")) for text in (before, after))
        found.farthest = max(found.farthest, abs(a - b))
        # In binary 1.00 - 0.85 is a little more than 0.15.
        if abs(a - b) > within + 1e-9:
            found.problems.append(f"{kind}: {after} is farther than {within:g} from {before} in {was!r}")
        elif a * b < 0 or (a and b and (before[0] == "+") != (after[0] == "+")):
            found.problems.append(f"{kind}: {after} has another sign than {before} in {was!r}")


def by_kind(outputs: Sequence[Output], clean: Any = str) -> dict[str, list[str]]:
    """The lines of text of some outputs, by stream or media type; pictures are not compared."""
    lines: dict[str, list[str]] = {}
    for output in outputs:
        if "text" in output:
            texts = {output["name"]: output["text"]}
        elif "data" in output:
            texts = {kind: text for kind, text in output["data"].items() if kind not in _NOT_COMPARED}
        else:
            texts = {"error": output.get("ename", "")}
        for kind, text in texts.items():
            whole = clean("".join(text))
            rows = _rows(whole) if kind == "text/html" else whole.splitlines()
            lines.setdefault(kind, []).extend(" ".join(row.split()) for row in rows)
    return lines


def _rows(html: str) -> list[str]:
    """What HTML says, a line for each row of a table, paragraph or fold."""
    text = re.sub(r"<style.*?</style>", "", html, flags=re.S)
    rows = (unescape(re.sub(r"<[^>]*>", " ", row)) for row in _ROW_ENDS.split(text))
    return [row for row in rows if row.strip()]


def problems_of_margins(margins: Mapping[str, Mapping[str, float]], cell: int) -> list[str]:
    """Which tokens a cell has chosen too narrowly to be compared to the letter, a sentence each.

    Args:
        margins: what `elsewhere/sitecustomize.py` writes.
        cell: the cell's execution count.
    """
    found = []
    for kind, least, words in (
        ("greedy", LEAST_LEAD, "a greedy token leads the second by"),
        ("drawn", LEAST_DISTANCE, "a drawn token is near another one, by a probability of"),
    ):
        value = margins.get(kind, {}).get(str(cell))
        if value is not None and value < least:
            found.append(f"{words} {value:.1e}, less than {least:g}: another machine may choose otherwise")
    return found


# ------------------------------------------------------------------------------------------------ the plugin


def pytest_addoption(parser: pytest.Parser) -> None:
    """The plugin's option."""
    parser.addoption(
        "--rules-report", metavar="FILE", help="write how far each notebook cell is from what is committed"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Have the kernels note how narrowly tokens are chosen."""
    handle, path = tempfile.mkstemp(prefix="margins-", suffix=".json")
    os.close(handle)
    os.environ["ENVACE_MARGINS"] = path
    config.add_cleanup(lambda: Path(path).unlink(missing_ok=True))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give each cell of a notebook its rule."""
    from nbval.plugin import IPyNbCell

    if not isinstance(item, IPyNbCell):
        return
    item.output_timeout = SECONDS_FOR_OUTPUT
    rule = rule_of(item.cell)
    to_the_letter = item.compare_outputs

    def compared(new: Sequence[Output], committed: Sequence[Output], skip: Any = None) -> bool:
        found = compare(committed, new, rule.get("within", 0.0), item.sanitize)
        equal = not found.problems if "within" in rule else to_the_letter(new, committed, skip)
        if "within" in rule:
            item.comparison_traceback = found.problems
        _report(item, rule, found, equal)
        return bool(equal)

    item.compare_outputs = compared


def _report(item: Any, rule: dict[str, Any], found: Comparison, equal: bool) -> None:
    path = item.config.getoption("--rules-report")
    if not path:
        return
    row = {"notebook": Path(item.fspath).stem, "cell": item.cell_num, "rule": rule, "equal": equal}
    row |= {"farthest": found.farthest, "problems": found.problems}
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """After a cell without a rule: were its tokens chosen clearly?"""
    cell = getattr(item, "cell", None)
    margins = Path(os.environ["ENVACE_MARGINS"])
    if cell is not None and item.cell_num == 0:  # a new kernel counts its cells from one again
        margins.write_text("{}", encoding="utf-8")
    result = yield
    if cell is not None and not rule_of(cell):
        noted = json.loads(margins.read_text(encoding="utf-8") or "{}")
        if found := problems_of_margins(noted, item.cell_num + 1):
            item.raise_cell_error("; ".join(found))
    return result
