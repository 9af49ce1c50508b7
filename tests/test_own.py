"""A small base for a domain of one's own: its words, its stories, its checkpoint."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import typer

from envace_lite.course import workshop as own_world
from envace_lite.course.workshop import draw, workshop
from envace_lite.experiments import smoke
from envace_lite.experiments.shell import own_domain
from envace_lite.fidelity import probe
from envace_lite.model import checkpoint
from envace_lite.model.hub import load_model
from envace_lite.model.language import ACT, GIVEN, REHEARSE
from envace_lite.model.template import Template
from envace_lite.pretraining import own
from envace_lite.pretraining.imitate import Phase
from envace_lite.pretraining.own import Stories, language_of, make_base, make_language, new_reader, true_story
from envace_lite.rollout import Rehearse, rollout
from envace_lite.world import Domain, paths, register
from envace_lite.world.check import check_domain

HERE = Path(__file__).resolve().parent


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envace_lite.world._OTHERS", {})
    register(workshop)


@pytest.fixture(scope="module")
def language() -> Template:
    tasks = workshop.draw(200, seed=3)
    return make_language((true_story(workshop, task).messages(task), task.tools) for task in tasks)


def test_the_notebook_writes_the_same_world() -> None:
    text = (HERE.parent / "notebooks" / "08_your_own_domain.ipynb").read_text(encoding="utf-8")
    cells = ["".join(c["source"]) for c in json.loads(text)["cells"] if c["cell_type"] == "code"]
    written = {
        node.name: ast.unparse(node)
        for cell in cells
        if "%pip" not in cell
        for node in ast.parse(cell).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    module = ast.parse(Path(own_world.__file__).read_text(encoding="utf-8"))
    for node in module.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            assert written[node.name] == ast.unparse(node)


def test_nothing_is_wrong_with_it() -> None:
    assert not list(check_domain(workshop))


# Words ------------------------------------------------------------------------------------------------------


def test_each_word_of_the_domain_is_one_token_and_any_text_comes_back(language: Template) -> None:
    tokens = [language.decode([i]) for i in language.tokenizer.encode("Rent red to Ana.")]
    assert tokens == ["Rent", " ", "red", " ", "to", " ", "Ana", "."]
    for text in ("take_back Cem", 'ein "Straße" für 7 €', "x\n\ty <|tool|"):
        assert language.decode(language.tokenizer.encode(text)) == text


def test_a_conversation_is_what_its_template_says_with_each_role_in_its_place(language: Template) -> None:
    for task in workshop.draw(20, seed=4):
        messages = true_story(workshop, task).messages(task)
        ids = language.render(messages, task.tools)
        text = str(language.tokenizer.apply_chat_template(messages, tools=task.tools, tokenize=False))
        assert language.decode(ids) == text
        roles = Counter(language.role_ids(ids))
        sampled = {
            ACT: [m for m in messages if m["role"] == "assistant"],
            REHEARSE: [m for m in messages if m["role"] == "tool"],
        }
        for role, written in sampled.items():
            texts = [
                json.dumps(m["tool_calls"][0]["function"]) if m.get("tool_calls") else m["content"]
                for m in written
            ]
            assert roles[role] == sum(len(language.tokenizer.encode(text)) + 1 for text in texts)
        assert roles[GIVEN] == len(ids) - roles[ACT] - roles[REHEARSE]


# Stories ----------------------------------------------------------------------------------------------------


class Lamp:
    """A lamp that is nearly always whole."""

    def __init__(self, whole: bool):
        self.whole = whole

    def switch(self, on: bool) -> str:
        """Switch it.

        Args:
            on: whether it is to shine
        """
        if not self.whole:
            raise RuntimeError("it is broken")
        return "it shines" if on else "it is dark"


def lamp_ask(rng: Random) -> dict[str, Any]:
    whole, on = rng.random() < 0.8, rng.random() < 0.5
    answer = "done" if whole else "not possible"
    calls = [("switch", {"on": on})]
    return {
        "state": {"whole": whole},
        "ask": f"Switch it {'on' if on else 'off'}.",
        "calls": calls,
        "answer": answer,
    }


def test_a_usual_story_tells_what_mostly_happens_whatever_the_state() -> None:
    lamp = Domain.from_tools("lamp", Lamp, tasks=lamp_ask)
    tasks = lamp.draw(60)
    stories = Stories(lamp, tasks, Random(0))
    for task in tasks:
        on = task.messages[-1]["content"] == "Switch it on."
        usual, true = stories.draw(task, 0.0), stories.draw(task, 1.0)
        assert (usual.exchanges[0][1].text, usual.answer) == ("it shines" if on else "it is dark", "done")
        assert (true.exchanges[0][1].error is None) == task.state["whole"]
        assert true.answer == task.outcomes[0].answers[0]
    broken = [task for task in tasks if not task.state["whole"]]
    told = [stories.draw(task, 0.4) == stories.draw(task, 1.0) for task in broken]
    assert 0 < sum(told) < len(told)


def test_other_calls_may_come_first_and_are_told_in_the_same_way() -> None:
    lamp = Domain.from_tools("lamp", Lamp, tasks=lamp_ask)
    stories = Stories(lamp, lamp.draw(60), Random(0))
    broken = next(task for task in lamp.draw(60) if not task.state["whole"])
    lengths = set()
    for truth, error in ((0.0, None), (1.0, "RuntimeError")):
        for _ in range(20):
            story = stories.draw(broken, truth, 3)
            lengths.add(len(story.exchanges))
            assert {result.error for _, result in story.exchanges} == {error}
    assert lengths == {1, 2, 3, 4}


# The base ---------------------------------------------------------------------------------------------------

SHORT = (Phase("true", 16, 2.5e-3, 30, 4), Phase("usual", 8, 6e-4, 20, 4))


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is read in seconds, and saved often."""
    made = own.PretrainConfig
    monkeypatch.setattr(own, "PretrainConfig", lambda *a, **k: replace(made(*a, **k), width=16, save_every=8))
    monkeypatch.setattr(own, "KNOWN", 60)


