"""The demo: live world rehearsal of the shipped base on one domain, and what came of it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from envace_lite.experiments import pages, plots
from envace_lite.experiments.arms import ARMS
from envace_lite.experiments.controls import best_scalar, with_bias
from envace_lite.experiments.records import without_nan, write_record
from envace_lite.experiments.rows import MEASURES, Rows, measure, small_eval
from envace_lite.experiments.tables import resampled, value_and_interval
from envace_lite.fidelity import compare, probe_pairs, rehearse
from envace_lite.model.policy import load_policy
from envace_lite.train import TrainConfig, train
from envace_lite.world import get_domain, paths
from envace_lite.world.shipped import shipped_tasks

DEMO_CONFIG = TrainConfig(steps=75, prompts=16, group_size=8, lr=1e-3, warmup=10, observe_every=15)
SHOWN = {
    "real_success": "tasks that end in the right state with the right answer in the real world",
    "rehearsed_success": "task success of the same policy in its own rehearsed world",
    "wrong_writes": "committed writes that belong to no acceptable outcome, a task",
    "fidelity": "rehearsed responses that equal the real one in every word",
    "bearing": "parts of responses on which decisions rest, told right",
    "idle": "the other parts, told right",
    "contents": "real successes told right in every word",
    "error_recall": "real errors told as an error",
    "pessimism": "real successes told as an error",
}
"""The measures that are printed."""


def run_demo(
    domain: str = "orders",
    *,
    steps: int | None = None,
    seed: int = 0,
    figures: Path = paths.FIGURES,
    record: bool = False,
) -> Path:
    """Train live, print before and after, and write a figure, a page and a record.

    Args:
        domain: what is rehearsed.
        steps: of training; the usual number fits in four minutes.
        seed: of training.
        figures: folder of the figure and the page.
        record: whether the record goes to data/runs, where the tables are made from, or just to the working folder.

    Returns:
        The path of the page.
    """
    begin = time.perf_counter()
    title = get_domain(domain).title
    base = load_policy(paths.BASE)
    test = shipped_tasks([domain], "test")
    print(f"The base model: {base}\nThe domain: {domain}, {title}\n")
    print("Before: the base on the real environment, and its rehearsed responses next to the real ones.")
    tasks = shipped_tasks([domain], "train")
    measured = {"before": measure(base, test)}
    print(
        "A control: one number, added to the logits of `error`, chosen on training tasks. It learns nothing."
    )
    scalar = best_scalar(base, probe_pairs(tasks[:60]))
    measured["scalar"] = measure(with_bias(base, scalar), test)
    config = replace(DEMO_CONFIG, seed=seed, steps=steps or DEMO_CONFIG.steps)
    print(
        f"World rehearsal: {config.steps} steps. The policy acts, and answers its own calls; no environment is opened."
    )
    trained, log = train(base, tasks, config, eval_callback=small_eval(test[:60]), workers=2)
    measured["after"] = measure(trained, test)
    results = {name: with_intervals(rows) for name, rows in measured.items()}
    print(f"\n{'':18}{'before':>8}{'scalar':>8}{'after':>8}")
    for name, words in SHOWN.items():
        print(f"{name:18}" + "".join(f"{results[when][name][0]:8.3f}" for when in results) + f"   {words}")
    print(f"{'environment calls':18}{'':16}{int(log.totals['environment_calls']):8}   used for training\n")

    figure = plots.gap(results, log.observed, f"World rehearsal on {domain}: no environment")
    image = plots.save(
        figure, figures / "gap.png", "Measures before and after world rehearsal, and over its steps"
    )
    pairs = probe_pairs(test[:12])
    columns = {"base rehearsed": base, f"after {config.steps} steps": trained}
    page = pages.write_page(
        figures / "rehearsed_next_to_real.html",
        pages.side_by_side(
            test[:12],
            {name: compare(pairs, rehearse(policy, pairs)) for name, policy in columns.items()},
            title=f"Rehearsed next to real: {domain}",
            intro="For each call of a few test tasks (and one that ends the other way): the real response, and what "
            "the policy wrote in its rehearse role. Nobody ever showed it a graded response.",
        ),
    )
    seconds = time.perf_counter() - begin
    write_record(
        f"demo-{domain}-{seed}",
        {
            "kind": "demo",
            "command": f"envace demo --domain {domain} --steps {config.steps} --seed {seed} --record",
            "arm": "demo",
            "title": ARMS["rehearsal"].title,
            "seed": seed,
            "domains": [domain],
            "config": vars(config),
            "totals": {**log.totals, "wall_seconds": round(seconds, 1)},
            "observed": log.observed,
            **without_nan(results),
        },
        paths.RUNS if record else paths.WORK / "demo",
    )
    print(
        f"{seconds:.0f} seconds in all. The figure: {_short(image)}\nThe page:   {_short(page)}\n"
        f"Go on: {'envace probe' if paths.PACKAGED else 'make lab'}"
    )
    return page


def with_intervals(rows: Rows) -> dict[str, list[float]]:
    """Each measure over some tasks with the ends of its 95 % interval: [value, low, high]."""
    return {
        name: [round(number, 4) for number in value_and_interval(resampled({("", 0): rows}, name))]
        for name in MEASURES
    }


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
