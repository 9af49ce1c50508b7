"""The two hot paths in figures, rollout and update, beside this machine's matrix-product rate."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from envace_lite import paths
from envace_lite.domains import DOMAINS
from envace_lite.policy import load_policy, with_lora
from envace_lite.reward import task_success
from envace_lite.rollout import Rehearse
from envace_lite.study import shipped_tasks
from envace_lite.train import TrainConfig, collect, update


def seconds(action: Callable[[], Any], repeats: int) -> float:
    """Median time of an action after one warm-up."""
    action()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return median(times)


def product_rate(size: int = 1024) -> float:
    """Floating-point operations a second of one thread in a matrix product."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    return 2 * size**3 / seconds(lambda: a @ b, 5)


def bench(repeats: int = 5) -> dict[str, float]:
    """Measure a training step of the shipped base on all domains, with one thread and with two workers.

    Returns:
        Seconds and tokens a second of rollout and update, and the share of the matrix-product rate that the
        update's necessary operations come to (six a parameter and token; LoRA needs about four).
    """
    policy = with_lora(load_policy(paths.BASE))
    config, tasks = TrainConfig(), shipped_tasks(DOMAINS, "train", 100)
    trajectories, rewards = collect(policy, tasks, config, 0, Rehearse(), task_success)
    spread = rewards + torch.arange(config.group_size) / 10  # every group is in the update
    optimizer = torch.optim.SGD([p for p in policy.model.parameters() if p.requires_grad], lr=0.0)
    sampled = sum(len(t.ids) for t in trajectories)
    read = sampled + sum(len(t.prompt) for t in trajectories[:: config.group_size])
    rollout_time = seconds(lambda: collect(policy, tasks, config, 0, Rehearse(), task_success), repeats)
    result = {"rollout_seconds": rollout_time, "rollout_tokens_per_second": sampled / rollout_time}
    for workers in (1, 2):

        def step(workers: int = workers) -> None:
            update(policy, trajectories, spread, config, optimizer, 0, workers=workers)

        result[f"update_seconds_{workers}_workers"] = seconds(step, repeats)
    rate = product_rate()
    needed = 4 * policy.parameters() * read / rate
    return {
        **result,
        "product_gflops": rate / 1e9,
        "update_share_of_rate": needed / result["update_seconds_1_workers"],
    }
