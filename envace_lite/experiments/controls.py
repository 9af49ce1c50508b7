"""Controls that a sceptic asks for: what a scalar, or a choice among samples, makes of a base that learns nothing.

A scalar makes every error more or less likely and changes nothing else; it is chosen on pairs of training tasks, for
all domains together or for each. The oracle picks among samples with the truth in hand, so it bounds what selection
alone could give.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from envace_lite.experiments.arms import SPLITS, probe_splits
from envace_lite.experiments.records import write_record
from envace_lite.experiments.rows import Rows, groups, measure, pack
from envace_lite.experiments.tables import CONTROLS
from envace_lite.fidelity import ProbePair, probe_pairs, rehearse
from envace_lite.fidelity.parts import right_slots, slots
from envace_lite.model.decoding import complete
from envace_lite.model.policy import Policy
from envace_lite.rollout import Execute, rollout
from envace_lite.world import DOMAINS, Task
from envace_lite.world.result import Result
from envace_lite.world.shipped import shipped_tasks
from envace_lite.world.tools import UNKNOWN, ToolResponse

GRID = (-6.0, -4.0, -3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0)
"""The scalars that are tried."""
SAMPLES = 8
"""How many the oracle may choose from: as many as a group has rollouts."""


def with_bias(policy: Policy, bias: float) -> Policy:
    """The policy with a constant added to the logits of `error` and of every record that is told as `unknown`.

    Only responses hold these words, so the act role is untouched.
    """
    plain = policy.folded()
    model = copy.deepcopy(plain.model)
    words = torch.tensor([word == "error" or word.endswith(f":{UNKNOWN}") for word in policy.compact.words])
    head = torch.nn.Linear(model.config.hidden_size, len(policy.compact.words))
    head.weight, head.bias = model.lm_head.weight, torch.nn.Parameter(bias * words.float(), False)
    model.lm_head = head
    return Policy(model, policy.compact)


def best_scalar(policy: Policy, pairs: Sequence[ProbePair]) -> float:
    """The scalar of `GRID` with the highest fidelity on some pairs; of equal ones the smallest."""
    right = {bias: _right(rehearse(with_bias(policy, bias), pairs), pairs) for bias in GRID}
    return max(GRID, key=lambda bias: (right[bias], -abs(bias)))


def _right(responses: Sequence[Result], pairs: Sequence[ProbePair]) -> int:
    return sum(mine == pair.real for mine, pair in zip(responses, pairs, strict=True))


def oracle_of_samples(policy: Policy, tasks: Sequence[Task], seed: int = 0) -> Rows:
    """Rows as in `rows.measure`, where the best of `SAMPLES` samples counts, by the truth.

    `real`: whether one of so many episodes on the real environment succeeds. `exact`, `contents`: whether one of so
    many sampled responses equals the real one. `bearing_right`, `idle_right`: the parts that are right in the sample in
    which most parts of that kind are.
    """
    generator = torch.Generator().manual_seed(seed)
    responder = Execute()
    trajectories = rollout(policy, tasks, responder, group_size=SAMPLES, generator=generator)
    succeeded = [
        session.verify(trajectory.answers).success
        for trajectory, session in zip(trajectories, responder.sessions, strict=True)
    ]
    rows: Rows = {
        "real": [int(any(succeeded[start : start + SAMPLES])) for start in range(0, len(succeeded), SAMPLES)]
    }
    pairs = probe_pairs(tasks)
    prompts = [policy.chat.render(p.messages, p.task.tools, prompt=p.call.name) for p in pairs]
    roles = [p.call.name for p in pairs]
    sampled = [
        complete(policy, prompts, roles=roles, temperature=1.0, generator=generator) for _ in range(SAMPLES)
    ]
    place = {task.id: number for number, task in enumerate(tasks)}
    counted = ("pairs", "exact", "successes", "contents", "bearing", "bearing_right", "idle", "idle_right")
    rows |= {name: [0] * len(tasks) for name in counted}
    for pair, told in zip(pairs, zip(*sampled, strict=True), strict=True):
        right = [right_slots(pair.real, ToolResponse.parse(text)) for text, _ in told]
        exact = any(ToolResponse.parse(text) == pair.real for text, _ in told)
        success = pair.real.error is None
        numbers = {"pairs": 1, "exact": exact, "successes": success, "contents": success and exact}
        if pair.planned:
            resting = set(pair.rests)
            for name, kind in (("bearing", resting), ("idle", {*slots(pair.real)} - resting)):
                numbers[name] = len(kind & {*slots(pair.real)})
                numbers[f"{name}_right"] = max(len(kind & some) for some in right)
        for name, number in numbers.items():
            rows[name][place[pair.task.id]] += number
    return {**rows, **groups(tasks)}


def record_controls(policy: Policy, base: str, *, command: str, tuned_on: int = 60) -> dict[str, Any]:
    """The base and its controls on all tasks, and the probe of the base; written to the record `controls-BASE`.

    Args:
        tuned_on: training tasks of each domain on whose pairs the scalars are chosen.
    """
    domains = list(DOMAINS)
    tuning = {name: probe_pairs(shipped_tasks([name], "train", tuned_on)) for name in domains}
    one = best_scalar(policy, [pair for pairs in tuning.values() for pair in pairs])
    by_domain = {name: best_scalar(policy, pairs) for name, pairs in tuning.items()}
    rows: dict[str, dict[str, Any]] = {}
    for split in SPLITS:
        tasks = {name: shipped_tasks([name], split) for name in domains}
        everything = [task for some in tasks.values() for task in some]
        parts = [measure(with_bias(policy, by_domain[name]), some) for name, some in tasks.items()]
        rows[split] = {
            "base": measure(policy, everything),
            "scalar": measure(with_bias(policy, one), everything),
            "scalar_by_domain": {
                column: [number for part in parts for number in part[column]] for column in parts[0]
            },
            "oracle": oracle_of_samples(policy, everything),
        }
    record = {
        "kind": "controls",
        "command": command,
        "seed": 0,
        "base": base,
        "domains": domains,
        "scalars": {"all": one, **by_domain},
        "rows": {split: {name: pack(some) for name, some in each.items()} for split, each in rows.items()},
        "title": CONTROLS["base"],
        "probe": probe_splits(policy, domains),
    }
    write_record(f"controls-{base}", record)
    return record
