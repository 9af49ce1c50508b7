"""Commands that make policies, and the studies of training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from envace_lite.cli.shared import app
from envace_lite.experiments.shell import (
    Domains,
    PolicyFolder,
    Seed,
    arm_name,
    command_line,
    domain_names,
    own_domain,
    print_measures,
    writable,
)
from envace_lite.world import paths


@app.command()
def tasks(
    seed: Seed = 0,
    out: Annotated[Path, typer.Option(help="Folder for the task files.")] = paths.ROOT / "data" / "tasks",
) -> None:
    """Draw the tasks of every domain and split again (1,000 train, 300 test, 150 held out)."""
    from envace_lite.world import DOMAINS, save_tasks
    from envace_lite.world.draw import draw_splits

    writable(out)
    for domain in DOMAINS.values():
        for split, drawn in draw_splits(domain, seed).items():
            save_tasks(out / f"{domain.name}.{split}.jsonl", drawn)
            print(f"{domain.name:10} {split:9} {len(drawn)} tasks")


@app.command()
def pretrain(
    recipe: Annotated[
        str,
        typer.Option(
            help="habits (the shipped one); or by the share of true tellings in the last phase habits_0, habits_5, "
            "habits_10, habits_35, habits_65."
        ),
    ] = "habits",
    out: Annotated[Path | None, typer.Option(help="Folder for the base.")] = None,
    start: Annotated[
        Path | None,
        typer.Option(help="A policy that has read all but the last phase, .work/NAME/read."),
    ] = None,
    seed: Seed = 0,
    workers: Annotated[int, typer.Option(help="Threads.")] = 2,
) -> None:
    """Make a base model by imitation of traces in which right and wrong occur side by side.

    Takes about an hour on two cores. An interrupted run is continued by the same command.
    """
    from dataclasses import asdict, replace

    from envace_lite.experiments.records import write_record
    from envace_lite.model.checkpoint import claimed
    from envace_lite.model.policy import load_policy
    from envace_lite.pretraining.imitate import BASES
    from envace_lite.pretraining.imitate import pretrain as make

    if recipe not in BASES:
        raise typer.BadParameter(f"there are the recipes {', '.join(BASES)}", param_hint="--recipe")
    name = f"base-{recipe}-{seed}"
    out = writable(
        out
        or (paths.ROOT / "data" / "base" if (recipe, seed) == ("habits", 0) else paths.WORK / name / "policy")
    )
    config = replace(BASES[recipe], seed=seed)
    with claimed(paths.WORK / name):  # also while the base and its record are written
        policy, record = make(
            config, paths.WORK / name, workers=workers, start=load_policy(start) if start else None
        )
        policy.save(out)
        about = {"kind": "pretrain", "command": command_line(), "seed": seed, "config": asdict(config)}
        write_record(
            f"pretrain-{recipe}-{seed}", {**about, **record, **({"start": str(start)} if start else {})}
        )


@app.command()
def base(
    source: Annotated[str, typer.Argument(help="FILE.py:NAME of a domain, made by `Domain.from_tools`.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the base; .work/base-NAME-SEED/policy.")
    ] = None,
    seed: Seed = 0,
    workers: Annotated[int, typer.Option(help="Threads.")] = 2,
) -> None:
    """Make a small base for a domain of your own, with words that are made for it: a quarter of an hour on two cores.

    It reads what usually happens, and is to be trained to look. An interrupted run is continued by the same command.
    """
    from dataclasses import asdict

    from envace_lite.experiments.records import write_record
    from envace_lite.model.checkpoint import claimed
    from envace_lite.pretraining.own import PHASES, TRUTH, WANDERS, make_base
    from envace_lite.world.check import check_domain

    own = own_domain(source)
    for finding in check_domain(own):
        print(finding)
    name = f"base-{own.name}-{seed}"
    out = writable(out or paths.WORK / name / "policy")
    with claimed(paths.WORK / name):
        policy, record = make_base(own, paths.WORK / name, seed=seed, workers=workers)
        policy.save(out)
        config = {"phases": [asdict(phase) for phase in PHASES], "truth": TRUTH, "wanders": WANDERS}
        about = {"kind": "pretrain", "command": command_line(), "seed": seed, "config": config}
        write_record(f"pretrain-{own.name}-{seed}", {**about, **record})


@app.command()
def train(
    domain: Domains = "all",
    arm: Annotated[
        str,
        typer.Option(
            callback=arm_name,
            help="How: rehearsal, anchored, execute, grounded, imitation, drawn, answer, state, verdicts, "
            "end_at_error, act_only, full or scratch.",
        ),
    ] = "rehearsal",
    policy: PolicyFolder = paths.BASE,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the trained policy (adapters folded in).")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Updates.")] = 240,
    seed: Seed = 0,
    workers: Annotated[int, typer.Option(help="Threads that share an update.")] = 2,
    record: Annotated[bool, typer.Option(help="Write a record to data/runs.")] = True,
) -> None:
    """Train a policy by world rehearsal (or one of the ways it is compared with) and measure it.

    An interrupted run is continued by the same command.
    """
    from envace_lite.experiments.arms import base_name, run_arm, run_name
    from envace_lite.model.policy import load_policy
    from envace_lite.train import TrainConfig

    names = domain_names(domain)
    name = run_name(arm, base_name(policy), seed, names if domain != "all" else [], steps)
    folder = None if record else paths.WORK / "unrecorded"
    loaded = load_policy(policy)
    if out:
        writable(out)
    trained, result = run_arm(
        loaded,
        arm,
        seed,
        TrainConfig(steps=steps),
        base=base_name(policy),
        domains=names,
        command=command_line(),
        name=name,
        folder=folder,
        workers=workers,
    )
    if out:
        trained.save(out)
    print_measures(result["rows"])
