"""Fidelity: rehearsed responses next to real ones, on the same history and the same call.

The paper asserts that the dynamics move into the parameters and never compares them with the real ones; this module
does. It looks on from outside: nothing here feeds back into training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import pandas as pd

from envace_lite.decoding import complete
from envace_lite.domains import Task, get_domain
from envace_lite.policy import Policy
from envace_lite.tools import ToolCall, ToolResponse, parse_calls

COLUMNS = {
    **dict.fromkeys(("task", "domain"), object),
    "depth": int,
    "planned": bool,
    **dict.fromkeys(("call", "real", "rehearsed", "rule"), object),
    **dict.fromkeys(("exact", "real_error", "rehearsed_error", "rehearsed_success"), bool),
}
"""Columns of `compare` with their types, which also hold when there is nothing to compare."""


@dataclass(frozen=True)
class ProbePair:
    """One state and call with the real response.

    Args:
        task: whose conversation it is.
        history: earlier calls with their real responses.
        call: what is asked now.
        real: the real response.
        planned: whether the call belongs to the task's plan (otherwise it was drawn to balance errors).
    """

    task: Task
    history: tuple[tuple[ToolCall, ToolResponse], ...]
    call: ToolCall
    real: ToolResponse
    planned: bool

    def prefix(self, policy: Policy) -> list[int]:
        """Token ids of the conversation up to the header of the response."""
        messages: list[dict[str, object]] = [dict(message) for message in self.task.messages]
        for call, response in self.history:
            messages.append({"role": "assistant", "tool_calls": [call.to_message()]})
            messages.append({"role": "tool", "name": call.name, "content": response.text})
        messages.append({"role": "assistant", "tool_calls": [self.call.to_message()]})
        return policy.chat.render(messages, self.task.tools, prompt=self.call.name)


def probe_pairs(tasks: Sequence[Task], seed: int = 0) -> list[ProbePair]:
    """States along each task's plan, with two calls each: the planned one, and one that ends the other way.

    So about half of the real responses are errors. Only the first user turn is probed. Deterministic from the seed.
    """
    rng = Random(seed)
    pairs = []
    for task in tasks:
        domain = get_domain(task.domain)
        session = domain.reset(task)
        history: list[tuple[ToolCall, ToolResponse]] = []
        for text in task.plan[0]:
            before = session.snapshot()
            (call,) = parse_calls(text, task.tools)
            real = session.call(call)
            after = session.snapshot()
            pairs.append(ProbePair(task, tuple(history), call, real, True))
            for _ in range(30):
                tool = domain.tools[rng.choice(task.tools)["function"]["name"]]
                pools = (domain.pools[kind] for kind in tool.kinds.values())
                other = ToolCall(tool.name, dict(zip(tool.kinds, map(rng.choice, pools), strict=True)))
                session.restore(before)
                response = session.call(other)
                if (response.error is None) != (real.error is None):
                    pairs.append(ProbePair(task, tuple(history), other, response, False))
                    break
            session.restore(after)
            history.append((call, real))
    return pairs


def rehearse(policy: Policy, pairs: Sequence[ProbePair]) -> list[ToolResponse]:
    """What the policy's rehearse role answers (greedy decoding)."""
    return [ToolResponse.parse(text) for text, _ in complete(policy, [pair.prefix(policy) for pair in pairs])]


def compare(pairs: Sequence[ProbePair], rehearsed: Sequence[ToolResponse]) -> pd.DataFrame:
    """One row a pair: what was real, what was rehearsed, and how they agree.

    Columns `exact`, `real_error`, `rehearsed_error`, `rehearsed_success` are flags; a response that is not well formed
    is neither an error nor a success.
    """
    rows = (
        {
            "task": pair.task.id,
            "domain": pair.task.domain,
            "depth": len(pair.history),
            "planned": pair.planned,
            "call": pair.call.text,
            "real": pair.real.text,
            "rehearsed": mine.text,
            "rule": pair.real.error or "",
            "exact": mine.text == pair.real.text,
            "real_error": pair.real.error is not None,
            "rehearsed_error": mine.error not in (None, "malformed"),
            "rehearsed_success": mine.error is None,
        }
        for pair, mine in zip(pairs, rehearsed, strict=True)
    )
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


def probe(policy: Policy, tasks: Sequence[Task], seed: int = 0) -> pd.DataFrame:
    """`compare` on the probe pairs of some tasks."""
    pairs = probe_pairs(tasks, seed)
    return compare(pairs, rehearse(policy, pairs))
