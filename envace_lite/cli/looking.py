"""Commands that look at one policy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from envace_lite.cli.shared import app
from envace_lite.experiments.shell import (
    Domains,
    PolicyFolder,
    Seed,
    domain_names,
    print_report,
    split_name,
)
from envace_lite.world import paths


@app.command()
def demo(
    domain: Annotated[str, typer.Option(help="The domain to rehearse.")] = "orders",
    steps: Annotated[
        int | None, typer.Option(help="Steps of training; the default fits in four minutes.")
    ] = None,
    seed: Seed = 0,
    record: Annotated[bool, typer.Option(help="Write a record to data/runs.")] = False,
) -> None:
    """Train live for a few minutes and show rehearsed responses next to real ones.

    Prints every measure before, with one scalar, and after training, and writes figures/gap.png and
    figures/rehearsed_next_to_real.html.
    """
    from envace_lite.experiments.demo import run_demo

    run_demo(domain, steps=steps, seed=seed, record=record)


@app.command()
def evaluate(
    domain: Domains = "all",
    policy: PolicyFolder = paths.BASE,
    split: Annotated[
        str, typer.Option(callback=split_name, help="test or held_out (tools that no training task used).")
    ] = "test",
    limit: Annotated[int | None, typer.Option(help="Tasks a domain.")] = None,
) -> None:
    """Deploy a policy on the real environment, and set its rehearsed responses next to the real ones."""
    from envace_lite.evaluate import evaluate as deployed
    from envace_lite.model.policy import load_policy
    from envace_lite.world.shipped import shipped_tasks

    print_report(split, deployed(load_policy(policy), shipped_tasks(domain_names(domain), split, limit)))


@app.command()
def probe(
    domain: Annotated[str, typer.Option(help="The domain.")] = "orders",
    policy: Annotated[
        Path, typer.Option(help="Folder of a policy, or of any causal model whose chat template has tools.")
    ] = paths.BASE,
    split: Annotated[str, typer.Option(callback=split_name, help="test or held_out.")] = "test",
    limit: Annotated[int, typer.Option(help="How many tasks.")] = 40,
    seed: Seed = 0,
    tools: Annotated[
        str, typer.Option(help="Tools in the chat template's own way (auto), or in a plain format (plain).")
    ] = "auto",
    page: Annotated[
        Path | None, typer.Option(help="Where the page goes; figures/probe.html by default.")
    ] = None,
) -> None:
    """What did the rehearse role learn? Rehearsed responses next to real ones, on the same history and call.

    Prints the metrics beside the trivial baselines, the rules that the rehearsed world lacks, fidelity by depth and the
    calibration, and writes a page of all pairs, worst first.
    """
    from envace_lite import fidelity
    from envace_lite.experiments import pages
    from envace_lite.model.compact import Compact
    from envace_lite.model.hub import instructed, load_model
    from envace_lite.world.shipped import shipped_tasks

    names = domain_names(domain)
    known = fidelity.probe_pairs(shipped_tasks(names, "train", limit))
    model, tasks = load_model(policy, tools), shipped_tasks(names, split, limit)
    if not isinstance(model.chat, Compact):
        tasks = instructed(tasks)
    told = fidelity.report(model, tasks, seed=seed, known=known)
    print(f"{len(told.pairs)} pairs, {told.pairs.real_error.mean():.0%} of them errors\n")
    print(told.table().round(3).to_string(na_rep="-"))
    print(f"\nby rule\n{told.rules.round(3).to_string(na_rep='-')}")
    print(f"the rehearsed world lacks: {', '.join(told.missing_rules) or 'nothing that this probe can tell'}")
    print(f"\nplanned calls, by depth\n{told.by_depth().round(3).to_string()}")
    print(f"\nthe same next decision after {told.decision_agreement:.1%} of the responses")
    print(f"confidence is off by {told.reliability.error:.3f} (expected calibration error)")
    html = pages.worst_first(told.pairs, title=f"Rehearsed next to real: {', '.join(names)}, {split}")
    print(f"\nevery pair, worst first: {pages.write_page(page or paths.FIGURES / 'probe.html', html)}")


@app.command()
def rehearse(
    domain: Domains = "orders",
    policy: PolicyFolder = paths.BASE,
    budget: Annotated[int, typer.Option(min=1, help="N, imagined continuations before one message.")] = 4,
    mode: Annotated[str, typer.Option(help="parallel or sequential.")] = "parallel",
    scorer: Annotated[
        str,
        typer.Option(help="agreement, likelihood, no_errors, carried_out or verdict (it is trained first)."),
    ] = "carried_out",
    split: Annotated[str, typer.Option(callback=split_name, help="test or held_out.")] = "test",
    limit: Annotated[int, typer.Option(help="Tasks a domain.")] = 50,
    temperature: Annotated[float, typer.Option(help="Of everything that is sampled.")] = 1.0,
    seed: Seed = 0,
) -> None:
    """Let a policy rehearse privately before each committed call, beside other uses of the same tokens.

    Prints how it went on the real environment, and one decision step by step. A single look: for curves and
    intervals see `python -m envace_lite.experiments deliberate`.
    """
    from envace_lite.experiments import deliberate as study
    from envace_lite.experiments.self_evaluation import fit_self_evaluation
    from envace_lite.model.policy import load_policy
    from envace_lite.rehearsal.controls import SelfConsistency
    from envace_lite.rehearsal.episode import Plain
    from envace_lite.rehearsal.private import MODES, PrivateRehearsal
    from envace_lite.rehearsal.scorers import SCORERS
    from envace_lite.world.shipped import shipped_tasks

    for option, value, known in (("--mode", mode, MODES), ("--scorer", scorer, (*SCORERS, "verdict"))):
        if value not in known:
            raise typer.BadParameter(f"there are {', '.join(known)}; {value!r} is none", param_hint=option)
    names, loaded = domain_names(domain), load_policy(policy)
    tasks = shipped_tasks(names, split, limit)
    chosen = (
        fit_self_evaluation(loaded, shipped_tasks(names, "train", 150), seed=seed)
        if scorer == "verdict"
        else scorer
    )
    options: dict[str, Any] = {"temperature": temperature, "seed": seed}
    private = PrivateRehearsal(loaded, budget, mode, chosen, **options)
    episodes = private.run(tasks)
    rehearsed = study.as_frame(episodes)
    tokens = study.token_budget_of(rehearsed)  # what it cost is what the others may spend
    frames = {
        "plain execution": study.as_frame(Plain(loaded, **options).run(tasks)),
        f"private rehearsal, N = {budget}": rehearsed,
        "self-consistency": study.as_frame(SelfConsistency(loaded, tokens, **options).run(tasks)),
        "and the verifier": study.as_frame(
            SelfConsistency(loaded, tokens, verified=True, **options).run(tasks)
        ),
    }
    print(f"{f'{len(tasks)} tasks':20}" + "".join(f"{name:>30}" for name in frames))
    for metric in (
        "real_success",
        "wrong_writes",
        "irreversible_writes",
        "world_errors",
        "head_errors",
        "tokens",
    ):
        cells = [study.summary(frame)["all"][metric] for frame in frames.values()]
        digits = 0 if metric == "tokens" else 3
        shown = [f"{v:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})" for v, low, high in cells]
        print(f"{metric:20}" + "".join(f"{cell:>30}" for cell in shown))
    # Show a decision in which something was revised, if there is one.
    episode = next((e for e in episodes if len(e.ledger.decisions) > e.number), episodes[0])
    print(f"\n{episode.task.messages[0]['content']}\n{episode.task.messages[1]['content']}")
    for decision in episode.ledger.decisions:
        print(f"  {decision.line}")
    print(episode.ledger)


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
        frame = table(records, split, group="" if domain == "all" else domain)
        print(f"\n{split}, {domain}\n" + (frame.to_string() if len(frame) else "no recorded runs"))
    if figures:
        from envace_lite.experiments import plots

        drawn = plots.draw_all(records, figures)
        print("\n".join(map(str, drawn)) or "no recorded runs that would suffice for a figure")
