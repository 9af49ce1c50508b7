"""Responses part by part: which of them decisions rest on, and what a policy makes of each.

The idea of world rehearsal promises realism where it affects decisions, and nowhere else. So each part of a real
response is looked at by itself: a record that was looked up, the verdict, the rule, a record that changed. Whether a
decision rests on it was found out when the task was made (`world.bearing`).
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch

from envace_lite.fidelity.asking import ask
from envace_lite.fidelity.grounding import groundings
from envace_lite.fidelity.pairs import ProbePair
from envace_lite.model.policy import Family, Policy
from envace_lite.world import get_domain
from envace_lite.world.result import ABSTAIN, MALFORMED, Result

COLUMNS = ("task", "domain", "call", "new", "slot", "bearing", "grounding", "error", "right", "log_prob")


def slots(response: Result) -> dict[str, str]:
    """A response as slot -> content, in the order of its words: one word a slot.

    The words `o1:pending needs:paid error status` have the slots `seen o1`, `seen needs`, `verdict` and `rule`.
    """
    rule = {} if response.error is None else {"rule": response.error}
    return {
        **{f"seen {key}": str(value) for key, value in response.seen.items()},
        "verdict": "ok" if response.error is None else "error",
        **rule,
        **{f"changed {key}": str(value) for key, value in response.changed.items()},
    }


def right_slots(real: Result, told: Result) -> set[str]:
    """The slots of a real response that hold the same in a told one; none of one that is no response at all."""
    written = {} if told.error in (MALFORMED, ABSTAIN) else slots(told)
    return {slot for slot, content in slots(real).items() if written.get(slot) == content}


def parts(policy: Policy, pairs: Sequence[ProbePair], told: Sequence[Result] | None = None) -> pd.DataFrame:
    """One row for each part of the real response of each planned pair.

    Columns: `bearing` (whether a decision rests on it), `grounding`, `error` (whether the real response is one),
    `right` (whether the rehearsed response holds the same there), `log_prob` (of the part, after the true parts before
    it); `new` says what is new about the tool, or is empty.

    Args:
        told: what the policy rehearses to each of the pairs, if it has been asked already.
    """
    told = told or [answer.response for answer in ask(policy, pairs)]
    planned = [pair for pair in pairs if pair.planned]
    rehearsed = [response for pair, response in zip(pairs, told, strict=True) if pair.planned]
    rows = []
    for pair, mine, log_probs in zip(planned, rehearsed, _log_probs(policy, planned), strict=True):
        right = right_slots(pair.real, mine)
        grounded = groundings(pair)
        for slot, log_prob in zip(slots(pair.real), log_probs[:-1], strict=True):
            rows.append(
                {
                    "task": pair.task.id,
                    "domain": pair.task.domain,
                    "call": pair.call.name,
                    "new": get_domain(pair.task.domain).news.get(pair.call.name, ""),
                    "slot": slot,
                    "bearing": slot in pair.rests,
                    "grounding": grounded["verdict" if slot == "rule" else slot],
                    "error": pair.real.error is not None,
                    "right": slot in right,
                    "log_prob": log_prob,
                }
            )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _log_probs(policy: Policy, pairs: Sequence[ProbePair]) -> list[list[float]]:
    """Log-probability of each word of each real response, its end included."""
    if not pairs:
        return []
    families = [
        Family(
            policy.compact.render(pair.messages, pair.task.tools, prompt=pair.call.name),
            [policy.compact.encode(f"{pair.real.text} <end>")],
        )
        for pair in pairs
    ]
    with torch.inference_mode():
        log_p, _ = policy.log_probs(families)
    lengths = [len(family.completions[0]) for family in families]
    return [part.tolist() for part in log_p.split(lengths)]
