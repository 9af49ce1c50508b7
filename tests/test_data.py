"""What is shipped: tasks, the base, records; and that the README says what they say."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import envace_lite
from envace_lite import paths
from envace_lite.cli import texts
from envace_lite.course import installs
from envace_lite.experiments import arms
from envace_lite.experiments.deliberate import digest
from envace_lite.experiments.demo import DEMO_CONFIG
from envace_lite.model.compact import vocabulary
from envace_lite.model.policy import Policy, load_policy
from envace_lite.pretraining.imitate import BASES
from envace_lite.rollout import Execute
from envace_lite.train import TrainConfig
from envace_lite.world import DOMAINS, Task, load_tasks
from envace_lite.world.draw import SPLITS, prompt_of
from envace_lite.world.tools import World, parse_calls
from envace_lite.world.toy import NEWS
from helpers import CHAT, EVERY_SPLIT, copied
from programs import APPS, PROGRAM_OF, parsed

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "data/README.md",
    "data/base/README.md",
    "data/rehearsed/README.md",
    "CHANGELOG.md",
    *sorted(
        str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "api"
    ),
]
RECORDS = sorted(paths.RUNS.glob("*.json"))
MEGABYTE = 2**20
MOST_LINES = 10850
Lessons = list[tuple[Task, list[dict[str, Any]]]]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.S | re.M)
    return [block for name, block in found if name == language]


# Tasks -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shipped() -> dict[tuple[str, str], list[Task]]:
    """Every line of every task file."""
    return {
        (name, split): load_tasks(paths.task_file(name, split)) for name in DOMAINS for split in EVERY_SPLIT
    }


Shipped = dict[tuple[str, str], list[Task]]


@pytest.mark.parametrize(("split", "least"), [("train", 1000), ("test", 300), ("held_out", 150)])
@pytest.mark.parametrize("domain", DOMAINS)
def test_enough_tasks_are_shipped(shipped: Shipped, domain: str, split: str, least: int) -> None:
    tasks = shipped[domain, split]
    assert len(tasks) >= least
    assert {task.domain for task in tasks} == {domain}
    assert len({task.id for task in tasks}) == len(tasks)
    lines = paths.task_file(domain, split).read_text(encoding="utf-8").splitlines()
    assert [task.to_json() for task in tasks] == lines
    for number in (len(tasks), f"{len(tasks):,}"):
        if f"{number} `{split}`" in text("data/README.md"):
            break
    else:
        pytest.fail(f"the data card gives another number of {split} tasks than {len(tasks)}")


def test_there_are_no_other_task_files(shipped: Shipped) -> None:
    expected = {paths.task_file(*key).name for key in shipped}
    assert {path.name for path in (paths.DATA / "tasks").iterdir()} == expected


@pytest.mark.parametrize("domain", DOMAINS)
def test_no_prompt_occurs_in_two_splits(shipped: Shipped, domain: str) -> None:
    prompts = [prompt_of(task) for split in EVERY_SPLIT for task in shipped[domain, split]]
    assert [prompt for prompt, count in Counter(prompts).items() if count > 1] == []


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_kinds_of_task_are_mixed_as_the_readme_says(shipped: Shipped, domain: str) -> None:
    """Two thirds are instructions, one third goals; each held-out tool says what is new about it."""
    for split in EVERY_SPLIT:
        goals = sum("goal" in task.tags for task in shipped[domain, split]) / len(shipped[domain, split])
        assert goals == pytest.approx(1 / 3, abs=0.04)
    assert set(DOMAINS[domain].news) == DOMAINS[domain].held_out
    assert set(DOMAINS[domain].news.values()) == set(NEWS)


def test_the_data_is_small() -> None:
    sizes = {path: path.stat().st_size for path in paths.DATA.rglob("*") if path.is_file()}
    assert sum(sizes.values()) < 40 * MEGABYTE
    assert max(sizes[path] for path in RECORDS) < MEGABYTE / 4


def test_the_data_card_names_every_tag(shipped: Shipped) -> None:
    card = text("data/README.md")
    tags = {tag for tasks in shipped.values() for task in tasks for tag in task.tags}
    for tag in tags:
        assert f"`{re.sub(r'calls:[0-9]+', 'calls:N', tag).removeprefix('rule:')}`" in card, tag


# The base --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base() -> Policy:
    return load_policy(paths.BASE)


def test_the_base_loads(base: Policy) -> None:
    assert base.chat.words == vocabulary()
    assert base.chat.tokenizer.chat_template == CHAT.tokenizer.chat_template
    assert not base.is_lora
    assert all(torch.isfinite(p).all() for p in base.model.parameters())
    assert sum(path.stat().st_size for path in paths.BASE.glob("*.safetensors")) < 8 * MEGABYTE


def test_the_pages_give_the_size_of_the_base(base: Policy) -> None:
    for page in ("README.md", "data/base/README.md"):
        (million,) = re.findall(r"([\d.]+) million parameters", text(page))
        assert float(million) == round(base.num_parameters() / 1e6, 1), page
    (words,) = re.findall(r"(\d+) words", text("data/base/README.md"))
    assert int(words) == len(base.chat.words)


def test_the_policy_after_rehearsal_is_the_one_of_the_study() -> None:
    """The very weights of which the records speak."""
    policy = load_policy(paths.REHEARSED)
    record = read(paths.RUNS / "deliberate-rehearsal-0.json")
    assert digest(policy) == record["config"]["weights"]
    assert digest(load_policy(paths.BASE)) != record["config"]["weights"]
    trained = read(paths.RUNS / "rehearsal-base-0.json")
    assert (trained["arm"], trained["seed"], len(trained["domains"])) == ("rehearsal", 0, len(DOMAINS))


def test_the_base_has_a_model_card_and_a_record() -> None:
    card = text("data/base/README.md")
    commands = re.findall(r"envace pretrain[^`\n]*", card)
    assert commands
    made = [record for record in map(read, RECORDS) if record.get("kind") == "pretrain"]
    made = [record for record in made if record["name"].startswith("pretrain-habits-")]
    assert made, "no record says how the base was made"
    for record in made:
        options = parsed(record["command"])
        config = replace(BASES[options["recipe"]], seed=options["seed"])
        written = json.loads(json.dumps(asdict(config)))
        assert record["config"] == written, "its command would now make another base"
        losses = [loss for phase, _, loss in record["curve"] if phase == 0]
        assert losses[-1] < 0.5 * losses[0]


# Records ---------------------------------------------------------------------------------------------------


def read(path: Path) -> dict[str, Any]:
    def refuse(word: str) -> None:
        raise AssertionError(f"{path.name}: {word} is not JSON")

    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    return record


def test_there_are_records() -> None:
    assert len(arms.load_records()) == len(RECORDS) > 0


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_record_says_how_to_make_it_again(path: Path) -> None:
    record = read(path)
    assert record["name"] == path.stem
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", record["date"])
    assert {"python", "torch", "transformers", "peft", "envace_lite"} <= record["versions"].keys()
    assert isinstance(record["seed"], int)
    if re.match(r"python \w", record["command"]):
        assert (paths.ROOT / record["command"].split()[1]).is_file()
    else:
        options = parsed(record["command"])
        assert options.get("seed", record["seed"]) == record["seed"]
    assert "config" in record or record["kind"] in (
        "bench",
        "ranks",
        "deliberate",
        "notebooks",
        "installs",
        "controls",
    )


def trainings() -> list[dict[str, Any]]:
    """The records of full runs."""
    return [record for record in map(read, RECORDS) if record.get("kind") == "train"]


def test_there_are_full_runs() -> None:
    """Three seeds at least of world rehearsal and of what it is compared with, over all domains."""
    full = [r for r in trainings() if len(r["domains"]) == len(DOMAINS)]
    seeds = {
        arm: {r["seed"] for r in full if r["arm"] == arm}
        for arm in ("rehearsal", "execute", "grounded", "end_at_error")
    }
    assert all(len(found) >= 3 for found in seeds.values()), seeds


def test_recorded_demos_are_the_demo() -> None:
    demos = [record for record in map(read, RECORDS) if record.get("kind") == "demo"]
    assert len({record["seed"] for record in demos}) >= 3
    for record in demos:
        assert record["config"] == asdict(replace(DEMO_CONFIG, seed=record["seed"])), record["name"]
        assert record["totals"]["environment_calls"] == 0
        assert record["totals"]["wall_seconds"] <= 240


def test_a_recorded_training_is_what_its_command_says() -> None:
    for record in trainings():
        name, options = record["name"], parsed(record["command"])
        way = arms.ARMS[options["arm"]]
        config = replace(TrainConfig(steps=options["steps"], seed=options["seed"]), **dict(way.changes))
        assert record["config"] == asdict(config), name
        assert (record["arm"], record["title"]) == (options["arm"], way.title), name
        domains = list(DOMAINS) if options["domain"] == "all" else options["domain"].split(",")
        assert record["domains"] == domains, name
        assert record["curve"][-1]["step"] == config.steps // 5 * 5, name
        assert record["observed"][0]["step"] == 0, name
        assert (record["totals"]["environment_calls"] > 0) == (way.responder is Execute), name
        assert 0 < record["totals"]["seconds"] <= 3600, name
        assert record["totals"]["tokens"] > config.steps * config.prompts * config.group_size, name
        for split in ("test", "held_out"):
            lengths = {len(column) for column in record["rows"][split].values()}
            assert lengths == {len(domains) * SPLITS[split]}, name


def test_seeds_of_an_arm_share_everything_else() -> None:
    """Means over seeds are means of one and the same experiment."""
    seen: dict[tuple[str, str], dict[str, Any]] = {}
    for record in trainings():
        about = {**record["config"], "seed": None}
        key = record["title"], str(record["domains"])
        assert seen.setdefault(key, about) == about, record["name"]


# The README ------------------------------------------------------------------------------------------------


TEXTS = [*(page for page in PAGES if ":START -->" in text(page)), "notebooks/TEACHING.md"]
"""The texts that hold tables."""


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.skipif(installs.RECORDING in os.environ, reason="reads the record that is being made")
def test_the_tables_of_the_texts_come_from_the_records(name: str) -> None:
    """To the last character: `envace report --write` writes them."""
    written = text(name)
    assert texts.fill(written) == written
    marks = re.findall(r"<!-- (\w+):START -->\n(.*?)\n<!-- \1:END -->", written, re.S)
    assert marks
    assert all("| --- |" in table for _, table in marks)


def test_every_table_is_shown_somewhere() -> None:
    shown = {mark for name in TEXTS for mark in re.findall(r"<!-- (\w+):START -->", text(name))}
    assert shown == set(texts.TABLES)


def test_a_changed_number_and_an_unknown_table_are_found() -> None:
    written = text("README.md")
    changed = re.sub(r"\| 0\.\d{3} \(", "| 0.123 (", written, count=1)
    assert changed != written
    assert texts.fill(changed) == written
    with pytest.raises(texts.TableError, match="'resluts'; there are: front"):
        texts.fill("<!-- resluts:START -->\n<!-- resluts:END -->")


def test_the_tables_have_intervals_and_all_that_is_compared() -> None:
    written = "".join(map(text, TEXTS))
    assert re.search(r"\| [01]\.\d{3} \([\d. -]+to [\d. -]+\) \|", written), "no interval over seeds"
    assert all(name in written for name in (*DOMAINS, "`generate`", "TRL", "baseline: oracle"))


def names_imported(source: str) -> list[tuple[str, str]]:
    """(module, name) of everything that a piece of code imports from somewhere."""
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    return [(str(node.module), alias.name) for node in imports for alias in node.names]


def test_the_python_of_the_readme_runs(
    apt: Policy, lessons: Lessons, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a tiny policy and a few tasks in place of the shipped ones."""
    (source,) = blocks(text("README.md"), "python")
    code = compile(source, "README.md", "exec")
    imported = names_imported(source)
    assert ("envace_lite.train", "train") in imported
    for module, name in imported:
        assert hasattr(importlib.import_module(module), name), name
        assert module != "envace_lite" or name in envace_lite.__all__
    small = TrainConfig(steps=2, prompts=2, group_size=4, lora_rank=4)
    monkeypatch.setattr(envace_lite, "load_policy", lambda _: copied(apt))
    monkeypatch.setattr(envace_lite, "TrainConfig", lambda **_: small)
    monkeypatch.setattr(envace_lite, "shipped_tasks", lambda *_: [task for task, _ in lessons])
    scope: dict[str, Any] = {}
    exec(code, scope)
    assert len(scope["log"].rows) == 2
    printed = capsys.readouterr().out
    assert lessons[0][0].id in printed
    assert "real_success" in printed


