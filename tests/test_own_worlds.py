"""Three domains of plain functions, from the cell to trained and probed: each with a base that is made for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from envace_lite.evaluate import evaluate
from envace_lite.fidelity import probe
from envace_lite.pretraining.imitate import Phase
from envace_lite.pretraining.own import make_base
from envace_lite.train import TrainConfig, train
from envace_lite.world import register
from worlds import WORLDS

pytestmark = [pytest.mark.long, pytest.mark.any_tokens]

PHASES = (Phase("true", 300, 2.5e-3, 2400, 16), Phase("usual", 60, 6e-4, 700, 24))
FLOORS = {"library": 0.5, "kitchen": 0.7, "addresses": 0.35}
CONFIG = TrainConfig(steps=12, prompts=6, group_size=8, lr=2e-3)


@pytest.mark.parametrize("name", WORLDS)
def test_a_world_is_learned_as_far_as_it_was_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envace_lite.world._OTHERS", {})
    domain = WORLDS[name]()
    register(domain)
    base, _ = make_base(domain, tmp_path / "base", phases=PHASES, workers=1)
    learners, tasks = domain.draw(200, seed=50), domain.draw(40, seed=51)
    trained, log = train(base, learners, CONFIG)
    tables = [probe(policy, tasks) for policy in (base, trained)]
    before, after = (float(table.exact.mean()) for table in tables)
    # Measured: library .71 to .73, kitchen .91 to .99, addresses .54 to .54. Free text is spelled in many tokens, and
    # five minutes of reading are too few for it; what training must not do is to lose what the base knew.
    assert before > FLOORS[name]
    assert after > before - 0.1
    assert log.totals["environment_calls"] == 0
    assert evaluate(trained, tasks).value("real_success") > 0.8
    blind = [replace(t, messages=[{**t.messages[0], "content": name}, *t.messages[1:]]) for t in tasks]
    assert probe(trained, blind).exact.mean() <= after  # a negative control: the state is hidden
