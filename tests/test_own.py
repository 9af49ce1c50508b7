"""A small base for a domain of one's own: its words, its stories, its checkpoint."""

from __future__ import annotations

import ast
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from envace_lite.course.workshop import draw, workshop
from envace_lite.fidelity import probe
from envace_lite.model import checkpoint
from envace_lite.model.hub import load_model
from envace_lite.model.language import ACT, GIVEN, REHEARSE
from envace_lite.model.policy import Policy
from envace_lite.model.template import Template
from envace_lite.pretraining import own
from envace_lite.pretraining.imitate import Phase
from envace_lite.pretraining.own import Stories, make_base, make_language, new_reader, true_story
from envace_lite.rollout import Rehearse, rollout
from envace_lite.train import TrainConfig, train
from envace_lite.world import Domain, paths, register
from envace_lite.world.check import check_domain
from programs import APPS
from worlds import WORLDS

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envace_lite.world._OTHERS", {})
    register(workshop)


@pytest.fixture(scope="module")
def language() -> Template:
    tasks = workshop.draw(200, seed=3)
    return make_language((true_story(workshop, task).messages(task), task.tools) for task in tasks)


def test_the_notebook_writes_the_same_world() -> None:
    notebook = json.loads((ROOT / "notebooks" / "08_your_own_domain.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    written = {
        node.name: ast.unparse(node)
        for cell in cells
        if not cell.lstrip().startswith(("try:", "%"))
        for node in ast.parse(cell).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    module = ast.parse((ROOT / "envace_lite" / "course" / "workshop.py").read_text(encoding="utf-8"))
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


def shipped() -> Policy:
    return load_model(paths.DATA / "workshop")


def test_the_shipped_base_was_made_for_the_workshop() -> None:
    record = json.loads((paths.RUNS / "pretrain-workshop-0.json").read_text(encoding="utf-8"))
    assert record["command"].startswith("envace base envace_lite/course/workshop.py:workshop")
    policy = shipped()
    assert policy.chat.speaks_like(own.language_of(workshop, 0)[0])
    tasks = workshop.draw(30, seed=11)
    frame = probe(policy, tasks)
    planned = frame[frame.planned]
    assert planned.exact.mean() < 0.9  # it tells what usually happens
    assert planned.valid.mean() > 0.95


# Long: from a cell to trained and probed ------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("name", WORLDS)
def test_three_worlds_go_from_a_cell_to_trained_and_probed(name: str, tmp_path: Path) -> None:
    """World rehearsal makes the rehearse role tell more of the real responses, without an environment."""
    domain = WORLDS[name]()
    register(domain)
    phases = (Phase("true", 400, 2.5e-3, 3000, 16), Phase("usual", 120, 6e-4, 1200, 16))
    base, _ = make_base(domain, tmp_path, phases=phases)
    config = TrainConfig(steps=30, prompts=12, lr=1e-3, warmup=5)
    policy, log = train(base, domain.draw(300, seed=100), config, workers=2)
    test = domain.draw(60, seed=101)
    before, after = (probe(p, test) for p in (base, policy))
    print(f"{name}: fidelity {before.exact.mean():.2f} -> {after.exact.mean():.2f}")
    assert log.totals["environment_calls"] == 0
    assert after[after.planned].exact.mean() > before[before.planned].exact.mean()


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
    monkeypatch.chdir(ROOT / "envace_lite" / "course")
    result = CliRunner().invoke(APPS["envace"], ["base", source], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert message in result.output