def test_everything_in_all_exists() -> None:
    assert [name for name in envace_lite.__all__ if not hasattr(envace_lite, name)] == []
    assert envace_lite.__all__ == sorted(envace_lite.__all__, key=lambda name: (not name.isupper(), name))


@pytest.mark.parametrize("page", PAGES)
def test_every_command_that_is_named_exists(page: str) -> None:
    for program in APPS:
        spelled = re.escape(program.removeprefix("python "))
        named = re.findall(rf"(?:^|`|&& |run |bin/|python |\\){spelled} ([a-z]\w*)", text(page), re.M)
        assert [name for name in named if PROGRAM_OF.get(name) != program] == []


def test_every_command_line_of_the_page_is_understood() -> None:
    block = "\n".join(blocks(text("docs/shell.md"), "bash"))
    lines = [line.split("#")[0].strip() for line in block.splitlines()]
    for line in filter(None, lines):
        options = parsed(line)
        assert options.get("arm", "rehearsal") in arms.ARMS
        assert options.get("domain") in {None, "all", "FILE.py:NAME", *DOMAINS}
        assert options.get("recipe", "habits") in BASES


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", text("Makefile"), re.M))
    for page in PAGES[:2]:
        assert set(re.findall(r"(?:^|`)make ([a-z]+)", text(page), re.M)) <= targets


