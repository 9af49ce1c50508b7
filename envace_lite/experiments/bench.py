"""The two hot paths, rollout and update, beside the usual means and beside this machine's matrix-product rate.

Everything that is compared is measured in one run on the same model and prompts, in turn, so that a slow minute of the
machine hits both. What comes out are ratios; seconds are those of one machine.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import pandas as pd
import torch
from tqdm.auto import tqdm

from envace_lite.experiments.peers import TrlSteps, generate_rollout
from envace_lite.experiments.tables import markdown
from envace_lite.model.decoding import open_decoder, sample
from envace_lite.model.policy import Family, Policy, load_policy, new_policy, with_lora
from envace_lite.reward import task_success
from envace_lite.rollout import Rehearse, Trajectory, rollout
from envace_lite.train import TrainConfig, collect, update
from envace_lite.world import DOMAINS, paths
from envace_lite.world.shipped import shipped_tasks

BATCHES = (16, 64, 256)
"""Rows of a rollout, in groups of eight."""
SIZES = {"0.3 M": (64, 4), "1.4 M": (128, 6), "5 M": (256, 6), "20 M": (384, 10)}
"""Width and layers of policies of several sizes."""
THREADS = {1: "one thread", 2: "two threads"}
"""How many are tried, as words."""
HORIZONS = (2, 5, 10)
"""Calls an episode, each about 13 tokens with its response."""
CALL_TOKENS, PROMPT_TOKENS, GROUPS, GROUP_SIZE = 13, 80, 8, 8


def clock(action: Callable[[], Any]) -> float:
    """Seconds that an action takes."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def spread(values: Sequence[float]) -> list[float]:
    """Median, least and greatest."""
    return [round(f(values), 4) for f in (median, min, max)]


