"""The notebooks of the course: their form, what they define, and that they run, again and filled in."""

from __future__ import annotations

import ast
import importlib
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest
import torch
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell

import course
import lint_notebooks as linter
from envace_lite import grpo, paths
from envace_lite.course import timing
from envace_lite.model.language import REHEARSE
from envace_lite.model.policy import Policy, with_lora
from envace_lite.rehearsal.episode import Episode
from envace_lite.rehearsal.private import PrivateRehearsal
from envace_lite.reward import task_success
from envace_lite.rollout import rollout
from envace_lite.train import TrainConfig, update
from helpers import find_task, splits, weights

every_notebook = pytest.mark.parametrize("path", course.COURSE, ids=lambda path: path.stem)
NO_EXERCISES = {"00_start_here"}


# The form of a chapter -------------------------------------------------------------------------------------


def form_problems(path: Path, notebook: course.Notebook) -> list[str]:
    """What a chapter lacks."""
    texts = ["".join(cell["source"]) for cell in notebook["cells"]]
    kinds = [cell["cell_type"] for cell in notebook["cells"]]
    words = [text for text, kind in zip(texts, kinds, strict=True) if kind == "markdown"]
    code = [text for text, kind in zip(texts, kinds, strict=True) if kind == "code"]
    wanted = {
        "a title": texts[0].startswith("# "),
        "one claim": texts[0].count("**Claim.**") == 1,
        "its minutes": re.search(r"(minutes?|seconds) on two CPU cores", texts[0]),
        "objectives": 3 <= texts[0].count("\n- ") <= 5,
        "an installing first cell": "import envace_lite" in code[0] and "%pip install" in code[0],
        "a prediction": any(re.match(r"prediction = None\b", text) for text in code),
        "a reveal": any("reveal(prediction" in text for text in code),
        "a negative control": any("negative control" in text.lower() for text in words),
        "its limits at the end": any(
            text.startswith("## What this shows, and what it does not") for text in words[-2:]
        ),
        "no widget that an export loses": not any(
            re.search(r"\b(interact|Output|clear_output)\(", t) for t in code
        ),
    }
    if path.stem not in NO_EXERCISES:
        numbers = re.findall(r"\*\*Exercise (\d)\*\* \(\d+ minutes\)", "\n".join(words))
        wanted["two to four exercises in order"] = numbers in (list("12"), list("123"), list("1234"))
        wanted["a hint for each"] = "\n".join(words).count("<summary>Hint</summary>") == len(numbers)
    return [name for name, there in wanted.items() if not there]


@every_notebook
def test_a_chapter_has_its_form(path: Path) -> None:
    assert form_problems(path, linter.read(path)) == []


def test_the_form_can_be_missed() -> None:
    path = course.named("02")
    empty = {"cells": [{"cell_type": "code", "metadata": {}, "source": "x = Output()"}]}
    assert len(form_problems(path, empty)) == 11


def missing_symbols(text: str) -> list[str]:
    """Names of the library that a piece of code uses and that do not exist."""
    missing, aliases = [], dict[str, ModuleType]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("envace_lite"):
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                if not hasattr(module, alias.name):
                    try:
                        importlib.import_module(f"{node.module}.{alias.name}")
                    except ModuleNotFoundError:
                        missing.append(f"{node.module}.{alias.name}")
                        continue
                value = getattr(module, alias.name)
                if isinstance(value, ModuleType):
                    aliases[alias.asname or alias.name] = value
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("envace_lite"):
                    aliases[alias.asname or alias.name] = importlib.import_module(alias.name)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = aliases.get(node.value.id)
            if module and not hasattr(module, node.attr):
                missing.append(f"{node.value.id}.{node.attr}")
    return sorted(missing)


@every_notebook
def test_every_symbol_of_the_library_exists(path: Path) -> None:
    assert missing_symbols("\n".join(course.code_cells(path))) == []


