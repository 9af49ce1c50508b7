"""A smoke run: does world rehearsal go through with a released chat model and a domain of plain functions?

A few steps show that everything fits together, and nothing else: both roles write, are rewarded and move. A small chat
model that never saw the tools hardly ever succeeds, and where all rollouts of a group fare alike nothing is learned. So
three things help it, and the record says so: each conversation opens with solved tasks; it is sampled at a low
temperature; and the reward pays a little for a call that was answered, besides task success.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from envace_lite.experiments.records import write_record
from envace_lite.fidelity import probe
from envace_lite.model.hub import load_model
from envace_lite.model.language import ACT, REHEARSE, Message
from envace_lite.model.policy import Family, Policy
from envace_lite.pretraining.own import true_story
from envace_lite.reward import task_success
from envace_lite.rollout import Trajectory, rollout
from envace_lite.train import TrainConfig, train
from envace_lite.world import Domain, Task

ANSWERED = 0.2
"""The reward for a rollout without success in which a call was answered."""
CONFIG = TrainConfig(
    steps=5, prompts=4, group_size=4, lr=1e-3, warmup=1, lora_rank=8, temperature=0.5, save_every=1
)


def reward(trajectory: Trajectory) -> float:
    """Task success, or a little for a call that was answered."""
    return task_success(trajectory) or ANSWERED * bool(trajectory.exchanges)


def with_examples(domain: Domain, tasks: Sequence[Task]) -> list[Task]:
    """The tasks after solved ones, one for each tool that solves a task alone; every request repeats its state."""
    solved: dict[str, list[Message]] = {}
    for task in domain.draw(40, seed=99):
        story = true_story(domain, task)
        if len(story.exchanges) == 1:
            solved.setdefault(story.exchanges[0][0].name, [_asked(task), *story.messages(task)[2:]])
    before = [message for messages in solved.values() for message in messages]
    return [replace(t, messages=[t.messages[0], *before, _asked(t), *t.messages[2:]]) for t in tasks]


def _asked(task: Task) -> Message:
    state, request = (message["content"] for message in task.messages[:2])
    return {"role": "user", "content": f"{state}\n{request} Call a tool."}


def told(policy: Policy, domain: Domain, tasks: Sequence[Task]) -> dict[str, float]:
    """Mean log-probability of each role's tokens in true stories."""
    families, roles = [], []
    for task in tasks:
        ids = policy.chat.render(true_story(domain, task).messages(task), task.tools)
        prompt = policy.chat.render(task.messages, task.tools, prompt="act")
        families.append(Family(ids[: len(prompt)], [ids[len(prompt) :]]))
        roles += policy.chat.role_ids(ids)[len(prompt) :]
    with torch.no_grad():
        log_p, _ = policy.log_probs(families)
    where = torch.tensor(roles)
    return {
        name: round(log_p[where == role].mean().item(), 4)
        for name, role in (("act", ACT), ("rehearse", REHEARSE))
    }


def record_smoke(folder: Path | str, domain: Domain, *, tools: str, command: str) -> dict[str, Any]:
    """Train `CONFIG.steps` steps, and write the record `smoke-DOMAIN`.

    Args:
        folder: of the model, or its name in the local cache of the hub.
        tools: how it is shown tools (see `Template`).
    """
    policy = load_model(folder, tools)
    learners, test = (with_examples(domain, domain.draw(n, seed=s)) for n, s in ((40, 100), (8, 101)))
    begin = time.perf_counter()

    def look(model: Policy) -> dict[str, Any]:
        frame = probe(model, test)
        return {"log_prob": told(model, domain, test), "fidelity": round(float(frame.exact.mean()), 4)}

    before = look(policy)
    first = rollout(policy, test[:2], generator=torch.Generator().manual_seed(0))
    trained, log = train(policy, learners, CONFIG, reward=reward)
    record = {
        "kind": "smoke",
        "command": command,
        "seed": CONFIG.seed,
        "policy": f"{policy!r}",
        "domain": domain.name,
        "config": {**vars(CONFIG), "tools": tools, "answered": ANSWERED, "examples": "one a tool"},
        "said": [[dict(message) for message in trajectory.said] for trajectory in first],
        "steps": log.rows,
        "before": before,
        "after": look(trained),
        "seconds": round(time.perf_counter() - begin, 1),
    }
    write_record(f"smoke-{domain.name}", record)
    return record
