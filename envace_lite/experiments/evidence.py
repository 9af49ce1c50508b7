"""The evidence: what each way of training makes of a base, on worlds whose responses matter.

A cell is a base, a way of training and a seed. Each is recorded with one compact row a task, so that an interval can
cover bases, seeds and tasks together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from envace_lite.experiments import rewards
from envace_lite.experiments.anchor import SlowReference
from envace_lite.experiments.grounding import RealResponses
from envace_lite.experiments.records import write_record
from envace_lite.experiments.rows import MEASURES, measure, pack, value
from envace_lite.model.checkpoint import claimed
from envace_lite.model.policy import Policy
from envace_lite.reward import Reward, answer_only, end_at_error, task_success
from envace_lite.rollout import Execute, Rehearse, Responder
from envace_lite.train import EvalCallback, ExtraLoss, TrainConfig, train
from envace_lite.world import DEPENDENT, Task, paths
from envace_lite.world.shipped import shipped_tasks

BASE_MEAN = 0.5
"""The probability of a reward that is drawn at random: about the mean reward of a base."""
ANCHOR_EVERY = 20
"""Steps between two references of an anchored run, and between its checkpoints."""
TWICE = (("prompts", 12), ("steps", 240), ("observe_every", 40))
"""Half the tasks a step in twice the steps: as many rollouts as usual, and twice the updates."""


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
        changes=(*TWICE, ("save_every", ANCHOR_EVERY)),
        extra_loss=lambda: SlowReference(0.03, ANCHOR_EVERY),
    ),
    "twice": Way("world rehearsal, half the tasks in twice the steps", changes=TWICE),
    "execute": Way("executable environment, act role trained", Execute),
    "execute_twice": Way("executable environment, half the tasks in twice the steps", Execute, changes=TWICE),
    "grounded": Way(
        "executable environment, with the likelihood of its responses",
        Execute,
        extra_loss=lambda: RealResponses(0.1),
    ),
    "grounded_twice": Way(
        "executable environment, with the likelihood of its responses, half the tasks in twice the steps",
        Execute,
        changes=TWICE,
        extra_loss=lambda: RealResponses(0.1),
    ),
    "end_at_error_twice": Way(
        "world rehearsal, episode ends at a rehearsed error, half the tasks in twice the steps",
        reward=lambda tasks, seed: end_at_error,
        changes=TWICE,
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


def small_measure(test: Sequence[Task], held_out: Sequence[Task]) -> EvalCallback:
    """An eval callback: the measures of `value` on a few tasks."""

    def observe(step: int, policy: Policy, _: object) -> dict[str, float]:
        seen: dict[str, float] = {}
        for split, tasks in (("", test), ("held_out_", held_out)):
            rows = measure(policy, tasks)
            seen |= {split + name: round(value(rows, name), 4) for name in MEASURES}
        return seen

    return observe


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
