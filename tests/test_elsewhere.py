"""What stands for machines that nobody here has: disturbed logits, other settings, and what is run under which."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.nn.modules import module as hooks

from envace_lite.model.decoding import sample
from envace_lite.model.policy import Policy

FOLDER = Path(__file__).parent / "elsewhere"


def load(name: str) -> ModuleType:
    """A file of `elsewhere`, under a name that Python does not import by itself."""
    spec = importlib.util.spec_from_file_location(f"elsewhere_{name}", FOLDER / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    finders = list(sys.meta_path)
    spec.loader.exec_module(module)
    sys.meta_path[:] = finders  # the tests themselves are not to be disturbed
    return module


elsewhere, settings = load("sitecustomize"), load("settings")


@pytest.fixture
def undisturbed() -> Iterator[None]:
    """Takes the hooks away again that a test has registered."""
    before = dict(hooks._global_forward_hooks)
    yield
    hooks._global_forward_hooks.clear()
    hooks._global_forward_hooks.update(before)


def logits(policy: Policy) -> torch.Tensor:
    with torch.no_grad():
        return policy.model(torch.arange(12)[None]).logits


@pytest.mark.usefixtures("undisturbed")
def test_the_disturbance_is_noise_on_the_logits_of_the_stated_size(tiny: Policy) -> None:
    plain = logits(tiny)
    elsewhere.disturb(1e-5, 3)
    first, second = logits(tiny) - plain, logits(tiny) - plain
    for noise in (first, second):
        assert noise.std().item() == pytest.approx(1e-5, rel=0.05)
        assert abs(noise.mean().item()) < 1e-6
    assert not torch.equal(first, second)


@pytest.mark.usefixtures("undisturbed")
def test_the_same_seed_disturbs_alike_and_another_one_otherwise(tiny: Policy) -> None:
    found = []
    for seed in (3, 3, 4):
        hooks._global_forward_hooks.clear()
        elsewhere.disturb(1e-5, seed)
        found.append(logits(tiny))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def watched(path: Path) -> Callable[..., Any]:
    watch: Callable[..., Any] = elsewhere.Margins(str(path)).around(sample)
    return watch


def test_the_lead_of_a_greedy_token_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "margins.json"
    watch = watched(path)
    rows = torch.tensor([[0.5, 0.2, 0.1], [0.4, 0.39, 0.2]]).log()
    tokens, _ = watch(rows, 0.0, None)
    assert tokens.tolist() == [0, 0]
    noted = json.loads(path.read_text(encoding="utf-8"))["greedy"]
    assert noted == {"0": pytest.approx(torch.tensor(0.4 / 0.39).log().item(), abs=1e-5)}
    watch(rows[:1], 0.0, None)  # a clearer choice does not hide the narrow one
    assert json.loads(path.read_text(encoding="utf-8"))["greedy"] == noted


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_distance_of_a_draw_from_another_token_is_noted(tmp_path: Path, temperature: float) -> None:
    """By hand: the borders of three tokens, and the very number that was drawn."""
    path = tmp_path / "margins.json"
    generator = torch.Generator().manual_seed(5)
    point = torch.rand(1, 1, generator=torch.Generator().manual_seed(5)).item()
    rows = torch.tensor([[0.2, 0.3, 0.5]]).log()
    shares = (rows / temperature).softmax(-1).squeeze(0)
    borders = [shares[0].item(), shares[:2].sum().item()]
    tokens, _ = watched(path)(rows, temperature, generator)
    assert tokens.item() == sum(point > border for border in borders)
    [distance] = json.loads(path.read_text(encoding="utf-8"))["drawn"].values()
    assert distance == pytest.approx(min(abs(point - border) for border in borders), abs=1e-6)
    # Watching takes no random number away.
    assert torch.rand(1, generator=generator).item() != point


def test_a_process_is_reached_by_its_environment() -> None:
    """The same program, as it is, disturbed, and disturbed with another seed: three different sums of logits."""
    program = (
        "import torch, envace_lite as lite; p = lite.load_policy(lite.paths.BASE); torch.set_num_threads(1)\n"
        "print(float(p.model(torch.arange(40)[None]).logits.double().sum()), torch.get_num_threads())"
    )
    said = []
    for more in ({}, {}, settings.DISTURBED, {**settings.DISTURBED, "ENVACE_THREADS": "2"}):
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=settings.ROOT,
            env=settings.environment(more),
            capture_output=True,
            check=True,
            encoding="utf-8",
        )
        said.append(done.stdout.split())
    assert said[0] == said[1]
    assert said[2][0] != said[0][0]
    assert abs(float(said[2][0]) - float(said[0][0])) < 0.1
    assert [threads for _, threads in said] == ["1", "1", "1", "2"]


def test_settings_that_compute_alike_are_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    prints = {"a": "1", "b": "2", "c": "1", "d": "2", "e": "3", "lacking": None}
    monkeypatch.setattr(settings, "fingerprint", lambda values: prints[values["name"]])
    assert settings.alike({name: {"name": name} for name in prints}) == {"a": ["c"], "b": ["d"], "e": []}


def test_what_is_run_under_which_setting() -> None:
    found = settings.jobs(settings.SETTINGS)
    of = {
        name: [job.what.stem if job.what else "tests" for job in found if job.setting == name]
        for name in settings.SETTINGS
    }
    every = {path.stem for path in settings.notebooks()}
    drawing = every - {"01_tool_domains", "02_one_rollout_two_roles", *settings.LONGEST}
    assert every | {path.stem for path in settings.solutions()} == {*of["as it is"]}
    assert {*of["logits disturbed by 1e-5"]} == every | {"tests"}
    others = [name for name, values in settings.SETTINGS.items() if values and values != settings.DISTURBED]
    assert len(others) >= 8
    assert all({*of[name]} == drawing | {"tests"} for name in others)


def test_the_full_product_holds_every_combination() -> None:
    product = settings.every_combination()
    assert len(product) == 4 * 3 * 2 * 2
    assert product["as it is"] == {}
    last = product["ATEN_CPU_CAPABILITY=avx512, MKL_CBWR=COMPATIBLE, two threads, logits disturbed by 1e-5"]
    assert last.keys() == {"ATEN_CPU_CAPABILITY", "MKL_CBWR", "ENVACE_THREADS", "ENVACE_DISTURB"}


def test_a_failing_notebook_fails_its_setting(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(settings, "fingerprint", str)
    monkeypatch.setattr(settings, "check", lambda job, values, more=(): "cell 3" * (job.what is None))
    done = settings.run({"as it is": {}, "other": {"ATEN_CPU_CAPABILITY": "default"}})
    assert [entry["failed"] for entry in done.values()] == [0, 1]
    assert done["as it is"]["passed"] > done["other"]["passed"] > 4
    assert "tests that sample, other: fails" in capsys.readouterr().out
