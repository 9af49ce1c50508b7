"""The evidence: what each way of training makes of a base, on worlds whose responses matter.

A cell is a base, a way of training and a seed. Each is recorded with one compact row a task, so that an interval can
cover bases, seeds and tasks together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pandas as pd

from envace_lite.evaluate import deploy, rehearsed_alone
from envace_lite.experiments import rewards
from envace_lite.experiments.anchor import SlowReference
from envace_lite.experiments.grounding import RealResponses
from envace_lite.experiments.records import write_record
from envace_lite.fidelity import ask, compare, probe_pairs
from envace_lite.fidelity.parts import parts
from envace_lite.model.checkpoint import claimed
from envace_lite.model.policy import Policy
from envace_lite.reward import Reward, answer_only, task_success
from envace_lite.rollout import Execute, Rehearse, Responder
from envace_lite.train import EvalCallback, ExtraLoss, TrainConfig, train
from envace_lite.world import DEPENDENT, Task, paths
from envace_lite.world.shipped import shipped_tasks
from envace_lite.world.task import NEWS

BASE_MEAN = 0.5
"""The probability of a reward that is drawn at random: about the mean reward of a base."""


ANCHOR_EVERY = 20
"""Steps between two references of an anchored run, and between its checkpoints."""


@dataclass(frozen=True)
class Way:
    """A way of training a base.

    Args:
        title: how it is called in tables and figures.
        responder: makes the responder of the training.
        reward: makes the reward, from the training tasks and the seed.
        changes: what differs in the configuration.
        extra_loss: makes what stands beside the loss of the rollouts; anew for each run.
    """

    title: str
    responder: Callable[[], Responder] = Rehearse
    reward: Callable[[Sequence[Task], int], Reward] = lambda tasks, seed: task_success
    changes: tuple[tuple[str, Any], ...] = ()
    extra_loss: Callable[[], ExtraLoss | None] = lambda: None


WAYS = {
    "rehearsal": Way("world rehearsal, task success"),
    "anchored": Way(
        "world rehearsal, half the tasks in twice the steps, near a slow reference",
        changes=(("prompts", 12), ("steps", 240), ("save_every", ANCHOR_EVERY), ("observe_every", 40)),
        extra_loss=lambda: SlowReference(0.03, ANCHOR_EVERY),
    ),
    "execute": Way("executable environment, act role trained", Execute),
    "grounded": Way(
        "executable environment, with the likelihood of its responses",
        Execute,
        extra_loss=lambda: RealResponses(0.1),
    ),
    "imitation": Way(
        "imitation of the environment's responses alone",
        Execute,
        changes=(("train_act", False), ("train_rehearse", False)),
        extra_loss=lambda: RealResponses(1.0),
    ),
    "drawn": Way(
        "world rehearsal, reward drawn at random", reward=lambda tasks, seed: rewards.drawn(BASE_MEAN, seed)
    ),
    "answer": Way("world rehearsal, the label is the answer", reward=lambda tasks, seed: answer_only),
    "state": Way(
        "world rehearsal, the label is answer and state", reward=lambda tasks, seed: rewards.answer_and_state
    ),
    "verdicts": Way(
        "world rehearsal, the label has every verdict", reward=lambda tasks, seed: rewards.EveryVerdict(tasks)
    ),
}
"""Every way of training. The last three turn the dial of what the label tells: usually it is answer and writes."""

SPLITS = ("test", "held_out")


def measure(policy: Policy, tasks: Sequence[Task]) -> dict[str, list[Any]]:
    """One compact row a task, as columns in the order of the tasks.

    `real`, `rehearsed`: success in the two worlds (1 or 0). `wrong`: wrong writes. `pairs`, `exact`: probe pairs and
    those told right in every word; `errors`, `recalled`: real errors among them and those told as an error;
    `successes`, `refused`: real successes and those told as an error; `contents`: real successes told right in every
    word. `bearing`, `bearing_right`: parts of planned responses on which decisions rest, and those told right; `idle`,
    `idle_right`: the other parts. And for each of `GROUPS` whether the task belongs to it (1 or 0).
    """
    frame = deploy(policy, tasks)[1].set_index("task")
    frame["rehearsed"] = rehearsed_alone(policy, tasks).rehearsed_success.to_numpy()
    pairs = probe_pairs(tasks)
    told = compare(pairs, [answer.response for answer in ask(policy, pairs)])
    flags = pd.DataFrame(
        {
            "task": told.task,
            "pairs": 1,
            "exact": told.exact,
            "errors": told.real_error,
            "recalled": told.real_error & told.rehearsed_error,
            "successes": ~told.real_error,
            "refused": ~told.real_error & told.rehearsed_error,
            "contents": ~told.real_error & told.exact,
        }
    )
    each = parts(policy, pairs)
    halves = pd.DataFrame(
        {
            "task": each.task,
            "bearing": each.bearing,
            "bearing_right": each.bearing & each.right,
            "idle": ~each.bearing,
            "idle_right": ~each.bearing & each.right,
        }
    )
    table = pd.DataFrame(
        {"real": frame.real_success, "rehearsed": frame.rehearsed, "wrong": frame.wrong_writes}
    )
    for columns in (flags, halves):
        table = table.join(columns.groupby("task").sum())
    ordered = table.reindex([task.id for task in tasks]).fillna(0).astype(int)
    return {**{str(name): column.tolist() for name, column in ordered.items()}, **groups(tasks)}


GROUPS = ("goal", "secret", *(f"new:{what}" for what in NEWS))
"""The tags by which tasks are looked at apart."""


def groups(tasks: Sequence[Task]) -> dict[str, list[int]]:
    """For each of `GROUPS` which of some tasks belong to it (1 or 0)."""
    return {tag: [int(tag in task.tags) for task in tasks] for tag in GROUPS}


DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def pack(rows: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """Each column as one word, a digit a task (base 36): what a record holds.

    Raises:
        IndexError: a number is above 35.
    """
    return {name: "".join(DIGITS[number] for number in column) for name, column in rows.items()}


def unpack(packed: Mapping[str, str]) -> dict[str, list[int]]:
    """The columns of `pack`."""
    return {name: [int(digit, 36) for digit in column] for name, column in packed.items()}


def small_measure(test: Sequence[Task], held_out: Sequence[Task]) -> EvalCallback:
    """An eval callback: the measures of `value` on a few tasks."""

    def observe(step: int, policy: Policy, _: object) -> dict[str, float]:
        seen: dict[str, float] = {}
        for split, tasks in (("", test), ("held_out_", held_out)):
            rows = measure(policy, tasks)
            seen |= {split + name: round(value(rows, name), 4) for name in MEASURES}
        return seen

    return observe


MEASURES = {
    "real_success": ("real", ""),
    "rehearsed_success": ("rehearsed", ""),
    "wrong_writes": ("wrong", ""),
    "fidelity": ("exact", "pairs"),
    "bearing": ("bearing_right", "bearing"),
    "idle": ("idle_right", "idle"),
    "contents": ("contents", "successes"),
    "error_recall": ("recalled", "errors"),
    "pessimism": ("refused", "successes"),
}
"""What is reported: the columns of `measure` that are divided by one another ("": by the number of tasks)."""


def value(rows: dict[str, list[Any]], name: str) -> float:
    """One measure over some tasks; NaN where nothing can be counted."""
    over, under = MEASURES[name]
    size = sum(rows[under]) if under else len(rows[over])
    return sum(rows[over]) / size if size else float("nan")


def run_cell(
    policy: Policy,
    base: str,
    way: str,
    seed: int,
    config: TrainConfig,
    *,
    command: str,
    workers: int = 1,
    watch: bool = True,
) -> tuple[Policy, dict[str, Any]]:
    """Train a base in one way with one seed, measure it, and write the record `evidence-BASE-WAY-SEED`.

    An interrupted run is continued from its checkpoint.
    """
    how, name = WAYS[way], f"evidence-{base}-{way}-{seed}"
    config = replace(config, seed=seed, **dict(how.changes))
    domains = list(DEPENDENT)
    watched = [shipped_tasks(domains, split, 25) for split in SPLITS]
    tasks = shipped_tasks(domains, "train")
    with claimed(paths.WORK / name):
        trained, log = train(
            policy,
            tasks,
            config,
            responder=how.responder(),
            reward=how.reward(tasks, seed),
            folder=paths.WORK / name,
            eval_callback=small_measure(*watched) if watch else None,
            extra_loss=how.extra_loss(),
            workers=workers,
        )
        trained.save(paths.WORK / name / "policy")
        record = {
            "kind": "evidence",
            "command": command,
            "base": base,
            "way": way,
            "title": how.title,
            "seed": seed,
            "domains": domains,
            "config": asdict(config),
            "totals": log.totals,
            "curve": [
                {key: round(number, 5) for key, number in row.items()}
                for row in log.rows
                if row["step"] % 5 == 0 or row["step"] == 1
            ],
            "observed": log.observed,
            "rows": {split: pack(measure(trained, shipped_tasks(domains, split))) for split in SPLITS},
        }
        write_record(name, record)
    return trained, record
