"""The simpler world, provoked: training that never needs one rule of the real world, and what may mend it.

In the `trap` domain a dial sets how many training tasks need the rule `stock`. Each *cell* of the study trains one
policy from the shipped base and asks three things: does its rehearsed world have the rule, what did training promise,
and what does the policy deliver where the rule matters?

What is simplified against the paper: a rule that is left out on purpose stands for whatever the training tasks of a
real system do not cover.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pandas as pd

from envace_lite.evaluate import Report, evaluate
from envace_lite.experiments.grounding import Grounding
from envace_lite.experiments.records import of_kind, write_record
from envace_lite.experiments.rewards import REWARDS
from envace_lite.experiments.tables import markdown, with_interval
from envace_lite.fidelity import missing_rules, probe_pairs, rules
from envace_lite.fidelity.measures import interval
from envace_lite.model.checkpoint import claimed
from envace_lite.model.policy import Policy
from envace_lite.rollout import rollout
from envace_lite.train import TrainConfig, train
from envace_lite.world import TRAP, Task, paths

TRAP_CONFIG = TrainConfig(steps=60, prompts=16, group_size=8, lr=1e-3, warmup=10)
TRAINING_TASKS, TEST_TASKS = 800, 100
"""How many are drawn; test tasks for each of the two kinds, those that need the rule and those that do not."""


@dataclass(frozen=True)
class Cell:
    """One way of training on the trap domain.

    Args:
        title: how it is called in tables and figures.
        dial: share of the training tasks that need the rule.
        without: what the tasks that do not need the rule do without, a name in `world.trap.WITHOUT`.
        reward: a name in `experiments.rewards.REWARDS`.
        grounding: draws real responses to imitate from the training tasks; None in world rehearsal.
    """

    title: str
    dial: float = 0.0
    without: str = "refusals"
    reward: str = "task_success"
    grounding: Callable[[Policy, int], Grounding] | None = None


def few_examples(policy: Policy, seed: int, count: int = 16) -> Grounding:
    """A few real errors of the missing rule, as somebody would collect them who has read the diagnosis."""
    pairs = probe_pairs(TRAP.tasks("train", 1.0, 60, seed), seed)
    broken = [pair for pair in pairs if pair.real.error == TRAP.rule]
    return Grounding(_examples(policy, broken[:count]), seed=seed)


def _examples(policy: Policy, pairs: Sequence[Any]) -> list[tuple[list[int], list[int]]]:
    chat = policy.compact
    return [
        (
            chat.render(pair.messages, pair.task.tools, prompt=pair.call.name),
            [*chat.encode(pair.real.text), chat.end],
        )
        for pair in pairs
    ]


DIALS = (0.0, 0.05, 0.2)
CELLS = {
    **{f"dial-{100 * dial:.0f}": Cell(f"{dial:.0%} of the tasks need the rule", dial) for dial in DIALS},
    "other_tools": Cell("0%, other tools are refused", without="tool"),
    "other_rules": Cell("0%, the rule alone is left out", without="rule"),
    "self_judged": Cell("20%, judged by the rehearsed state itself", 0.2, reward="self_judged"),
    "few_examples": Cell("0%, and 16 real errors of the rule", grounding=few_examples),
}
"""`few_examples` uses real responses: a departure from the paper, here to be compared with."""
COMPARED = ("dial-0", "other_tools", "other_rules", "few_examples", "dial-20", "self_judged")
"""What a figure sets side by side: what stands beside the rule where no task needs it, and two rewards at one dial."""


COLUMNS = {
    "recall": "recall of the rule",
    "promised": "promised",
    "delivered": "delivered step by step",
    "as_rehearsed": "delivered as rehearsed",
    "gap": "gap",
    "elsewhere": "real success elsewhere",
}
"""The columns of the study's table; `outcome` says what they are."""