@pytest.mark.parametrize("page", PAGES)
def test_every_link_within_the_project_leads_somewhere(page: str) -> None:
    folder = (ROOT / page).parent
    for target in re.findall(r"\]\(([^)#]+)", text(page)):
        assert target.startswith("https://") or (folder / target).exists(), target


def test_the_front_door_is_short() -> None:
    """One figure, one table of results, and what a newcomer reads in five minutes."""
    page = text("README.md")
    assert len(page.splitlines()) <= 110
    assert len(page.split()) <= 1200
    assert len(re.findall(r"!\[", page)) == 1
    (table,) = re.findall(r"<!-- front:START -->\n(.*?)\n<!-- front:END -->", page, re.S)
    assert len(table.splitlines()) - 2 <= 5


def test_the_readme_leads_to_every_file_and_package() -> None:
    rows = re.findall(r"^\| `([\w/]+?)(?:\.py|/)` \|(?: (\d+) \|)?", text("README.md"), re.M)
    folder = ROOT / "envace_lite"
    entries = {
        path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()
    }
    assert {name for name, _ in rows} == entries - {"__init__", "interrupts"}
    for name, lines in rows:
        if lines:
            assert int(lines) == len((folder / f"{name}.py").read_text(encoding="utf-8").splitlines()), name