def product_rate(size: int = 1024, repeats: int = 5) -> float:
    """Floating-point operations a second in a matrix product, with torch's number of threads."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    a @ b
    return 2 * size**3 / median(clock(lambda: a @ b) for _ in range(repeats))


def bench_rollouts(policy: Policy, repeats: int) -> list[dict[str, Any]]:
    """Rollout tokens a second, and how many times as many as by `transformers.generate`, for each batch."""
    tasks = shipped_tasks(DOMAINS, "train", 40)
    ways: dict[str, Callable[..., list[Trajectory]]] = {"engine": rollout, "generate": generate_rollout}
    table = []
    for batch in BATCHES:
        rates: dict[str, list[float]] = {"engine": [], "generate": []}
        for repeat in tqdm(range(repeats + 1), desc=f"rollouts of {batch}", unit="repeat"):
            chosen = Random(repeat).sample(tasks, batch // GROUP_SIZE)
            torch.manual_seed(repeat)
            # Both ways take their turn in each repeat: a slow moment of the machine falls on both.
            for way, act in ways.items():
                begin = time.perf_counter()
                tokens = sum(len(t.ids) for t in act(policy, chosen, group_size=GROUP_SIZE))
                if repeat:  # the first one warms up
                    rates[way].append(tokens / (time.perf_counter() - begin))
        ratios = [a / b for a, b in zip(rates["engine"], rates["generate"], strict=True)]
        table.append(
            {
                "batch": batch,
                **{way: spread(values) for way, values in rates.items()},
                "ratio": spread(ratios),
            }
        )
    return table


def bench_steps(policy: Policy, repeats: int, threads: int) -> dict[str, Any]:
    """A training step (rollout, reward, advantages, update) beside TRL's, in seconds for 1,000 rollout tokens.

    Both take every group into the update's batch; only ours leaves out those without a difference in reward, as it
    does in training. TRL gives its threads to torch; ours are the workers that share an update.
    """
    config = TrainConfig(steps=repeats + 1)
    tasks = shipped_tasks(DOMAINS, "train", 40)
    trained = with_lora(policy)
    optimizer = torch.optim.AdamW([p for p in trained.model.parameters() if p.requires_grad], lr=0.0)
    parts: dict[str, list[float]] = {"rollout": [], "update": [], "engine": [], "informative": []}
    for step in tqdm(range(repeats + 1), desc="training steps", unit="step"):
        begin = time.perf_counter()
        trajectories, rewards = collect(trained, tasks, config, step, Rehearse(), task_success)
        middle = time.perf_counter()
        update(trained, trajectories, rewards, config, optimizer, workers=threads)
        end = time.perf_counter()
        if step:
            thousands = sum(len(t.ids) for t in trajectories) / 1000
            parts["rollout"].append((middle - begin) / thousands)
            parts["update"].append((end - middle) / thousands)
            parts["engine"].append((end - begin) / thousands)
            parts["informative"].append((rewards.amax(-1) > rewards.amin(-1)).float().mean().item())
    if importlib.util.find_spec("trl"):
        peer = TrlSteps(with_lora(policy), tasks, config)
        torch.set_num_threads(threads)
        peer.run()
        torch.set_num_threads(1)
        parts["trl"] = [1000 * s / n for s, n in zip(peer.seconds[1:], peer.tokens[1:], strict=True)]
        parts["ratio"] = [b / a for a, b in zip(parts["engine"], parts["trl"], strict=True)]
    return {"threads": threads, **{name: spread(values) for name, values in parts.items()}}


def growth_cell(size: str, horizon: int, threads: int, repeats: int = 3) -> dict[str, Any]:
    """Time and memory of a training step of 64 episodes with so many calls, on a fresh policy of one size.

    Episodes have a fixed number of random tokens: what is measured is the arithmetic. Run it in a process of its own,
    since the memory is the most that the process ever had.

    Returns:
        Seconds of sampling and update, tokens, the update's share of the matrix-product rate (its necessary operations:
        four a parameter and token with LoRA), and the memory in MB above that of the loaded packages.
    """
    torch.set_num_threads(1)
    loaded = _peak_memory()
    width, layers = SIZES[size]
    policy = with_lora(new_policy(width=width, layers=layers, heads=width // 32))
    rng = Random(0)
    words = range(8, len(policy.compact.words))
    tokens = horizon * CALL_TOKENS
    prompts = [rng.choices(words, k=PROMPT_TOKENS) for _ in range(GROUPS)]
    families = [Family(p, [rng.choices(words, k=tokens) for _ in range(GROUP_SIZE)]) for p in prompts]
    rates, sampling, updating = [], [], []
    for _ in range(repeats):
        torch.set_num_threads(threads)
        rates.append(product_rate(repeats=1))
        sampling.append(clock(lambda: _sample_all(policy, prompts, tokens)))
        torch.set_num_threads(1)  # an update's threads are its workers
        updating.append(
            clock(lambda: policy.backward(families, lambda log_p, *_: -log_p.sum(), workers=threads))
        )
    read = sum(family.length for family in families)
    share = 4 * policy.num_parameters() * read / median(updating) / median(rates)
    return {
        "size": size,
        "parameters": policy.num_parameters(),
        "horizon": horizon,
        "threads": threads,
        "tokens": GROUPS * GROUP_SIZE * tokens,
        "sampling_seconds": round(median(sampling), 4),
        "update_seconds": round(median(updating), 4),
        "update_share_of_rate": round(share, 4),
        "memory_mb": round(_peak_memory() - loaded, 1),
    }


@torch.inference_mode()
def _sample_all(policy: Policy, prompts: Sequence[Sequence[int]], tokens: int) -> None:
    generator = torch.Generator().manual_seed(0)
    decoder = open_decoder(policy, prompts, GROUP_SIZE, tokens)
    for _ in range(tokens):
        decoder.step(sample(decoder.logits, 1.0, generator)[0])


def _peak_memory() -> float:
    """The most memory that this process has had, in MB; NaN on Windows, which does not keep count of it."""
    status = Path("/proc/self/status")
    if status.is_file():  # on Linux, `getrusage` of a child begins with its parent's memory
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status.read_text(encoding="ascii"))[0]) / 1024
    try:
        import resource
    except ModuleNotFoundError:
        return math.nan
    unit = 1024**2 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def bench_growth() -> list[dict[str, Any]]:
    """`growth_cell` for every size, horizon and number of threads, each in a process of its own."""
    cells = [(s, h, t) for s in SIZES for h in HORIZONS for t in THREADS]
    table = []
    for cell in tqdm(cells, desc="growth", unit="cell"):
        code = f"import json; from {__name__} import growth_cell; print(json.dumps(growth_cell{cell!r}))"
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
        )
        table.append(json.loads(done.stdout.splitlines()[-1]))
    return table


def profile(policy: Policy, config: TrainConfig | None = None, top: int = 8) -> dict[str, pd.DataFrame]:
    """Where the time of a rollout and of an update goes: torch's operations by their own time.

    Returns:
        For `rollout` and `update` a table of operations: milliseconds, share of the whole, number of calls. What is
        left over is Python. Profiling itself slows many small operations down, so shares say more than milliseconds.
    """
    config, trained = config or TrainConfig(), with_lora(policy)
    tasks = shipped_tasks(DOMAINS, "train", 40)
    optimizer = torch.optim.SGD([p for p in trained.model.parameters() if p.requires_grad], lr=0.0)
    trajectories, rewards = collect(trained, tasks, config, 0, Rehearse(), task_success)
    rewards = rewards + torch.arange(config.group_size) / 10  # every group is in the update
    parts: dict[str, Callable[[], Any]] = {
        "rollout": lambda: collect(trained, tasks, config, 0, Rehearse(), task_success),
        "update": lambda: update(trained, trajectories, rewards, config, optimizer),
    }
    tables = {}
    for name, act in parts.items():
        act()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            whole = 1000 * clock(act)
        events = sorted(seen.key_averages(), key=lambda e: -e.self_cpu_time_total)[:top]
        rows = [(e.key, e.self_cpu_time_total / 1000, e.count) for e in events]
        frame = pd.DataFrame(rows, columns=["operation", "milliseconds", "calls"])
        frame.insert(2, "share", frame.milliseconds / whole)
        tables[name] = frame
    return tables


def frames(result: dict[str, Any]) -> dict[str, pd.DataFrame]:
    """The parts of a result as tables of text: median (least to greatest)."""

    def text(value: Any) -> Any:
        return "{:,.4g} ({:,.4g} to {:,.4g})".format(*value) if isinstance(value, list) else value

    parts = {"rollouts: tokens a second": result["rollouts"], "a training step": result["steps"]}
    if "growth" in result:
        parts["growth"] = result["growth"]
    return {
        name: pd.DataFrame([{k: text(v) for k, v in row.items()} for row in rows])
        for name, rows in parts.items()
    }


def ratios_table(result: dict[str, Any]) -> str:
    """How many times as fast as the usual means, as markdown made from the record alone: median (least to greatest)."""
    lines = {
        f"rollout, {row['batch']} rows, one thread, beside `generate`": row["ratio"]
        for row in result["rollouts"]
    }
    for row in result["steps"]:
        if "ratio" in row:
            lines[f"training step, {THREADS[row['threads']]}, beside TRL's `GRPOTrainer`"] = row["ratio"]
    texts = {name: "{:.1f} ({:.1f} to {:.1f})".format(*values) for name, values in lines.items()}
    return markdown(pd.DataFrame({"times as fast": texts}).rename_axis("what is timed"))


def growth_table(result: dict[str, Any]) -> str:
    """Time and memory of a step by size, horizon and threads, as markdown made from the record alone."""
    rows = [
        {
            "parameters": f"{row['parameters'] / 1e6:.1f} M",
            "calls an episode": row["horizon"],
            "threads": row["threads"],
            "rollout tokens": f"{row['tokens']:,}",
            "sampling, ms a 1,000 tokens": f"{1e6 * row['sampling_seconds'] / row['tokens']:.0f}",
            "update, ms a 1,000 tokens": f"{1e6 * row['update_seconds'] / row['tokens']:.0f}",
            "update, share of the matrix-product rate": f"{row['update_share_of_rate']:.2f}",
            "memory, MB": f"{row['memory_mb']:.0f}",
        }
        for row in result["growth"]
    ]
    return markdown(pd.DataFrame(rows).set_index("parameters"))


def profile_tables(result: dict[str, Any]) -> str:
    """Where the time of a rollout and of an update goes, as markdown made from the record alone."""
    parts = []
    for name, rows in result["profile"].items():
        frame = pd.DataFrame(rows).set_index("operation")
        frame["share"] = frame.share.map("{:.0%}".format)
        frame["milliseconds"] = frame.milliseconds.map("{:.1f}".format)
        parts += [f"**{name}**", markdown(frame.rename(index=lambda key: f"`{key}`"))]
    return "\n\n".join(parts)


def bench(repeats: int = 5, growth: bool = True) -> dict[str, Any]:
    """All measurements, with one thread where threads are not part of the question."""
    threads = torch.get_num_threads()
    policy = load_policy(paths.BASE)
    result: dict[str, Any] = {}
    try:
        torch.set_num_threads(1)
        if importlib.util.find_spec("trl"):
            result["trl"] = version("trl")
        result["product_gflops"] = round(product_rate() / 1e9, 1)
        result["rollouts"] = bench_rollouts(policy, repeats)
        result["steps"] = [bench_steps(policy, repeats, threads) for threads in THREADS]
        result["profile"] = {
            name: frame.round(3).to_dict("records") for name, frame in profile(policy).items()
        }
        if growth:
            result["growth"] = bench_growth()
    finally:
        torch.set_num_threads(threads)
    return result
