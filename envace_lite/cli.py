"""The command line: `envace demo`, `envace train`, `envace evaluate` and the rest; each `--help` teaches."""

from __future__ import annotations

import shlex
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from envace_lite import paths

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="World rehearsal in small: one policy acts, rehearses what the environment would answer, and learns both "
    "from task success alone.",
)

Domains = Annotated[str, typer.Option(help="Domains, separated by commas, or `all`.")]
Seed = Annotated[int, typer.Option(help="Seed of everything that is drawn.")]
PolicyFolder = Annotated[
    Path, typer.Option("--policy", help="Folder of a policy; the shipped base by default.")
]


def _domains(names: str) -> list[str]:
    from envace_lite.domains import DOMAINS, get_domain

    return list(DOMAINS) if names == "all" else [get_domain(name.strip()).name for name in names.split(",")]


def _command() -> str:
    return shlex.join(["envace", *sys.argv[1:]])


def _split(name: str) -> str:
    from envace_lite.domains.draw import SPLITS

    if name not in SPLITS:
        raise typer.BadParameter(f"there are the splits {', '.join(SPLITS)}; {name!r} is none")
    return name


def _arms(names: str) -> str:
    from envace_lite.study import ARMS

    for name in names.split(","):
        if name not in ARMS:
            raise typer.BadParameter(f"{name!r}; there are the arms {', '.join(ARMS)}")
    return names


def _cells(names: str) -> str:
    from envace_lite.simpler import CELLS

    for name in names.split(",") if names != "all" else ():
        if name not in CELLS:
            raise typer.BadParameter(f"{name!r}; there are the cells {', '.join(CELLS)}")
    return names