IDEA = ["rollout", "reward", "grpo", "train", "evaluate"]
TO_READ = ["world", "model", "fidelity", "rehearsal", "pretraining"]


def lines_of(*paths: Path) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def test_the_idea_can_be_read_in_an_hour() -> None:
    folder = ROOT / "envace_lite"
    assert lines_of(*(folder / f"{name}.py" for name in IDEA)) <= 900
    packages = [path for name in TO_READ for path in (folder / name).glob("*.py")]
    assert lines_of(*folder.glob("*.py"), *packages) <= MOST_LINES


def test_the_worked_changes_run(
    apt: Policy, lessons: Lessons, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every block of the page, one after another, with a tiny policy and a few tasks."""
    tasks = [task for task, _ in lessons]
    small = TrainConfig(steps=2, prompts=2, group_size=4, lora_rank=4)
    monkeypatch.setattr(envace_lite, "load_policy", lambda _: copied(apt))
    monkeypatch.setattr(envace_lite, "TrainConfig", lambda **_: small)
    monkeypatch.setattr(envace_lite, "shipped_tasks", lambda *_: tasks)
    scope: dict[str, Any] = {}
    for block in blocks(text("docs/change.md"), "python"):
        exec(compile(block, "docs/change.md", "exec"), scope)
    printed = capsys.readouterr().out
    assert "o1:packed needs:packed ok o1:sent\no1:paid needs:packed error status" in printed
    assert len(scope["log"].rows) == 2
    assert scope["episode"].stop_reason


def test_the_page_about_your_own_tools_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("envace_lite.world._OTHERS", {})
    scope: dict[str, Any] = {}
    for block in blocks(text("docs/your_own_tools.md"), "python"):
        exec(compile(block, "docs/your_own_tools.md", "exec"), scope)
    printed = capsys.readouterr().out
    assert printed.startswith("[]\n")
    assert re.search(r"never refused.*\n.*changes nothing", printed)
    assert re.search(r"oracle +fidelity 1\.00 +error recall 1\.00", printed)


def test_the_rollout_of_the_readme_could_have_happened() -> None:
    """Each word is in the vocabulary, and each response is that of the real environment."""
    (block,) = [block for block in blocks(text("README.md"), "") if block.startswith("<system>")]
    lines = [re.split(r"\s{3,}", line)[0] for line in block.splitlines()]
    CHAT.encode(" ".join(lines))
    _, name, *facts, _ = lines[0].split()
    domain = DOMAINS[name]
    schemas = []
    for line in lines:
        if line.startswith("<def>"):
            _, tool, documentation = line.split(maxsplit=2)
            assert domain.tools[tool].documentation == documentation
            schemas.append(domain.tools[tool].schema)
    world = World(dict(fact.split(":") for fact in facts))
    calls = [
        line.split(maxsplit=1)[1].removesuffix(" <end>") for line in lines if line.startswith("<assistant>")
    ]
    responses = [
        line.split(maxsplit=2)[2].removesuffix(" <end>") for line in lines if line.startswith("<tool>")
    ]
    for written, response in zip(calls[:-1], responses, strict=True):
        (call,) = parse_calls(written, schemas)
        assert domain.tools[call.name].call(world, call.arguments).text == response
    (user,) = [line.split() for line in lines if line.startswith("<user>")]
    assert calls[-1] == f"say {world.records[user[-2]]}"
