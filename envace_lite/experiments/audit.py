"""What a sceptic asks before believing a result: what the base knew already, and how much the label tells.

Two questions, each answered by counting on the shipped tasks:

1. The base has read true traces before unreliable ones. Which probability does it give the true response, in every
   word, before any rehearsal?
2. The label lists the writes of an acceptable end. So it tells of each planned write whether it has to succeed. Which
   changes of a true response does task success notice?
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from envace_lite.experiments.records import of_kind, write_record
from envace_lite.experiments.tables import markdown
from envace_lite.fidelity import probe_pairs
from envace_lite.fidelity.measures import interval
from envace_lite.model.policy import Family, Policy
from envace_lite.reward import task_success
from envace_lite.rollout import ACT, Trajectory
from envace_lite.world import DOMAINS, Task, get_domain
from envace_lite.world.result import Result
from envace_lite.world.shipped import shipped_tasks
from envace_lite.world.tools import ToolResponse, parse_calls


def true_response_probability(policy: Policy, tasks: Sequence[Task]) -> dict[str, dict[str, float]]:
    """The probability of the whole true response, where it is a success and where it is an error: mean with interval.

    The calls fit the tools' documentation; half of the responses are errors.
    """
    chat, pairs = policy.compact, probe_pairs(tasks)
    families = [
        Family(
            chat.render(pair.messages, pair.task.tools, prompt=pair.call.name),
            [[*chat.encode(pair.real.text), chat.end]],
        )
        for pair in pairs
    ]
    log_p, _ = policy.log_probs(families)
    ends = np.cumsum([family.length - len(family.prompt) for family in families])
    sums = [float(part.sum()) for part in log_p.tensor_split(ends[:-1].tolist())]
    frame = pd.DataFrame(
        {
            "task": [pair.task.id for pair in pairs],
            "error": [pair.real.error is not None for pair in pairs],
            "probability": np.exp(sums),
        }
    )
    told = {}
    for error, part in frame.groupby("error"):
        by_task = part.groupby("task").probability.agg(["sum", "size"])
        counts = (by_task["sum"].to_numpy(float), by_task["size"].to_numpy(float))
        told["error" if error else "success"] = {"pairs": len(part), **interval(counts)}
    return told


def real_episode(task: Task) -> Trajectory:
    """A task's plan, carried out on the real environment, with the answers of its first outcome."""
    session, made = get_domain(task.domain).reset(task), Trajectory(task, [], [0], [ACT], [0.0])
    for text in (text for turn in task.plan for text in turn):
        (call,) = parse_calls(text, task.tools)
        made.exchanges.append((call, session.call(call)))
    made.answers, made.stop_reason = list(task.outcomes[0].answers), "answer"
    return made


CHANGES = ("another rule", "other words seen", "verdict turned round")
"""Ways of making a true response untrue."""


def changed(response: Result, write: bool) -> Iterator[tuple[str, ToolResponse]]:
    """Untrue forms of a true response of a toy world."""
    seen, error, effects = response.value, response.error, response.changed
    if error is not None:
        yield "another rule", ToolResponse(seen, "status" if error != "status" else "unknown", effects)
    if seen:
        yield "other words seen", ToolResponse(dict.fromkeys(seen, "wrong"), error, effects)
    if write:
        told = ToolResponse(seen, None, {"something": "else"})
        refused = ToolResponse(seen, "status", {})
        yield "verdict turned round", told if error is not None else refused


def what_the_label_notices(tasks: Sequence[Task]) -> dict[str, dict[str, int]]:
    """How often one response of a true episode was made untrue in each way, and how often task success was still 1."""
    counts = {name: {"tried": 0, "reward stays 1": 0} for name in CHANGES}
    for task in tasks:
        true, tools = real_episode(task), get_domain(task.domain).tools
        assert task_success(true) == 1.0
        for place, (call, response) in enumerate(true.exchanges):
            for name, untrue in changed(response, tools[call.name].write):
                exchanges = [*true.exchanges]
                exchanges[place] = (call, untrue)
                counts[name]["tried"] += 1
                counts[name]["reward stays 1"] += int(task_success(replace(true, exchanges=exchanges)))
    return counts


def audit(policy: Policy, *, command: str, limit: int | None = None) -> dict[str, Any]:
    """Answer both questions for a base, and write the record `audit`.

    Args:
        limit: tasks of each domain and split.

    Returns:
        `true_response`: see `true_response_probability`, on test tasks and on held-out tools. `label`: see
        `what_the_label_notices`, on test tasks. `label_calls`: calls of the real environment with which the labels of
        all training tasks were made.
    """
    tasks = {split: shipped_tasks(DOMAINS, split, limit) for split in ("train", "test", "held_out")}
    plans = [text for task in tasks["train"] for turn in task.plan for text in turn]
    found = {
        "true_response": {s: true_response_probability(policy, tasks[s]) for s in ("test", "held_out")},
        "label": what_the_label_notices(tasks["test"]),
        "label_calls": {"training tasks": len(tasks["train"]), "calls": len(plans)},
    }
    record = {
        "kind": "audit",
        "command": command,
        "seed": 0,
        "config": {"limit": limit},
        "domains": list(DOMAINS),
    }
    write_record("audit", {**record, **found})
    return found


def audit_table(records: Sequence[dict[str, Any]]) -> str:
    """Both answers as markdown, made from the record alone."""
    for record in of_kind("audit", records):
        rows = {}
        for split, words in (("test", "test tasks"), ("held_out", "held-out tools")):
            for kind, p in record["true_response"][split].items():
                counted = f"{p['value']:.3f} ({p['low']:.3f} to {p['high']:.3f})"
                rows[f"probability of the true response, {words}, {kind}"] = counted
        for name, found in record["label"].items():
            rows[f"reward still 1 with {name}"] = f"{found['reward stays 1']:,} of {found['tried']:,}"
        made = record["label_calls"]
        tasks = made["training tasks"]
        rows["real calls that made the labels"] = f"{made['calls']:,} for {tasks:,} training tasks"
        return markdown(pd.DataFrame({"counted": rows}).rename_axis("what"))
    return ""
