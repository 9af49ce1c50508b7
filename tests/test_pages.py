"""What a person sees: pages and figures say what is so, to everyone, and the demo puts them together."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image

from envace_lite import paths
from envace_lite.experiments import demo, pages, plots
from envace_lite.experiments.pages import mark_difference, side_by_side, worst_first, write_page
from envace_lite.experiments.rows import MEASURES, measure, value
from envace_lite.fidelity import compare, probe_pairs, rehearse
from envace_lite.model.policy import Policy, load_policy
from envace_lite.train import TrainConfig
from envace_lite.world import Task
from helpers import copied

Lessons = list[tuple[Task, list[dict[str, Any]]]]
VOID = {"meta", "br"}


class Page(HTMLParser):
    """A page, read strictly: every element is closed where it should be.

    `rows` holds the table rows as lists of (class, text) of their cells, `marked` the marked texts.
    """

    def __init__(self, html: str):
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[tuple[str, str]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append((dict(attrs).get("class") or "", ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in set(self.open):
            self.texts[tag][-1] += data
        if {"td", "th"} & set(self.open):
            kind, text = self.rows[-1][-1]
            self.rows[-1][-1] = kind, text + data


# Differences -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("real", "other", "html"),
    [
        ("o1:sent error status", "o1:sent error status", "o1:sent error status"),
        ("o1:sent error status", "o1:sent ok o1:packed", "o1:sent <mark>ok o1:packed</mark>"),
        ("cash:3 ok cash:1", "cash:3 ok cash:2", "cash:3 ok <mark>cash:2</mark>"),
        ("cash:3 ok cash:1", "cash:4 ok cash:1", "<mark>cash:4</mark> ok cash:1"),
        ("ok o1:packed", "ok", "ok <mark>(missing)</mark>"),
        ("o1:paid ok", "ok", "<mark>(missing)</mark> ok"),
        ("ok", "ok o1:packed", "ok <mark>o1:packed</mark>"),
        ("ok", "", "<mark>(missing)</mark>"),
        ("", "ok", "<mark>ok</mark>"),
        ("", "", ""),
        ("ok", "<script>alert(1)</script>", "<mark>&lt;script&gt;alert(1)&lt;/script&gt;</mark>"),
        ("<end> & ok", "<end> & ok", "&lt;end&gt; &amp; ok"),
        ("ok", '</code> " onload=x', "<mark>&lt;/code&gt; &quot; onload=x</mark>"),
    ],
)
def test_differences_are_marked(real: str, other: str, html: str) -> None:
    assert mark_difference(real, other) == html


SENTENCES = st.lists(st.sampled_from([*"abc", "<b>", "&amp;"]), max_size=8).map(" ".join)


def is_within(words: list[str], sentence: str) -> bool:
    """Whether the words occur in a sentence in this order."""
    rest = iter(sentence.split())
    return all(word in rest for word in words)


@given(SENTENCES, SENTENCES)
def test_every_word_is_shown_and_only_differences_are_marked(real: str, other: str) -> None:
    html = mark_difference(real, other)
    page = Page(f"<code>{html}</code>")
    assert {tag for tag, _ in page.seen} <= {"code", "mark"}
    assert html.replace("<mark>(missing)</mark>", "").replace("<mark>", "").replace(
        "</mark>", ""
    ).split() == [escape(word) for word in other.split()]
    unmarked = [unescape(word) for word in re.sub("<mark>.*?</mark>", " ", html).split()]
    assert is_within(unmarked, real)
    assert ("<mark>" in html) == (real != other)


# The page --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def frames(apt: Policy, tiny: Policy, lessons: Lessons) -> dict[str, pd.DataFrame]:
    pairs = probe_pairs([task for task, _ in lessons])
    return {
        "base <rehearsed>": compare(pairs, rehearse(tiny, pairs)),
        "after": compare(pairs, rehearse(apt, pairs)),
    }


@pytest.fixture(scope="module")
def html(frames: dict[str, pd.DataFrame], lessons: Lessons) -> str:
    tasks = [task for task, _ in lessons]
    return side_by_side(tasks, frames, title="Rehearsed & real", intro="An <intro>.")


@pytest.mark.any_tokens
def test_a_page_shows_every_pair(html: str, frames: dict[str, pd.DataFrame], lessons: Lessons) -> None:
    page = Page(html)
    before, after = frames.values()
    header = ["call", "real response", *frames]
    rows = [[text for _, text in row] for row in page.rows]
    assert rows.count(header) == len(lessons)
    rows = [row for row in rows if row != header]
    assert len(rows) == len(after) > 15
    for (call, real, *told), one, other in zip(rows, before.itertuples(), after.itertuples(), strict=True):
        assert call == f"{other.depth + 1}. {'planned' if other.planned else 'what if'}{other.call}"
        assert real == other.real
        for text, pair in zip(told, (one, other), strict=True):
            assert text.startswith("same: " if pair.exact else "differs: ")
            if pair.exact:
                assert text == f"same: {pair.real}"
    assert page.texts["h2"] == [task.id for task, _ in lessons]
    assert page.texts["h1"] == ["Rehearsed & real"]
    assert page.texts["title"] == ["Rehearsed & real"]
    for task, _ in lessons:
        for message in task.messages:
            assert message["content"] in " ".join(page.texts["p"])


def test_a_page_says_in_words_what_its_colours_say(html: str, frames: dict[str, pd.DataFrame]) -> None:
    page = Page(html)
    cells = [cell for row in page.rows for cell in row if cell[0]]
    assert {kind for kind, _ in cells} == {"same", "differs"}
    assert all(text.startswith(f"{kind}: ") for kind, text in cells)
    exact = sum(int(frame.exact.sum()) for frame in frames.values())
    assert [kind for kind, _ in cells].count("same") == exact
    assert 0 < exact < len(cells)
    marks = [mark for mark in page.texts["mark"] if mark]
    assert len(marks) >= len(cells) - exact


def test_a_page_needs_nothing_from_elsewhere(html: str) -> None:
    page = Page(html)
    tags = {tag for tag, _ in page.seen}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    assert not {name for _, attributes in page.seen for name in attributes} & {
        "src",
        "href",
        "style",
        "onload",
    }
    assert "http" not in html
    assert "url(" not in html
    assert "@import" not in html


def test_a_page_can_be_read_by_a_screen_reader(html: str) -> None:
    assert html.startswith("<!doctype html>")
    page = Page(html)
    attributes = dict(page.seen)
    assert attributes["html"]["lang"] == "en"
    assert attributes["meta"]
    assert all(given.get("scope") == "col" for tag, given in page.seen if tag == "th")
    assert {"main", "title", "h1", "thead", "tbody"} <= {tag for tag, _ in page.seen}


def test_text_of_a_model_or_a_task_is_never_markup(lessons: Lessons, frames: dict[str, pd.DataFrame]) -> None:
    attack = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    task = lessons[0][0]
    schema = {"type": "function", "function": {"name": attack, "description": attack, "parameters": {}}}
    odd = replace(task, id=attack, messages=[{"role": "user", "content": attack}], tools=[schema])
    frame = frames["after"][frames["after"].task == task.id].assign(
        task=attack, call=attack, real=attack, rehearsed=f"{attack} & more"
    )
    html = side_by_side([odd], {attack: frame}, title=attack, intro=attack)
    page = Page(html)
    assert not {"script", "img"} & {tag for tag, _ in page.seen}
    assert page.texts["h1"] == page.texts["title"] == page.texts["h2"] == [attack]
    assert attack in page.rows[1][2][1]


def test_a_page_is_written_as_utf8(tmp_path: Path) -> None:
    path = write_page(tmp_path / "new" / "page.html", "≠ é")
    assert path.read_bytes() == "≠ é".encode()


# Figures ---------------------------------------------------------------------------------------------------

NAMES = ("real_success", "fidelity", "bearing", "error_recall")
MEASURED = {
    when: dict(zip(NAMES, cells, strict=True))
    for when, cells in {
        "before": [[0.31, 0.25, 0.37], [0.42, 0.4, 0.44], [0.0, 0.0, 0.0], [0.93, 0.9, 0.96]],
        "scalar": [[0.32, 0.3, 0.38], [0.43, 0.4, 0.44], [0.2, 0.1, 0.3], [0.94, 0.9, 0.96]],
        "after": [[0.78, 0.7, 0.85], [0.95, 0.94, 0.97], [1.0, 1.0, 1.0], [0.08, 0.05, 0.1]],
    }.items()
}
OBSERVED = [
    {"step": step, **dict.fromkeys(NAMES, 0.2 + step / 100), "wrong_writes": 0.1} for step in (0, 10, 20)
]


@pytest.fixture
def figures() -> Iterator[None]:
    """Every figure is closed after the test."""
    yield
    plt.close("all")


def labels(figure: Figure) -> list[str]:
    """The texts within the first panel: the labels of its bars."""
    return [text.get_text() for text in figure.axes[0].texts]


@pytest.mark.usefixtures("figures")
def test_bars_carry_their_numbers() -> None:
    figure = plots.gap(MEASURED, OBSERVED, "A title")
    assert labels(figure) == "0.31 0.42 0.00 0.93 0.32 0.43 0.20 0.94 0.78 0.95 1.00 0.08".split()
    left, right = figure.axes
    heights = [bar.get_height() for bar in left.patches]
    assert heights == [cell[0] for table in MEASURED.values() for cell in table.values()]
    assert [tick.get_text() for tick in left.get_xticklabels()] == [plots.LABELS[name] for name in NAMES]
    assert [text.get_text() for text in left.get_legend().get_texts()] == [
        "base",
        "base, one scalar",
        "after world rehearsal",
    ]
    assert figure.get_suptitle() == "A title"
    assert [line.get_label() for line in right.lines] == [plots.LABELS[name] for name in NAMES]
    for line in right.lines:
        assert list(line.get_xdata()) == [0, 10, 20]
        assert list(line.get_ydata()) == pytest.approx([0.2, 0.3, 0.4])


@pytest.mark.usefixtures("figures")
def test_intervals_are_drawn_where_they_are() -> None:
    figure = plots.gap(MEASURED, OBSERVED, "A title")
    figure.draw_without_rendering()
    ends = [
        tuple(round(float(y), 4) for y in segment[:, 1])
        for bars in figure.axes[0].containers
        if hasattr(bars, "has_yerr")
        for segment in bars.lines[2][0].get_segments()
    ]
    assert ends == [(low, high) for table in MEASURED.values() for _, low, high in table.values()]


@pytest.mark.usefixtures("figures")
def test_what_could_not_be_counted_is_not_drawn_as_zero() -> None:
    unknown = {**MEASURED["before"], "error_recall": [None, None, None]}
    figure = plots.gap({**MEASURED, "before": unknown}, OBSERVED, "A title")
    figure.draw_without_rendering()
    assert labels(figure)[3] not in ("0.00", "0")


@pytest.mark.usefixtures("figures")
def test_lines_and_bars_differ_by_more_than_colour() -> None:
    gap = plots.gap(MEASURED, OBSERVED, "A title")
    hatches = {bar.get_hatch() for bar in gap.axes[0].patches}
    assert len(hatches) == 3
    arms = plots.arms([run(title, 0, 0.5) for title in "abcdef"])
    for lines in (gap.axes[1].lines, *(axes.lines for axes in arms.axes)):
        assert len({line.get_marker() for line in lines}) == len(lines)
        assert len({to_hex(line.get_color()) for line in lines}) == len(lines)


def run(title: str, seed: int, value: float, steps: tuple[int, ...] = (0, 10, 20)) -> dict[str, Any]:
    """A record of a run, as far as the curves need it."""
    return {
        "title": title,
        "seed": seed,
        "observed": [{**OBSERVED[0], "step": s, "fidelity": value} for s in steps],
    }


@pytest.mark.usefixtures("figures")
def test_curves_are_means_with_bands() -> None:
    records = [run("one way", seed, value) for seed, value in enumerate((0.5, 0.6, 0.7))]
    figure = plots.arms([*records, run("another way", 0, 0.9)])
    real, fidelity, bearing = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["real success", "fidelity", plots.LABELS["bearing"]]
    assert [line.get_label() for line in fidelity.lines] == ["one way", "another way"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one way", "another way"]
    one, another = fidelity.lines
    assert list(one.get_xdata()) == [0, 10, 20]
    assert list(one.get_ydata()) == pytest.approx([0.6] * 3)
    assert list(another.get_ydata()) == pytest.approx([0.9] * 3)
    band = fidelity.collections[0].get_paths()[0].vertices[:, 1]
    assert (round(band.min(), 3), round(band.max(), 3)) == (0.352, 0.848)
    assert real.get_ylim() == bearing.get_ylim() == (0, 1.02)
    figure.draw_without_rendering()


@pytest.mark.usefixtures("figures")
def test_curves_of_one_metric_alone() -> None:
    figure = plots.arms([run("one way", 0, 0.5)], metrics=["fidelity"])
    assert [axes.get_title() for axes in figure.axes] == ["fidelity"]


@pytest.mark.usefixtures("figures")
@pytest.mark.parametrize("order", [1, -1])
def test_curves_of_runs_of_unequal_length(order: int) -> None:
    """A shorter run of one's own among the records does not keep the others from being drawn."""
    records = [run("one way", 0, 0.5), run("one way", 1, 0.7, steps=(0, 10))][::order]
    line = plots.arms(records).axes[1].lines[0]
    assert list(line.get_xdata())[:2] == [0, 10]
    assert list(line.get_ydata())[:2] == pytest.approx([0.6, 0.6])