def run_cell(base: Policy, name: str, seed: int, *, command: str, steps: int | None = None) -> dict[str, Any]:
    """Train one cell with one seed, assess it, and write its record; the policy goes to .work/trap-NAME-SEED/policy.

    An interrupted run is continued.
    """
    cell = CELLS[name]
    config = replace(TRAP_CONFIG, seed=seed, steps=steps or TRAP_CONFIG.steps)
    grounding = cell.grounding(base, seed) if cell.grounding else None
    with claimed(paths.WORK / f"trap-{name}-{seed}"):
        trained, log = train(
            base,
            TRAP.tasks("train", cell.dial, TRAINING_TASKS, seed, without=cell.without),
            config,
            reward=REWARDS[cell.reward],
            folder=paths.WORK / f"trap-{name}-{seed}",
            extra_loss=grounding,
        )
        trained.save(paths.WORK / f"trap-{name}-{seed}" / "policy")
        record = {
            "kind": "trap",
            "command": command,
            "cell": name,
            "title": cell.title,
            "dial": cell.dial,
            "seed": seed,
            "config": asdict(config),
            "totals": log.totals | {"real_examples": len(grounding.examples) if grounding else 0},
            "results": assess(trained, cell),
        }
        write_record(f"trap-{name}-{seed}", record)
    return record


def assess(policy: Policy, cell: Cell, tasks_each: int = TEST_TASKS) -> dict[str, Any]:
    """What training promised, what deployment delivers, and which rules the rehearsed world lacks.

    Returns:
        `promised`: mean reward, by the cell's own reward, of greedy rehearsal on tasks like those of training.
        `needs` and `others`: metrics on the two kinds of test tasks. `rules`, `missing_rules`: the diagnosis.
    """
    # Two kinds of test tasks, apart: the rule matters in all of the first and in none of the second.
    groups = {
        "needs": TRAP.tasks("test", 1.0, tasks_each),
        "others": TRAP.tasks("test", 0.0, tasks_each, without=cell.without),
    }
    reports = {name: evaluate(policy, tasks) for name, tasks in groups.items()}
    rewards = {name: _rehearsed_rewards(policy, tasks, cell) for name, tasks in groups.items()}
    # The promise is what a log of training would show: both kinds, mixed as they were in training.
    promised = cell.dial * rewards["needs"].mean() + (1 - cell.dial) * rewards["others"].mean()
    pairs = pd.concat([report.pairs for report in reports.values()])
    return {
        "promised": round(float(promised), 4),
        **{name: _metrics(report) for name, report in reports.items()},
        "rules": rules(pairs).round(4).to_dict("index"),
        "missing_rules": missing_rules(pairs),
    }


def _rehearsed_rewards(policy: Policy, tasks: Sequence[Task], cell: Cell) -> pd.Series:
    return pd.Series([REWARDS[cell.reward](t) for t in rollout(policy, tasks, temperature=0.0)])


def _metrics(report: Report) -> dict[str, list[float]]:
    names = (
        "real_success",
        "rehearsed_success",
        "wm2real",
        "wrong_writes",
        "fidelity",
        "error_recall",
        "optimism",
    )
    return {name: [round(v, 4) for v in interval(report.counts(name)).values()] for name in names}


def outcome(results: dict[str, Any]) -> dict[str, float]:
    """The numbers that a cell's results come to.

    Returns:
        `recall` of the rule; `promised`; `delivered`: real success, where the rule matters, of a policy that reads the
        real responses; `as_rehearsed`: that of its rehearsed calls when they are carried out unseen (`wm2real`);
        `gap`: promised minus delivered as rehearsed; `elsewhere`: real success where the rule does not matter.
    """
    promised, needs = results["promised"], results["needs"]
    return {
        "recall": results["rules"][TRAP.rule]["recall"],
        "promised": promised,
        "delivered": needs["real_success"][0],
        "as_rehearsed": needs["wm2real"][0],
        "gap": promised - needs["wm2real"][0],
        "elsewhere": results["others"]["real_success"][0],
    }


def trap_table(records: Sequence[dict[str, Any]]) -> str:
    """The study as markdown, made from the records alone: means over the seeds with 95 % intervals."""
    lines: dict[str, dict[str, Any]] = {}
    for name, cell in CELLS.items():
        runs = [r["results"] for r in of_kind("trap", records) if r["cell"] == name]
        if runs:
            numbers = pd.DataFrame([outcome(results) for results in runs])
            lines[cell.title] = {"seeds": len(runs)}
            for key, heading in COLUMNS.items():
                lines[cell.title][heading] = with_interval(list(numbers[key]), share=key != "gap")
            lines[cell.title]["the diagnosis names"] = "; ".join(
                " ".join(r["missing_rules"]) or "none" for r in runs
            )
    return markdown(pd.DataFrame(lines).T.rename_axis("training")) if lines else ""