def test_a_missing_symbol_is_found() -> None:
    text = "from envace_lite import fidelity, gone\nimport envace_lite as lite\nfidelity.lost(lite.paths, lite.away)"
    assert missing_symbols(text) == ["envace_lite.gone", "fidelity.lost", "lite.away"]


# What is taught inline is what the library does --------------------------------------------------------------


def test_the_loop_of_02_is_the_librarys(apt: Policy, lessons: Any) -> None:
    act, rehearse = course.definitions(course.named("02"), "act", "rehearse")
    [one_rollout] = course.definitions(course.named("02"), "one_rollout", act=act, rehearse=rehearse)
    tasks = [task for task, _ in lessons] + splits("orders")["test"][:6] + splits("home")["test"][:6]
    compared = 0
    for episode in rollout(apt, tasks, temperature=0):
        if episode.stop_reason == "answer":
            assert one_rollout(apt, episode.task) == episode.messages()
            compared += len(episode.exchanges)
    assert compared >= 8


def test_the_advantages_of_03_are_the_librarys() -> None:
    [advantages] = course.definitions(course.named("03"), "advantages")
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        rewards = torch.randint(0, 2, (3, 4), generator=generator).float()
        outputs = torch.randint(0, 4, (3, 4), generator=generator).float()
        torch.testing.assert_close(advantages(rewards, outputs), grpo.role_advantages(rewards, outputs))


def test_the_loss_of_03_is_the_librarys() -> None:
    [clipped] = course.definitions(course.named("03"), "clipped")
    generator = torch.Generator().manual_seed(0)
    log_p, old, advantages = (torch.randn(100, generator=generator) for _ in range(3))
    torch.testing.assert_close(clipped(log_p, old, advantages), grpo.clipped_loss(log_p, old, advantages))


