"""What makes the project's own tables: `python -m envace_lite.experiments study` and the rest."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from envace_lite.experiments import shell
from envace_lite.experiments.shell import (
    Domains,
    Seed,
    arm_names,
    cell_names,
    domain_names,
    own_domain,
    run_missing,
)
from envace_lite.world import paths

PROGRAM = "python -m envace_lite.experiments"

app = shell.new_app("The studies behind the tables and figures of envace_lite, each recorded in data/runs.")
command_line = partial(shell.command_line, PROGRAM)


@app.command()
def study(
    base: Annotated[list[Path] | None, typer.Option(help="Folder of a base; may be given again.")] = None,
    arms: Annotated[
        str, typer.Option(callback=arm_names, help="Arms, separated by commas.")
    ] = "rehearsal,execute,grounded",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0 to N-1.")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Updates in each run.")] = 240,
) -> None:
    """Train bases in several ways with several seeds over all domains, beside what scalars and an oracle make of them.

    Recorded runs are skipped, interrupted ones continued. Two runs at a time, with one thread each.
    """
    from envace_lite.experiments.arms import base_name, load_records, run_name
    from envace_lite.experiments.tables import table
    from envace_lite.train import TrainConfig

    folders = base or [paths.BASE]
    bases = {base_name(folder): folder for folder in folders}
    if len(bases) < len(folders):
        raise typer.BadParameter("two bases are called alike; rename a folder", param_hint="--base")
    commands = {
        f"controls-{name}": [__package__, "controls", "--base", str(folder)] for name, folder in bases.items()
    }
    # Seed by seed: whoever stops halfway has all arms of the first seeds, and not all seeds of one arm.
    for seed in range(seeds):
        for name, folder in bases.items():
            for arm in arms.split(","):
                commands[run_name(arm, name, seed, steps=steps)] = [
                    "envace_lite.cli",
                    "train",
                    "--arm",
                    arm,
                    *(["--policy", str(folder)] if folder != paths.BASE else []),
                    "--seed",
                    str(seed),
                    *(["--steps", str(steps)] if steps != TrainConfig().steps else []),
                    "--workers",
                    "1",
                ]
    failed = run_missing(commands)
    print(table(load_records()).to_string())
    if failed:
        raise typer.Exit(1)


@app.command()
def controls(
    base: Annotated[Path, typer.Option(help="Folder of a base.")] = paths.BASE,
) -> None:
    """What a scalar, or an oracle among samples, makes of a base that learns nothing. Written to data/runs."""
    from envace_lite.experiments.arms import base_name, load_records
    from envace_lite.experiments.controls import record_controls
    from envace_lite.experiments.tables import table
    from envace_lite.model.policy import load_policy

    record_controls(load_policy(base), base_name(base), command=command_line())
    print(table(load_records()).to_string())


@app.command()
def trap(
    cells: Annotated[
        str, typer.Option(callback=cell_names, help="Cells, separated by commas, or `all`.")
    ] = "all",
    seeds: Annotated[int, typer.Option(help="Seeds 0 to N-1.")] = 3,
    seed: Annotated[int | None, typer.Option(help="Only this seed, in this process.")] = None,
    steps: Annotated[int | None, typer.Option(help="Updates in each run; 60 by default.")] = None,
) -> None:
    """Provoke a simpler world: train on tasks that need one rule seldom or never, and see what is delivered.

    Recorded runs are skipped, interrupted ones continued. Two runs at a time, with one thread each.
    """
    from envace_lite.experiments.arms import load_records
    from envace_lite.experiments.trap import CELLS, run_cell, trap_table
    from envace_lite.model.policy import load_policy

    names = list(CELLS) if cells == "all" else cells.split(",")
    if seed is not None:
        for name in names:
            run_cell(load_policy(paths.BASE), name, seed, command=command_line(), steps=steps)
        return
    options = ["--steps", str(steps)] if steps else []
    failed = run_missing(
        {
            f"trap-{name}-{number}": [__package__, "trap", "--cells", name, "--seed", str(number), *options]
            for number in range(seeds)
            for name in names
        }
    )
    print(trap_table(load_records()))
    if failed:
        raise typer.Exit(1)


def named_folders(entries: list[str], option: str) -> dict[str, Path]:
    """The entries NAME=FOLDER of an option."""
    folders = {}
    for entry in entries:
        name, equals, folder = entry.partition("=")
        if not equals:
            raise typer.BadParameter(f"{entry!r} is not NAME=FOLDER", param_hint=option)
        folders[name] = Path(folder)
    return folders


@app.command()
def ranks(
    policy: Annotated[list[str], typer.Option(help="NAME=FOLDER of a policy that acts; give several.")],
    world: Annotated[
        list[str], typer.Option(help="NAME of one whose rehearse role answers all; may be given again.")
    ],
    domain: Domains = "all",
    limit: Annotated[int | None, typer.Option(help="Test tasks of each domain.")] = 100,
) -> None:
    """Does a rehearsed world rank policies as the real one does? Written to data/runs/ranks.json."""
    from envace_lite.experiments.ranks import record_ranks

    folders = named_folders(policy, "--policy")
    for name in world:
        if name not in folders:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(folders)}", param_hint="--world")
    print(
        record_ranks(folders, world, domain_names(domain), limit, command=command_line()).round(3).to_string()
    )


@app.command()
def deliberate(
    policy: Annotated[list[str], typer.Option(help="NAME=FOLDER of a policy; may be given again.")],
    domain: Domains = "all",
    methods: Annotated[
        str | None,
        typer.Option(
            help="Ways of deciding, separated by commas; by default all but likelihood, no_errors and scratch."
        ),
    ] = None,
    budgets: Annotated[str, typer.Option(help="N, separated by commas.")] = "0,1,2,4,8",
    limit: Annotated[int | None, typer.Option(help="Tasks of each domain and split.")] = None,
    temperature: Annotated[float, typer.Option(help="Of everything that is sampled.")] = 1.0,
    seed: Seed = 0,
    title: Annotated[str, typer.Option(help="How the policies are called in figures.")] = "policy",
    figure: Annotated[Path | None, typer.Option(help="Also draw the curves of these policies.")] = None,
) -> None:
    """Every way of deciding before a committed call, at every budget, at equal tokens; recorded in data/runs.

    The ways: plain, greedy, parallel, likelihood, no_errors, verdict, judged, sequential, write, vote, judged_vote,
    refine, scratch. An interrupted study is continued by the same command.
    """
    from envace_lite.experiments import deliberate as study
    from envace_lite.experiments.deliberate_tables import curve
    from envace_lite.experiments.ways import METHODS, USUAL
    from envace_lite.model.policy import load_policy

    names = methods.split(",") if methods else list(USUAL)
    for name in names:
        if name not in METHODS:
            raise typer.BadParameter(f"{name!r}; there are {', '.join(METHODS)}", param_hint="--methods")
    if not all(budget.isdigit() for budget in budgets.split(",")):
        raise typer.BadParameter("whole numbers, separated by commas", param_hint="--budgets")
    records = []
    for name, folder in named_folders(policy, "--policy").items():
        records.append(
            study.run_deliberate(
                name,
                load_policy(folder),
                title=title,
                command=command_line(),
                domains=domain_names(domain),
                methods=names,
                budgets=[int(budget) for budget in budgets.split(",")],
                limit=limit,
                temperature=temperature,
                seed=seed,
            )
        )
        for kind, words in study.KINDS.items():
            frame = curve(records[-1], "real_success", kind=kind)
            shown = frame.round(3).to_string(index=False) if len(frame) else "no task of this kind"
            print(f"\n{name}, {words}, real success\n{shown}")
    if figure:
        from envace_lite.experiments import plots

        plots.save(
            plots.deliberation(records),
            figure,
            plots.DECIDED,
        )


@app.command()
def trust(
    policy: Annotated[list[str], typer.Option(help="NAME=FOLDER of a policy; may be given again.")],
    domain: Domains = "all",
    limit: Annotated[int | None, typer.Option(help="Tasks of each domain and split.")] = None,
    seed: Seed = 0,
    title: Annotated[str, typer.Option(help="How the policies are called in tables and figures.")] = "policy",
) -> None:
    """When can a rehearsed response be trusted? Risk against coverage, by its probability and by controls.

    Each policy is recorded in data/runs as trust-NAME.
    """
    from envace_lite.experiments.trust import record_trust, trust_table
    from envace_lite.model.policy import load_policy

    records = [
        record_trust(
            name,
            load_policy(folder),
            title=title,
            domains=domain_names(domain),
            limit=limit,
            seed=seed,
            command=command_line(),
        )
        for name, folder in named_folders(policy, "--policy").items()
    ]
    print(trust_table(records).T.to_string())


@app.command()
def smoke(
    policy: Annotated[
        str, typer.Option(help="Folder of a chat model, or its name in the local cache of the hub.")
    ],
    domain: Annotated[str, typer.Option(help="FILE.py:NAME of a domain, made by `Domain.from_tools`.")],
    tools: Annotated[str, typer.Option(help="auto, or plain for a chat template without tools.")] = "auto",
) -> None:
    """Five steps of world rehearsal of a released chat model in a domain of one's own; recorded in data/runs.

    It shows that everything fits together, and nothing else.
    """
    from envace_lite.experiments.smoke import record_smoke

    record = record_smoke(policy, own_domain(domain), tools=tools, command=command_line())
    print("before", record["before"], "after", record["after"], f"{record['seconds']:.0f} seconds")


@app.command()
def bench(
    repeats: Annotated[int, typer.Option(help="How often each part is timed.")] = 5,
    growth: Annotated[bool, typer.Option(help="Also over sizes, horizons and threads (minutes).")] = True,
    profile: Annotated[bool, typer.Option(help="Only show where the time of a step goes.")] = False,
    figure: Annotated[Path | None, typer.Option(help="Also draw the result to this file.")] = None,
) -> None:
    """Time rollouts and updates against the usual means, and write a record to data/runs.

    With TRL installed (`pip install -e ".[bench]"`) a training step is compared with that of its GRPOTrainer.
    """
    from envace_lite.experiments import bench as measure
    from envace_lite.experiments.records import write_record
    from envace_lite.model.policy import load_policy

    if profile:
        for name, frame in measure.profile(load_policy(paths.BASE)).items():
            print(f"\n{name}\n{frame.round(3).to_string(index=False)}")
        return
    result = measure.bench(repeats, growth)
    for name, frame in measure.frames(result).items():
        print(f"\n{name}\n{frame.to_string(index=False)}")
    write_record("bench", {"kind": "bench", "command": command_line(), "seed": 0, "result": result})
    if figure and growth:
        from envace_lite.experiments import plots

        plots.save(
            plots.speed(result),
            figure,
            "Rollouts and training steps beside the usual means, and their growth",
        )


@app.command()
def audit(
    limit: Annotated[int | None, typer.Option(help="Tasks of each domain and split.")] = None,
) -> None:
    """What the base knew before any rehearsal, and how much the label tells. Written to data/runs/audit.json."""
    import json

    from envace_lite.experiments.audit import audit as ask
    from envace_lite.model.policy import load_policy

    print(json.dumps(ask(load_policy(paths.BASE), command=command_line(), limit=limit), indent=1))


if __name__ == "__main__":
    shell.main(app)
