"""What a sceptic asks: what the base knew, and what the label tells."""

from __future__ import annotations

import json

import pytest
import torch

from envace_lite import paths
from envace_lite.experiments.audit import (
    CHANGES,
    audit,
    audit_table,
    changed,
    real_episode,
    true_response_probability,
    what_the_label_notices,
)
from envace_lite.fidelity import probe_pairs
from envace_lite.model.policy import Policy
from envace_lite.reward import task_success
from envace_lite.world import DOMAINS, load_tasks
from envace_lite.world.tools import ToolResponse
from helpers import CHAT, find_task, splits

TASKS = [task for name in DOMAINS for task in load_tasks(paths.task_file(name, "test"))]


def test_the_label_notices_the_verdict_of_a_write_and_nothing_else() -> None:
    """Counted anew on all test tasks; the record says the same."""
    found = what_the_label_notices(TASKS)
    for name in CHANGES[:2]:
        assert found[name]["reward stays 1"] == found[name]["tried"] > 400
    assert found["verdict turned round"]["reward stays 1"] == 0
    assert found["verdict turned round"]["tried"] > 1000
    record = json.loads((paths.SHIPPED_RUNS / "audit.json").read_text(encoding="utf-8"))
    assert record["label"] == found


def test_the_labels_cost_a_call_of_the_environment_for_each_planned_call() -> None:
    record = json.loads((paths.SHIPPED_RUNS / "audit.json").read_text(encoding="utf-8"))
    tasks = [task for name in DOMAINS for task in load_tasks(paths.task_file(name, "train"))]
    assert record["label_calls"] == {
        "training tasks": len(tasks),
        "calls": sum(len(turn) for task in tasks for turn in task.plan),
    }


def test_untrue_responses() -> None:
    refused = ToolResponse({"o1": "sent"}, "status", {})
    assert dict(changed(refused, write=True)) == {
        "another rule": ToolResponse({"o1": "sent"}, "unknown", {}),
        "other words seen": ToolResponse({"o1": "wrong"}, "status", {}),
        "verdict turned round": ToolResponse({"o1": "sent"}, None, {"something": "else"}),
    }
    assert [name for name, _ in changed(ToolResponse({}, None, {}), write=False)] == []


def test_a_real_episode_succeeds() -> None:
    task = find_task("orders", "turns:2", "calls:3", "error")
    made = real_episode(task)
    assert task_success(made) == 1.0
    assert len(made.exchanges) == 3


@pytest.mark.any_tokens
def test_the_probability_of_a_true_response_is_that_of_all_its_words(tiny: Policy) -> None:
    tasks = splits("orders")["test"][:6]
    told = true_response_probability(tiny, tasks)
    values: dict[bool, list[float]] = {True: [], False: []}
    for pair in probe_pairs(tasks):
        prompt = CHAT.render(pair.messages, pair.task.tools, prompt=pair.call.name)
        ids = [*prompt, *CHAT.encode(pair.real.text), CHAT.end]
        with torch.no_grad():
            log_p = tiny.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        total = sum(log_p[i - 1, ids[i]].item() for i in range(len(prompt), len(ids)))
        values[pair.real.error is not None].append(torch.tensor(total).exp().item())
    for name, error in (("error", True), ("success", False)):
        assert told[name]["pairs"] == len(values[error])
        assert told[name]["value"] == pytest.approx(sum(values[error]) / len(values[error]), rel=1e-3)


def test_the_record_and_its_table(tiny: Policy, monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(paths, "RUNS", tmp_path)
    found = audit(tiny, command="by hand", limit=3)
    table = audit_table([{"kind": "audit", **found}])
    assert "| reward still 1 with verdict turned round | 0 of " in table
    assert f"for {4 * 3} training tasks |" in table
    assert audit_table([]) == ""


def test_the_texts_say_what_the_record_says() -> None:
    record = json.loads((paths.SHIPPED_RUNS / "audit.json").read_text(encoding="utf-8"))
    calls = f"{record['label_calls']['calls']:,}"
    errors, successes = (
        f"{record['true_response']['test'][name]['value']:.3f}" for name in ("error", "success")
    )
    for name, words in (
        ("README.md", calls),
        ("notebooks/00_start_here.ipynb", calls),
        ("data/base/README.md", errors),
        ("docs/results/audit.md", f"probability of {errors}, and to one that succeeds {successes}"),
    ):
        text = " ".join((paths.ROOT / name).read_text(encoding="utf-8").split())
        assert words in text, name