def test_a_figure_holds_its_description(tmp_path: Path) -> None:
    figure = plots.gap(MEASURED, OBSERVED, "A title")
    path = plots.save(figure, tmp_path / "new" / "gap.png", "Metrics before and after: ≠")
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert image.text["Description"] == "Metrics before and after: ≠"  # type: ignore[attr-defined]
        assert image.width > 800
        assert len(set(image.convert("L").tobytes())) > 20
    assert plt.get_fignums() == []


def test_labels_are_there_for_every_headline() -> None:
    assert set(plots.LABELS) >= {*NAMES, "wrong_writes"}
    assert set(plots.LABELS) <= set(MEASURES)
    assert len(set(plots.COLOURS)) == len(plots.COLOURS) == len(plots.MARKERS) == len(set(plots.MARKERS))


def test_a_figure_in_a_notebook_is_a_picture_with_alt_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also under a backend that shows nothing; and no figure is left open."""
    shown: list[Any] = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    figure = plt.figure()
    plots.show(figure, "a line that rises")
    data, metadata = shown[0]._repr_mimebundle_()
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
    assert metadata["image/png"]["alt"] == "a line that rises"
    assert not plt.fignum_exists(figure.number)


# The demo --------------------------------------------------------------------------------------------------


def test_the_demo(
    apt: Policy,
    lessons: Lessons,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On a few tasks with a tiny base: what it prints, draws and records is what happened."""
    tasks = [task for task, _ in lessons if task.domain == "bank"]
    copied(apt).save(tmp_path / "base")
    monkeypatch.setattr(paths, "BASE", tmp_path / "base")
    monkeypatch.setattr(paths, "WORK", tmp_path / "work")
    monkeypatch.setattr(demo, "shipped_tasks", lambda *_: tasks)
    small = TrainConfig(
        steps=9, prompts=2, group_size=4, lora_rank=4, lr=1e-2, temperature=1.4, observe_every=1
    )
    monkeypatch.setattr(demo, "DEMO_CONFIG", small)
    page = demo.run_demo("bank", steps=2, seed=5, figures=tmp_path / "figures")

    before = measure(load_policy(tmp_path / "base"), tasks)
    record = json.loads((tmp_path / "work" / "demo" / "demo-bank-5.json").read_text(encoding="utf-8"))
    assert record["command"] == "envace demo --domain bank --steps 2 --seed 5 --record"
    assert (record["config"]["steps"], record["config"]["seed"]) == (2, 5)
    assert record["totals"]["environment_calls"] == 0
    assert [row["step"] for row in record["observed"]] == [0, 1, 2]
    printed = capsys.readouterr().out
    lines = {line.split()[0]: line.split() for line in printed.splitlines() if line.strip()}
    for metric in demo.SHOWN:
        first, scalar, last = (record[when][metric][0] for when in ("before", "scalar", "after"))
        assert first == pytest.approx(value(before, metric), abs=1e-4)
        assert [float(word) for word in lines[metric][1:4]] == pytest.approx([first, scalar, last], abs=1e-3)
    assert lines["environment"][:3] == ["environment", "calls", "0"]
    assert page == tmp_path / "figures" / "rehearsed_next_to_real.html"
    shown = Page(page.read_text(encoding="utf-8"))
    assert shown.texts["h2"] == [task.id for task in tasks]
    assert [text for _, text in shown.rows[0]] == ["call", "real response", "base rehearsed", "after 2 steps"]
    with Image.open(tmp_path / "figures" / "gap.png") as image:
        assert image.text["Description"]  # type: ignore[attr-defined]
    assert "gap.png" in printed
    assert page.name in printed
    assert plt.get_fignums() == []
    assert pages.write_page is write_page