@pytest.mark.usefixtures("little")
def test_a_base_is_made_and_taken_up_again_where_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, record = make_base(workshop, tmp_path / "whole", phases=SHORT, workers=1)
    assert record["tokens"] > 0
    save, saved = checkpoint.save_state, []

    def interrupted(*args: Any, **kwargs: Any) -> None:
        save(*args, **kwargs)
        saved.append(args)
        if len(saved) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("envace_lite.pretraining.imitate.save_state", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_base(workshop, tmp_path / "cut", phases=SHORT, workers=1)
    again, same = make_base(workshop, tmp_path / "cut", phases=SHORT, workers=1)
    for one, other in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert one.equal(other)
    assert (record["tokens"], record["curve"]) == (same["tokens"], same["curve"])


def test_it_is_saved_and_loaded_with_its_language(language: Template, tmp_path: Path) -> None:
    policy = new_reader(language, width=16, layers=1)
    policy.save(tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.chat.speaks_like(language)
    assert isinstance(loaded.chat, Template)
    assert loaded.chat.format == "template"
    tasks = workshop.draw(4, seed=9)
    drawn = [rollout(p, tasks, Rehearse(), generator=seeded(), max_tokens=30) for p in (policy, loaded)]
    assert [t.ids for t in drawn[0]] == [t.ids for t in drawn[1]]


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_the_shipped_base_was_made_for_the_workshop() -> None:
    """It speaks the language that is made from the domain, and tells much, and not all, as it is."""
    record = json.loads((paths.SHIPPED_RUNS / "pretrain-workshop-0.json").read_text(encoding="utf-8"))
    assert record["command"].startswith("envace base envace_lite/course/workshop.py:workshop")
    policy = load_model(paths.DATA / "workshop")
    assert policy.chat.speaks_like(language_of(workshop, 0)[0])
    frame = probe(policy, workshop.draw(30, seed=11))
    assert 0.2 < frame[frame.planned].exact.mean() < 0.9
    assert frame.valid.mean() > 0.95


def test_the_asks_are_drawn_from_the_seed_alone() -> None:
    assert draw(Random(5)) == draw(Random(5))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("missing.py:workshop", "FILE.py:NAME"),
        ("workshop.py:nothing", "FILE.py:NAME"),
        ("workshop.py", "FILE.py:NAME"),
        ("workshop.py:Workshop", "no domain but a type"),
    ],
)
def test_a_source_that_holds_no_domain_is_refused(
    source: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(HERE.parent / "envace_lite" / "course")
    with pytest.raises(typer.BadParameter, match=re.escape(message)):
        own_domain(source)
    assert own_domain("workshop.py:workshop").name == "workshop"


@pytest.mark.any_tokens  # of a random model
def test_a_smoke_run_moves_both_roles(
    language: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a random model, and a reward that differs from rollout to rollout."""
    monkeypatch.setattr(paths, "RUNS", tmp_path)
    monkeypatch.setattr(smoke, "CONFIG", replace(smoke.CONFIG, steps=1, prompts=2, group_size=2, lr=0.1))
    monkeypatch.setattr(smoke, "reward", lambda trajectory: float(sum(trajectory.ids) % 7))
    monkeypatch.setattr(Template, "longest_message", 8)
    new_reader(language, width=16, layers=1).save(tmp_path / "model")
    record = smoke.record_smoke(tmp_path / "model", workshop, tools="auto", command="it")
    written = json.loads((tmp_path / "smoke-workshop.json").read_text(encoding="utf-8"))
    assert written["kind"] == "smoke"
    assert len(record["steps"]) == 1
    for role in ("act", "rehearse"):
        assert record["before"]["log_prob"][role] != record["after"]["log_prob"][role]
