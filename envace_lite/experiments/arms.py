"""The study of training: a base, trained in several ways over several seeds, each run recorded in one small file.

A record keeps one compact row a task, so that an interval can cover bases, seeds and tasks together.

What is simplified against the paper: it compares with training on executable environments and on an external simulator;
here stand beside them rewards that tell less or more, and imitation of real responses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from envace_lite import fidelity
from envace_lite.experiments import rewards
from envace_lite.experiments.anchor import SlowReference
from envace_lite.experiments.grounding import RealResponses
from envace_lite.experiments.records import read_records, without_nan, write_record
from envace_lite.experiments.rows import measure, pack, small_eval
from envace_lite.experiments.thinking import ThinkingExecute, ThinkingRehearse
from envace_lite.fidelity import probe_pairs
from envace_lite.model.checkpoint import claimed
from envace_lite.model.policy import Policy
from envace_lite.reward import Reward, answer_only, end_at_error, task_success
from envace_lite.rollout import Execute, Rehearse, Responder
from envace_lite.train import ExtraLoss, TrainConfig, TrainLog, train
from envace_lite.world import DOMAINS, Task, paths
from envace_lite.world.shipped import shipped_tasks

BASE_MEAN = 0.5
"""The probability of a reward that is drawn at random: about the mean reward of a base."""
ANCHOR_EVERY = 20
"""Steps between two references of an anchored run, and between its checkpoints."""
SPLITS = ("test", "held_out")


@dataclass(frozen=True)
class Arm:
    """One way of training.

    Args:
        title: how it is called in tables and figures.
        responder: makes the responder of the training.
        reward: makes the reward, from the training tasks and the seed.
        changes: what differs in the configuration.
        extra_loss: makes what stands beside the loss of the rollouts; anew for each run.
        real, rehearsed: make the responders with which the trained policy is measured in the two worlds.
    """

    title: str
    responder: Callable[[], Responder] = Rehearse
    reward: Callable[[Sequence[Task], int], Reward] = lambda tasks, seed: task_success
    changes: tuple[tuple[str, Any], ...] = ()
    extra_loss: Callable[[], ExtraLoss | None] = lambda: None
    real: Callable[[], Execute] = Execute
    rehearsed: Callable[[], Responder] = Rehearse


ARMS = {
    "rehearsal": Arm("world rehearsal, task success"),
    "anchored": Arm(
        "world rehearsal, near a slow reference",
        changes=(("save_every", ANCHOR_EVERY),),
        extra_loss=lambda: SlowReference(0.03, ANCHOR_EVERY),
    ),
    "execute": Arm("executable environment, act role trained", Execute),
    "grounded": Arm(
        "executable environment, with the likelihood of its responses",
        Execute,
        extra_loss=lambda: RealResponses(0.1),
    ),
    "imitation": Arm(
        "imitation of the environment's responses alone",
        Execute,
        changes=(("train_act", False), ("train_rehearse", False)),
        extra_loss=lambda: RealResponses(1.0),
    ),
    "drawn": Arm(
        "world rehearsal, reward drawn at random", reward=lambda tasks, seed: rewards.drawn(BASE_MEAN, seed)
    ),
    "answer": Arm("world rehearsal, the label is the answer", reward=lambda tasks, seed: answer_only),
    "state": Arm(
        "world rehearsal, the label is answer and state", reward=lambda tasks, seed: rewards.answer_and_state
    ),
    "verdicts": Arm(
        "world rehearsal, the label has every verdict", reward=lambda tasks, seed: rewards.EveryVerdict(tasks)
    ),
    "end_at_error": Arm(
        "world rehearsal, episode ends at a rehearsed error", reward=lambda tasks, seed: end_at_error
    ),
    "act_only": Arm("world rehearsal, loss on the act role alone", changes=(("train_rehearse", False),)),
    "full": Arm("world rehearsal, all weights", changes=(("lora_rank", 0), ("lr", 2e-4))),
    "scratch": Arm(
        "world rehearsal, scratchpad before each call",
        responder=ThinkingRehearse,
        real=ThinkingExecute,
        rehearsed=ThinkingRehearse,
    ),
}
"""Every way of training. `answer`, `state` and `verdicts` turn the dial of what the label tells: usually it is the
answer and the list of writes.
"""


def run_arm(
    policy: Policy,
    arm: str,
    seed: int,
    config: TrainConfig,
    *,
    base: str = paths.BASE.name,
    domains: Sequence[str] = tuple(DOMAINS),
    command: str,
    name: str | None = None,
    folder: Path | None = None,
    workers: int = 1,
) -> tuple[Policy, dict[str, Any]]:
    """Train one arm with one seed, measure it, and write its record; the policy itself goes to .work/NAME/policy.

    An interrupted run is continued from its checkpoint. A policy that was recorded before is not trained again.

    Args:
        base: how the policy that is trained is called.
        name: of the record; by default that of `run_name`.
        folder: where the record goes; by default data/runs.

    Returns:
        The trained policy and the record.

    Raises:
        CheckpointError, RecordError: a run of another configuration is in the way, or a file cannot be written.
    """
    way = ARMS[arm]
    config = replace(config, seed=seed, **dict(way.changes))
    name = name or run_name(arm, base, seed)
    few, unfamiliar = (shipped_tasks(domains, split, 100 // len(domains)) for split in SPLITS)
    tasks = shipped_tasks(domains, "train")
    with claimed(paths.WORK / name):  # also while it is measured, when its policy and its record are written
        # 1. Train, or go on; every few steps the measures on a few tasks are written into the log.
        trained, log = train(
            policy,
            tasks,
            config,
            responder=way.responder(),
            reward=way.reward(tasks, seed),
            folder=paths.WORK / name,
            eval_callback=small_eval(few, unfamiliar, way.real, way.rehearsed),
            extra_loss=way.extra_loss(),
            workers=workers,
        )
        trained.save(paths.WORK / name / "policy")
        # 2. Measure on all tasks of both splits, with the responders that fit how it was trained.
        about = {
            "kind": "train",
            "command": command,
            "arm": arm,
            "title": way.title,
            "base": base,
            "seed": seed,
            "domains": list(domains),
            "config": asdict(config),
            "totals": log.totals,
            "curve": _thin(log),
            "observed": log.observed,
            **measured(trained, domains, way),
        }
        # 3. One small file, from which every table and figure is made.
        record = without_nan(about)
        write_record(name, record, folder)
    return trained, record


def measured(policy: Policy, domains: Sequence[str], way: Arm = ARMS["rehearsal"]) -> dict[str, Any]:
    """What a record holds of a policy: its `rows` on all tasks of both splits, and its `probe`."""
    rows = {
        split: pack(measure(policy, shipped_tasks(domains, split), way.real(), way.rehearsed()))
        for split in SPLITS
    }
    return {"rows": rows, "probe": probe_splits(policy, domains)}


def _thin(log: TrainLog, every: int = 5) -> list[dict[str, float]]:
    rows = [row for row in log.rows if row["step"] % every == 0 or row["step"] == 1]
    return [{key: round(value, 5) for key, value in row.items()} for row in rows]


def probe_splits(policy: Policy, domains: Sequence[str], limit: int = 50) -> dict[str, Any]:
    """The full probe on `limit` test tasks and as many with held-out tools of each domain."""
    known = probe_pairs(shipped_tasks(domains, "train", limit))
    return {
        split: fidelity.report(policy, shipped_tasks(domains, split, limit), known=known).to_record()
        for split in SPLITS
    }


def load_records(folder: Path | None = None) -> list[dict[str, Any]]:
    """Every record in a folder: what is no arm first, then the arms in their order; within these by name.

    Raises:
        RecordError: naming the file that is not a record.
    """
    order = list(ARMS)
    return sorted(read_records(folder), key=lambda r: order.index(r["arm"]) if r.get("arm") in ARMS else -1)


def run_name(
    arm: str, base: str, seed: int, domains: Sequence[str] = (), steps: int = TrainConfig().steps
) -> str:
    """How a run is recorded: ARM-BASE-SEED, with the `domains` if they are not all, and the steps if unusual."""
    unusual = [f"{steps}steps"] if steps != TrainConfig().steps else []
    return "-".join([arm, base, *domains, *unusual, str(seed)])


def base_name(folder: Path) -> str:
    """How a base is called in names of records: as its folder, or as the run of which the folder is the `policy`."""
    folder = folder.resolve()
    return folder.parent.name if folder.name == "policy" else folder.name