def test_the_joint_update_of_03_is_the_librarys(apt: Policy) -> None:
    advantages, clipped = course.definitions(course.named("03"), "advantages", "clipped")
    [joint_update] = course.definitions(
        course.named("03"), "joint_update", advantages=advantages, clipped=clipped
    )
    task = find_task("orders", "turns:2", "calls:3", "error")
    for seed in range(30):  # until successes and failures differ in their number of messages
        generator = torch.Generator().manual_seed(seed)
        group = rollout(apt, [task], group_size=8, generator=generator)
        rewards = torch.tensor([task_success(t) for t in group])
        if 0 < rewards.sum() < 8 and len({t.outputs[REHEARSE] for t in group}) > 1:
            break
    else:
        pytest.fail("no such group")
    results = []
    for own in (True, False):
        policy = with_lora(apt, rank=4, seed=0)
        parameters = [p for p in policy.model.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        if own:
            joint_update(policy, group, rewards, optimizer)
        else:
            config = TrainConfig(steps=1, prompts=1, lr=0.1, warmup=1, max_grad_norm=1e9)
            update(policy, group, rewards[None], config, optimizer)
        results.append(weights(policy))
    start = weights(with_lora(apt, rank=4, seed=0))
    moved = max((results[0][name] - start[name]).abs().max().item() for name in start)
    assert moved > 1e-4
    for name, value in results[0].items():
        torch.testing.assert_close(value, results[1][name], rtol=1e-3, atol=1e-6)


def test_the_rehearsal_of_07_is_the_librarys(apt: Policy, lessons: Any) -> None:
    [decide] = course.definitions(course.named("07"), "decide")
    compared = 0
    for task in [task for task, _ in lessons]:
        for seed in range(3):
            situation = Episode(task).situation()
            mine = decide(apt, situation, 4, torch.Generator().manual_seed(seed))
            way = PrivateRehearsal(apt, 4, scorer="carried_out")
            [choice] = way.deliberate([Episode(task)], torch.Generator().manual_seed(seed))
            assert mine.ids == choice.drawn[choice.chosen].ids
            compared += choice.chosen > 0
    assert compared > 0, "always the first: nothing was chosen"


# Running them ------------------------------------------------------------------------------------------------

BEFORE = """
import socket, sys
from dataclasses import replace

def refuse(self, address):
    raise AssertionError(f"a notebook reached for the network: {address}")

socket.socket.connect = socket.socket.connect_ex = refuse
import envace_lite
at_length = envace_lite.train
def train(policy, tasks, config, **options):
    short = replace(config, steps=2, prompts=2, observe_every=min(config.observe_every, 2))
    return at_length(policy, tasks, short, **options)
envace_lite.train = train
"""
"""Runs before a notebook: blocks the network, and makes training short; its results are the business of nbval."""


def filled(path: Path) -> Any:
    """A notebook twice in a row: as it is, then with its predictions and exercises filled in."""
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    places = [place for place, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    solutions = {place: solution for place, _, solution in course.exercises(path)}
    again = []
    for place, cell in zip(places, cells, strict=True):
        text = re.sub(r"^prediction = None\b", "prediction = 0.5", cell.source, flags=re.M)
        again.append(new_code_cell(solutions.get(place, text)))
    notebook.cells = [new_code_cell(BEFORE), *cells, *again]
    return notebook, len(cells)


def test_each_notebook_takes_less_than_three_minutes() -> None:
    """By the recorded times on two cores; `python -m envace_lite.course minutes` records them."""
    record = json.loads((paths.RUNS / "notebooks.json").read_text(encoding="utf-8"))
    assert list(record["seconds"]) == [path.stem for path in course.COURSE]
    assert max(record["seconds"].values()) < timing.LIMIT
    assert sum(record["seconds"].values()) < 15 * 60
    assert record["cores"] == 2


def test_times_are_measured_and_a_failing_notebook_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(paths, "RUNS", tmp_path / "runs")
    notebook = nbformat.v4.new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    )
    output = nbformat.v4.new_output("stream", name="stdout", text="2\n")
    notebook.cells = [new_code_cell("print(1 + 1)", execution_count=1, outputs=[output])]
    right, wrong = tmp_path / "right.ipynb", tmp_path / "wrong.ipynb"
    nbformat.write(notebook, right)
    notebook.cells[0].source = "print(1 + 2)"
    nbformat.write(notebook, wrong)
    record = timing.measure([right], command="python -m envace_lite.course minutes")
    assert 0 < record["seconds"]["right"] < 60
    assert "| `right` |" in timing.minutes_table([record])
    with pytest.raises(timing.NotebookError, match=r"wrong\.ipynb fails its check"):
        timing.measure([right, wrong], command="python -m envace_lite.course minutes")


TRAINS = {
    "00_start_here",
    "04_train_it",
    "05_rehearsed_next_to_real",
    "06_the_simpler_world",
    "08_your_own_domain",
}


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, id=p.stem, marks=[pytest.mark.long] * (p.stem in TRAINS)) for p in course.COURSE],
)
def test_a_notebook_runs_twice_without_a_network_and_its_solutions_are_right(path: Path) -> None:
    notebook, count = filled(path)
    NotebookClient(
        notebook, timeout=2000, kernel_name="python3", resources={"metadata": {"path": path.parent}}
    ).execute()
    first, second = notebook.cells[1 : count + 1], notebook.cells[count + 1 :]

    def said(cells: list[Any]) -> str:
        return "".join(out.get("text", "") for cell in cells for out in cell.outputs)

    predictions = sum("reveal(" in cell.source for cell in first)
    assert said(first).count("No prediction yet.") == predictions > 0
    assert said(second).count("you said 0.5; it is") == predictions
    checks = [place for place, cell in enumerate(first) if re.search(r"^check\(", cell.source, re.M)]
    assert len(checks) == len(course.exercises(path))
    for place, (_, expected, _) in zip(checks, course.exercises(path), strict=True):
        assert re.match(r"Not (answered )?yet", said([first[place]]))
        assert said([second[place]]) == expected + "\n"
