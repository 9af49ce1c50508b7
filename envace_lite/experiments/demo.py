"""The demo: live world rehearsal of the shipped base on one domain, and what came of it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from envace_lite.evaluate import METRICS, evaluate
from envace_lite.experiments import pages, plots
from envace_lite.experiments.arms import ARMS, by_group, small_eval
from envace_lite.experiments.records import write_record
from envace_lite.fidelity import compare, probe_pairs, rehearse
from envace_lite.model.policy import load_policy
from envace_lite.train import TrainConfig, train
from envace_lite.world import get_domain, paths
from envace_lite.world.shipped import shipped_tasks

DEMO_CONFIG = TrainConfig(steps=75, prompts=16, group_size=8, lr=1e-3, warmup=10, observe_every=15)
SHOWN = (
    "real_success",
    "rehearsed_success",
    "committed_calls",
    "wrong_writes",
    "fidelity",
    "fidelity_success",
    "fidelity_error",
    "error_recall",
    "optimism",
    "pessimism",
)
"""The metrics that are printed; the record has all."""


def run_demo(
    domain: str = "retail",
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
    before = evaluate(base, test)
    config = replace(DEMO_CONFIG, seed=seed, steps=steps or DEMO_CONFIG.steps)
    print(
        f"World rehearsal: {config.steps} steps. The policy acts, and answers its own calls; no environment is opened."
    )
    trained, log = train(
        base,
        shipped_tasks([domain], "train"),
        config,
        eval_callback=small_eval(test[:100]),
        workers=2,
    )
    after = evaluate(trained, test)
    results = {name: by_group(report)["all"] for name, report in (("before", before), ("after", after))}
    print(f"\n{'':18}{'before':>8}{'after':>8}{'change':>8}")
    for metric in SHOWN:
        first, last = (report.value(metric) for report in (before, after))
        print(f"{metric:18}{first:8.3f}{last:8.3f}{last - first:+8.3f}   {METRICS[metric]}")
    print(
        f"{'environment calls':18}{0:8}{int(log.totals['environment_calls']):8}{'':8}   used for training\n"
    )

    figure = plots.gap(
        results["before"], results["after"], log.observed, f"World rehearsal on {domain}: no environment"
    )
    image = plots.save(
        figure, figures / "gap.png", "Metrics before and after world rehearsal, and over its steps"
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
            "before": results["before"],
            "after": results["after"],
        },
        paths.RUNS if record else paths.WORK / "demo",
    )
    print(
        f"{seconds:.0f} seconds in all. The figure: {_short(image)}\nThe page:   {_short(page)}\n"
        f"Go on: {'envace probe' if paths.PACKAGED else 'make lab'}"
    )
    return page


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