def test_the_worst_come_first() -> None:
    """An error told as a success, then another wrong verdict, then wrong words; the surer mistake first."""
    rows = {
        "same": (False, False, False, True, 0, 0.9),
        "words": (False, False, True, False, 2, 0.9),
        "gloomy": (False, True, False, False, 1, 0.9),
        "cheerful": (True, False, True, False, 1, 0.4),
        "cheerful and sure": (True, False, True, False, 1, 0.8),
    }
    names = ["real_error", "rehearsed_error", "rehearsed_success", "exact", "wrong_initial", "confidence"]
    frame = pd.DataFrame(list(rows.values()), columns=names)
    frame["task"], frame["depth"], frame["mutation"] = list(rows), 1, "value"
    frame["call"], frame["real"], frame["rehearsed"] = "a <b>", "o1:paid ok", "o1:sent ok"
    shown = Page(worst_first(frame, title="worst"))
    order = [row[0][1] for row in shown.rows[1:]]
    assert [text.removesuffix("depth 1, value") for text in order] == [
        "cheerful and sure",
        "cheerful",
        "gloomy",
        "words",
        "same",
    ]
    assert "a &lt;b&gt;" in worst_first(frame, title="worst")
    assert "1 of 5 rehearsed responses equal the real one" in worst_first(frame, title="worst")
    assert len(Page(worst_first(frame, title="worst", limit=2)).rows) == 3
