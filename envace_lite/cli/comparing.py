"""Commands that compare, and show what was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from envace_lite.cli.shared import Domains, Seed, app, command_line, domain_names, split_name
from envace_lite.world import paths


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
    from envace_lite.experiments.arms import record_ranks

    folders = {}
    for entry in policy:
        name, equals, folder = entry.partition("=")
        if not equals:
            raise typer.BadParameter(f"{entry!r} is not NAME=FOLDER", param_hint="--policy")
        folders[name] = Path(folder)
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
    for entry in policy:
        name, equals, folder = entry.partition("=")
        if not equals:
            raise typer.BadParameter(f"{entry!r} is not NAME=FOLDER", param_hint="--policy")
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
        for kind in study.KINDS:
            frame = curve(records[-1], "real_success", kind=kind)
            print(f"\n{name}, {kind}, real success\n{frame.round(3).to_string(index=False)}")
    if figure:
        from envace_lite.experiments import plots

        plots.save(
            plots.deliberation(records),
            figure,
            "Real success and wrong writes over the tokens of each way of deciding, on instructions and goals",
        )


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
def report(
    split: Annotated[str, typer.Option(callback=split_name, help="test or held_out.")] = "test",
    by_domain: Annotated[bool, typer.Option(help="One table for each domain.")] = False,
    figures: Annotated[Path | None, typer.Option(help="Also draw all figures into this folder.")] = None,
    write: Annotated[
        list[Path] | None, typer.Option(help="Only fill the tables of this text; may be given again.")
    ] = None,
) -> None:
    """Tables with means and 95 % intervals over the seeds, made from the records in data/runs alone."""
    from envace_lite.cli.texts import fill
    from envace_lite.experiments.arms import load_records
    from envace_lite.experiments.tables import table
    from envace_lite.world import DOMAINS

    records = load_records()
    for text in write or ():
        text.write_text(fill(text.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"{text}: filled")
    if write:
        return
    for domain in [*DOMAINS, "all"] if by_domain else ["all"]:
        frame = table(records, split=split, domain=domain)
        print(f"\n{split}, {domain}\n" + (frame.to_string() if len(frame) else "no recorded runs"))
    if figures:
        from envace_lite.experiments import plots

        drawn = plots.draw_all(records, figures)
        print("\n".join(map(str, drawn)) or "no recorded runs that would suffice for a figure")
