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
    from envace_lite.study import write_record

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
        str, typer.Option(callback=_arms, help="How: rehearsal, execute, end_at_error, act_only or full.")
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
    from envace_lite.study import as_table, evaluate_splits, shipped_tasks, write_record

    loaded, names = load_policy(policy), _domains(domain)
    if name:
        results = evaluate_splits(loaded, names)
        about = {"kind": "evaluate", "command": _command(), "seed": 0, "title": title, "domains": names}
        write_record(name, {**about, "results": results})
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
    policy: PolicyFolder = paths.BASE,
    split: Annotated[str, typer.Option(callback=_split, help="test or held_out.")] = "test",
    limit: Annotated[int, typer.Option(help="How many tasks.")] = 20,
    seed: Seed = 0,
) -> None:
    """Print rehearsed responses next to real ones, on the same history and the same call."""
    from envace_lite.fidelity import probe as look
    from envace_lite.policy import load_policy
    from envace_lite.study import shipped_tasks

    frame = look(load_policy(policy), shipped_tasks(_domains(domain), split, limit), seed)
    for row in frame.itertuples():
        print(
            f"{'=' if row.exact else 'x'} {row.call}\n    real      {row.real}\n    rehearsed {row.rehearsed}"
        )
    print(
        f"\nfidelity {frame.exact.mean():.3f} over {len(frame)} pairs, {frame.real_error.mean():.0%} of them errors"
    )


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
    import subprocess
    from concurrent.futures import ThreadPoolExecutor

    wanted = [(arm, seed) for seed in range(seeds) for arm in arms.split(",")]
    missing = [(arm, seed) for arm, seed in wanted if not (paths.RUNS / f"{arm}-{seed}.json").is_file()]
    paths.WORK.mkdir(exist_ok=True)

    def run(job: tuple[str, int]) -> int:
        arm, seed = job
        command = ["train", "--arm", arm, "--seed", str(seed), "--steps", str(steps), "--workers", "1"]
        log = paths.WORK / f"{arm}-{seed}.log"
        with log.open("w", encoding="utf-8") as file:
            code = subprocess.run(
                [sys.executable, "-m", "envace_lite.cli", *command], stdout=file, stderr=file, check=False
            ).returncode
        print(f"{arm} seed {seed}: " + ("recorded" if code == 0 else f"failed, see {log}"))
        return code

    with ThreadPoolExecutor(2) as pool:
        codes = list(pool.map(run, missing))
    report()
    if any(codes):
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
    from envace_lite.study import write_record

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
def assignments() -> None:
    """Make the student's copies, the solutions, the nbgrader sources and the rubric from the masters."""
    from envace_lite.assignments import generate

    for path in generate():
        print(path.relative_to(paths.ROOT))


@app.command()
def grade(
    folder: Annotated[Path, typer.Argument(help="Holds STUDENT/ASSIGNMENT.ipynb for each submission.")],
    out: Annotated[Path, typer.Option(help="Folder for grades.csv and the feedback.")] = Path("grades"),
    seconds: Annotated[float, typer.Option(help="How long one question may take.")] = 10.0,
) -> None:
    """Grade a folder of submissions on this machine: points as CSV, feedback for each student.

    It runs the students' code with your rights.
    """
    from envace_lite.grading import grade_folder

    grades = grade_folder(folder, out, seconds)
    if grades.empty:
        sys.exit(f"envace: no STUDENT/ASSIGNMENT.ipynb in {folder} has the name of an assignment")
    print(grades.groupby(["student", "assignment"])[["points", "of"]].sum().to_string())
    print(f"\nquestion by question: {out / 'grades.csv'}")


@app.command()
def site(
    out: Annotated[Path, typer.Option(help="Folder for the pages.")] = paths.ROOT / "site",
) -> None:
    """Render the course as static HTML with an index; the pages need no server and no network."""
    from envace_lite.site import build

    print(f"open {build(out)}")


@app.command()
def report(
    split: Annotated[str, typer.Option(callback=_split, help="test or held_out.")] = "test",
    by_domain: Annotated[bool, typer.Option(help="One table for each domain.")] = False,
    figure: Annotated[
        Path | None, typer.Option(help="Also draw the curves of the arms to this file.")
    ] = None,
) -> None:
    """Tables with means and 95 % intervals over the seeds, made from the records in data/runs alone."""
    from envace_lite.domains import DOMAINS
    from envace_lite.study import load_records, table

    records = load_records()
    for domain in [*DOMAINS, "all"] if by_domain else ["all"]:
        frame = table(records, split=split, domain=domain)
        print(f"\n{split}, {domain}\n" + (frame.to_string() if len(frame) else "no recorded runs"))
    if figure:
        from envace_lite import plots

        runs = [r for r in records if r.get("kind") == "train" and len(r["domains"]) == len(DOMAINS)]
        if not runs:
            print(f"no recorded runs over several domains, so {figure} is not drawn")
            return
        plots.save(
            plots.arms(runs), figure, "Real success, fidelity and optimism over the steps, by way of training"
        )


def main() -> None:
    """Entry point. Expected mistakes end with one line that says what to do, not with a traceback."""
    from envace_lite.assignments import MasterError
    from envace_lite.chat import VocabularyError
    from envace_lite.checkpoint import CheckpointError
    from envace_lite.domains import TaskFileError, UnknownDomain
    from envace_lite.policy import PolicyError
    from envace_lite.study import RecordError

    torch.set_num_threads(1)  # the workers are the parallelism
    try:
        app()
    except (CheckpointError, MasterError, PolicyError, RecordError, TaskFileError, VocabularyError) as error:
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