def _writable(folder: Path) -> Path:
    """Make an output folder, so that one that cannot be written is found out before anything is trained."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass
    return folder


@app.command()
def demo(
    domain: Annotated[str, typer.Option(help="The domain to rehearse.")] = "retail",
    steps: Annotated[
        int | None, typer.Option(help="Steps of training; the default fits in four minutes.")
    ] = None,
    seed: Seed = 0,
    record: Annotated[bool, typer.Option(help="Write a record to data/runs.")] = False,
) -> None:
    """Train live for a few minutes and show rehearsed responses next to real ones.

    Prints real success, fidelity, error recall and optimism before and after, and writes figures/gap.png and
    figures/rehearsed_next_to_real.html.
    """
    from envace_lite.demo import run_demo

    run_demo(domain, steps=steps, seed=seed, record=record)


@app.command()
def tasks(
    seed: Seed = 0,
    out: Annotated[Path, typer.Option(help="Folder for the task files.")] = paths.DATA / "tasks",
) -> None:
    """Draw the tasks of every domain and split again (1,000 train, 300 test, 150 held out)."""
    from envace_lite.domains import DOMAINS, save_tasks
    from envace_lite.domains.draw import draw_splits

    _writable(out)
    for domain in DOMAINS.values():
        for split, drawn in draw_splits(domain, seed).items():
            save_tasks(out / f"{domain.name}.{split}.jsonl", drawn)
            print(f"{domain.name:10} {split:9} {len(drawn)} tasks")


@app.command()
def pretrain(
    recipe: Annotated[
        str, typer.Option(help="uncertain (the shipped one), faithful or happy.")
    ] = "uncertain",
    out: Annotated[Path | None, typer.Option(help="Folder for the base.")] = None,
    seed: Seed = 0,
    workers: Annotated[int, typer.Option(help="Threads.")] = 2,
) -> None:
    """Make a base model by imitation of traces in which right and wrong occur side by side.

    Takes about forty minutes on two cores. An interrupted run is continued by the same command.
    """
    from dataclasses import asdict

    from envace_lite.pretrain import BASES, PretrainConfig
    from envace_lite.pretrain import pretrain as make
    from envace_lite.records import write_record

    if recipe not in BASES:
        raise typer.BadParameter(f"there are the recipes {', '.join(BASES)}", param_hint="--recipe")
    name = f"base-{recipe}-{seed}"
    out = _writable(out or (paths.BASE if recipe == "uncertain" else paths.WORK / name / "policy"))
    config = PretrainConfig(phases=BASES[recipe], seed=seed)
    policy, record = make(config, paths.WORK / name, workers=workers)
    policy.save(out)
    about = {"kind": "pretrain", "command": _command(), "seed": seed, "config": asdict(config)}
    write_record(f"pretrain-{recipe}-{seed}", {**about, **record})


@app.command()
def train(
    domain: Domains = "all",
    arm: Annotated[
        str,
        typer.Option(
            callback=_arms, help="How: rehearsal, execute, end_at_error, act_only, full or scratch."
        ),
    ] = "rehearsal",
    policy: PolicyFolder = paths.BASE,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the trained policy (adapters folded in).")
    ] = None,
    steps: Annotated[int, typer.Option(help="Updates.")] = 120,
    seed: Seed = 0,
    workers: Annotated[int, typer.Option(help="Threads that share an update.")] = 2,
    record: Annotated[bool, typer.Option(help="Write a record to data/runs.")] = True,
) -> None:
    """Train a policy by world rehearsal (or one of the ways it is compared with) and evaluate it.

    An interrupted run is continued by the same command.
    """
    from envace_lite.policy import load_policy
    from envace_lite.study import run_arm
    from envace_lite.train import TrainConfig

    names = _domains(domain)
    usual = TrainConfig().steps
    details = [
        arm,
        *(names if domain != "all" else []),
        *([f"{steps}steps"] if steps != usual else []),
        str(seed),
    ]
    name = "-".join(details)
    folder = None if record else paths.WORK / "unrecorded"
    loaded = load_policy(policy)
    if out:
        _writable(out)
    trained, result = run_arm(
        loaded,
        arm,
        seed,
        TrainConfig(steps=steps),
        domains=names,
        command=_command(),
        name=name,
        folder=folder,
        workers=workers,
    )
    if out:
        trained.save(out)
    _print_results(result["results"])


@app.command()
def evaluate(
    domain: Domains = "all",
    policy: PolicyFolder = paths.BASE,
    split: Annotated[
        str, typer.Option(callback=_split, help="test or held_out (tools that no training task used).")
    ] = "test",
    limit: Annotated[int | None, typer.Option(help="Tasks a domain.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Write a record of this name to data/runs (both splits).")
    ] = None,
    title: Annotated[
        str, typer.Option(help="How the record is called in tables.")
    ] = "base, before rehearsal",
) -> None:
    """Deploy a policy on the real environment, and set its rehearsed responses next to the real ones."""
    from envace_lite.evaluate import evaluate as judge
    from envace_lite.policy import load_policy
    from envace_lite.records import write_record
    from envace_lite.study import as_table, evaluate_splits, probe_splits, shipped_tasks

    loaded, names = load_policy(policy), _domains(domain)
    if name:
        results = evaluate_splits(loaded, names)
        about = {"kind": "evaluate", "command": _command(), "seed": 0, "title": title, "domains": names}
        write_record(name, {**about, "results": results, "probe": probe_splits(loaded, names)})
    else:
        results = {split: as_table(judge(loaded, shipped_tasks(names, split, limit)))}
    _print_results(results)


def _print_results(results: dict[str, Any]) -> None:
    from envace_lite.evaluate import METRICS

    for split, by_domain in results.items():
        print(f"\n{split:18}" + "".join(f"{name:>24}" for name in by_domain))
        for metric in METRICS:
            cells = [by_domain[name][metric] for name in by_domain]
            shown = ["-" if v is None else f"{v:.3f} ({lo:.3f} to {hi:.3f})" for v, lo, hi in cells]
            print(f"{metric:18}" + "".join(f"{cell:>24}" for cell in shown))


@app.command()
def probe(
    domain: Annotated[str, typer.Option(help="The domain.")] = "retail",
    policy: Annotated[
        Path, typer.Option(help="Folder of a policy, or of any causal model whose chat template has tools.")
    ] = paths.BASE,
    split: Annotated[str, typer.Option(callback=_split, help="test or held_out.")] = "test",
    limit: Annotated[int, typer.Option(help="How many tasks.")] = 40,
    seed: Seed = 0,
    page: Annotated[
        Path | None, typer.Option(help="Where the page goes; figures/probe.html by default.")
    ] = None,
) -> None:
    """What did the rehearse role learn? Rehearsed responses next to real ones, on the same history and call.

    Prints the metrics beside the trivial baselines, the rules that the rehearsed world lacks, fidelity by depth and the
    calibration, and writes a page of all pairs, worst first.
    """
    from envace_lite import fidelity, pages
    from envace_lite.study import load_model, shipped_tasks

    names = _domains(domain)
    known = fidelity.probe_pairs(shipped_tasks(names, "train", limit))
    told = fidelity.report(load_model(policy), shipped_tasks(names, split, limit), seed=seed, known=known)
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
def ranks(
    policy: Annotated[list[str], typer.Option(help="NAME=FOLDER of a policy that acts; give several.")],
    world: Annotated[
        list[str], typer.Option(help="NAME of one whose rehearse role answers all; may be given again.")
    ],
    domain: Domains = "all",
    limit: Annotated[int | None, typer.Option(help="Test tasks of each domain.")] = 100,
) -> None:
    """Does a rehearsed world rank policies as the real one does? Written to data/runs/ranks.json."""
    from envace_lite.study import record_ranks

    folders = {}
    for entry in policy:
        name, equals, folder = entry.partition("=")
        if not equals:
            raise typer.BadParameter(f"{entry!r} is not NAME=FOLDER", param_hint="--policy")
        folders[name] = Path(folder)
    for name in world:
        if name not in folders:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(folders)}", param_hint="--world")
    print(record_ranks(folders, world, _domains(domain), limit, command=_command()).round(3).to_string())


@app.command()
def trap(
    cells: Annotated[
        str, typer.Option(callback=_cells, help="Cells, separated by commas, or `all`.")
    ] = "all",
    seeds: Annotated[int, typer.Option(help="Seeds 0 to N-1.")] = 3,
    seed: Annotated[int | None, typer.Option(help="Only this seed, in this process.")] = None,
    steps: Annotated[int | None, typer.Option(help="Updates in each run; 75 by default.")] = None,
) -> None:
    """Provoke a simpler world: train on tasks that need one rule seldom or never, and see what is delivered.

    Recorded runs are skipped, interrupted ones continued. Two runs at a time, with one thread each.
    """
    from envace_lite.policy import load_policy
    from envace_lite.simpler import CELLS, run_cell, trap_table
    from envace_lite.study import load_records

    names = list(CELLS) if cells == "all" else cells.split(",")
    if seed is not None:
        for name in names:
            run_cell(load_policy(paths.BASE), name, seed, command=_command(), steps=steps)
        return
    options = ["--steps", str(steps)] if steps else []
    failed = _run_missing(
        {
            f"trap-{name}-{number}": ["trap", "--cells", name, "--seed", str(number), *options]
            for number in range(seeds)
            for name in names
        }
    )
    print(trap_table(load_records()))
    if failed:
        raise typer.Exit(1)


def _run_missing(commands: dict[str, list[str]]) -> bool:
    """Run the commands whose record is missing, two at a time; whether one failed. Each writes a log to .work."""
    import subprocess
    from concurrent.futures import ThreadPoolExecutor

    paths.WORK.mkdir(exist_ok=True)

    def run(name: str) -> int:
        log = paths.WORK / f"{name}.log"
        command = [sys.executable, "-m", "envace_lite.cli", *commands[name]]
        with log.open("w", encoding="utf-8") as file:
            code = subprocess.run(command, stdout=file, stderr=file, check=False).returncode
        print(f"{name}: " + ("recorded" if code == 0 else f"failed, see {log}"), flush=True)
        return code

    with ThreadPoolExecutor(2) as pool:
        return any(pool.map(run, [name for name in commands if not (paths.RUNS / f"{name}.json").is_file()]))


@app.command()
def study(
    arms: Annotated[
        str, typer.Option(callback=_arms, help="Arms, separated by commas.")
    ] = "rehearsal,execute,end_at_error",
    seeds: Annotated[int, typer.Option(help="Seeds 0 to N-1.")] = 3,
    steps: Annotated[int, typer.Option(help="Updates in each run.")] = 120,
) -> None:
    """Run every arm with every seed over all domains; recorded runs are skipped, interrupted ones continued.

    Two runs at a time, with one thread each.
    """
    options = ["--steps", str(steps), "--workers", "1"]
    failed = _run_missing(
        {
            f"{arm}-{seed}": ["train", "--arm", arm, "--seed", str(seed), *options]
            for seed in range(seeds)
            for arm in arms.split(",")
        }
    )
    report()
    if failed:
        raise typer.Exit(1)


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
    from envace_lite import bench as measure
    from envace_lite.policy import load_policy
    from envace_lite.records import write_record

    if profile:
        for name, frame in measure.profile(load_policy(paths.BASE)).items():
            print(f"\n{name}\n{frame.round(3).to_string(index=False)}")
        return
    result = measure.bench(repeats, growth)
    for name, frame in measure.frames(result).items():
        print(f"\n{name}\n{frame.to_string(index=False)}")
    write_record("bench", {"kind": "bench", "command": _command(), "seed": 0, "result": result})
    if figure and growth:
        from envace_lite import plots

        plots.save(
            plots.speed(result),
            figure,
            "Rollouts and training steps beside the usual means, and their growth",
        )


@app.command()
def report(
    split: Annotated[str, typer.Option(callback=_split, help="test or held_out.")] = "test",
    by_domain: Annotated[bool, typer.Option(help="One table for each domain.")] = False,
    figures: Annotated[Path | None, typer.Option(help="Also draw all figures into this folder.")] = None,
    write: Annotated[
        list[Path] | None, typer.Option(help="Only fill the tables of this text; may be given again.")
    ] = None,
) -> None:
    """Tables with means and 95 % intervals over the seeds, made from the records in data/runs alone."""
    from envace_lite.domains import DOMAINS
    from envace_lite.study import load_records
    from envace_lite.tables import table
    from envace_lite.texts import fill

    records = load_records()
    for text in write or ():
        text.write_text(fill(text.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"{text}: filled")
    for domain in [*DOMAINS, "all"] if by_domain else ["all"]:
        frame = table(records, split=split, domain=domain)
        print(f"\n{split}, {domain}\n" + (frame.to_string() if len(frame) else "no recorded runs"))
    if figures:
        from envace_lite import plots

        drawn = plots.draw_all(records, figures)
        print("\n".join(map(str, drawn)) or "no recorded runs that would suffice for a figure")


@app.command()
def rehearse(
    domain: Domains = "retail",
    policy: PolicyFolder = paths.BASE,
    budget: Annotated[int, typer.Option(min=1, help="N, imagined continuations before one message.")] = 4,
    mode: Annotated[str, typer.Option(help="parallel or sequential.")] = "parallel",
    scorer: Annotated[
        str, typer.Option(help="agreement, likelihood, no_errors or verdict (trained first).")
    ] = "agreement",
    split: Annotated[str, typer.Option(callback=_split, help="test or held_out.")] = "test",
    limit: Annotated[int, typer.Option(help="Tasks a domain.")] = 50,
    temperature: Annotated[float, typer.Option(help="Of everything that is sampled.")] = 1.0,
    seed: Seed = 0,
) -> None:
    """Let a policy rehearse privately before each committed call, beside plain execution and a vote at equal tokens.

    Prints how it went on the real environment, and one decision step by step. A single look: for curves and
    intervals see `envace deliberate`.
    """
    from envace_lite import deliberate as study
    from envace_lite.policy import load_policy
    from envace_lite.rehearsal.controls import Vote
    from envace_lite.rehearsal.episode import Plain
    from envace_lite.rehearsal.private import MODES, PrivateRehearsal
    from envace_lite.rehearsal.scorers import SCORERS, fit_verdict
    from envace_lite.study import shipped_tasks

    for option, value, known in (("--mode", mode, MODES), ("--scorer", scorer, (*SCORERS, "verdict"))):
        if value not in known:
            raise typer.BadParameter(f"there are {', '.join(known)}; {value!r} is none", param_hint=option)
    names, loaded = _domains(domain), load_policy(policy)
    tasks = shipped_tasks(names, split, limit)
    chosen = (
        fit_verdict(loaded, shipped_tasks(names, "train", 150), seed=seed) if scorer == "verdict" else scorer
    )
    options: dict[str, Any] = {"temperature": temperature, "seed": seed}
    private = PrivateRehearsal(loaded, budget, mode, chosen, **options)
    episodes = private.run(tasks)
    rehearsed = study.as_frame(episodes)
    allowance = study.allowance_of(rehearsed)
    frames = {
        "plain execution": study.as_frame(Plain(loaded, **options).run(tasks)),
        f"private rehearsal, N = {budget}": rehearsed,
        "vote, equal tokens": study.as_frame(Vote(loaded, allowance, **options).run(tasks)),
    }
    metrics = [*list(study.METRICS)[:6], "tokens"]
    print(f"{len(tasks)} tasks" + "".join(f"{name:>28}" for name in frames))
    for metric in metrics:
        cells = [study.summary(frame)["all"][metric] for frame in frames.values()]
        print(f"{metric:20}" + "".join(f"{f'{v:.3f} ({lo:.3f} to {hi:.3f})':>28}" for v, lo, hi in cells))
    episode = next((e for e in episodes if len(e.ledger.decisions) > e.number), episodes[0])
    print(f"\n{episode.task.messages[0]['content']}\n{episode.task.messages[1]['content']}")
    for decision in episode.ledger.decisions:
        print(f"  {decision.line}")
    print(episode.ledger)


@app.command()
def deliberate(
    policy: Annotated[list[str], typer.Option(help="NAME=FOLDER of a policy; may be given again.")],
    domain: Domains = "all",
    methods: Annotated[
        str | None,
        typer.Option(help="Ways of deciding, separated by commas; the default leaves out scratch."),
    ] = None,
    budgets: Annotated[str, typer.Option(help="N, separated by commas.")] = "0,1,2,4,8",
    limit: Annotated[int | None, typer.Option(help="Tasks of each domain and split.")] = None,
    temperature: Annotated[float, typer.Option(help="Of everything that is sampled.")] = 1.0,
    seed: Seed = 0,
    title: Annotated[str, typer.Option(help="How the policies are called in figures.")] = "policy",
    figure: Annotated[Path | None, typer.Option(help="Also draw the curves of these policies.")] = None,
) -> None:
    """Every way of deciding before a committed call, at every budget, at equal tokens; recorded in data/runs.

    The ways: plain, greedy, parallel, sequential, verdict, write, vote, refine, scratch. An interrupted study is
    continued by the same command.
    """
    from envace_lite import deliberate as study
    from envace_lite.policy import load_policy

    names = methods.split(",") if methods else list(study.USUAL)
    for name in names:
        if name not in study.METHODS:
            raise typer.BadParameter(
                f"{name!r}; there are {', '.join(study.METHODS)}", param_hint="--methods"
            )
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
                command=_command(),
                domains=_domains(domain),
                methods=names,
                budgets=[int(budget) for budget in budgets.split(",")],
                limit=limit,
                temperature=temperature,
                seed=seed,
            )
        )
        for kind in study.KINDS:
            frame = study.curve(records[-1], "real_success", kind=kind)
            print(f"\n{name}, {kind}, real success\n{frame.round(3).to_string(index=False)}")
    if figure:
        from envace_lite import plots

        plots.save(
            plots.deliberation(records),
            figure,
            "Real success and wrong writes over the tokens of each way of deciding, on instructions and goals",
        )


def main() -> None:
    """Entry point. Expected mistakes end with one line that says what to do, not with a traceback."""
    from envace_lite.chat import VocabularyError
    from envace_lite.checkpoint import CheckpointError
    from envace_lite.domains import TaskFileError, UnknownDomain
    from envace_lite.policy import PolicyError
    from envace_lite.records import RecordError

    torch.set_num_threads(1)  # the workers are the parallelism
    try:
        app()
    except (CheckpointError, PolicyError, RecordError, TaskFileError, VocabularyError) as error:
        sys.exit(f"envace: {error}")
    except UnknownDomain as error:
        sys.exit(f"envace: {error.args[0]}")
    except OSError as error:
        sys.exit(
            f"envace: {error.filename or 'a file'}: {error.strerror or error}; choose another folder or free it"
        )
    except SystemExit as end:
        if end.code == 130:  # typer's way of saying that the person interrupted
            sys.exit("envace: interrupted; the same command continues from the last checkpoint")
        raise


if __name__ == "__main__":
    main()
