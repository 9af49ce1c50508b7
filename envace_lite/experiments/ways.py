"""Every way of deciding before a committed call, by name: private rehearsal, its controls, and doing nothing more.

What is simplified against the paper, which has one way: the policy reads its rehearsals and goes on. Here each way is
one choice of a mode, a scorer and an occasion, so that a comparison can say which of them matters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envace_lite.experiments.thinking import Refine, Scratchpad
from envace_lite.model.policy import Policy
from envace_lite.rehearsal.controls import SelfConsistency
from envace_lite.rehearsal.episode import Plain
from envace_lite.rehearsal.private import PrivateRehearsal
from envace_lite.rehearsal.scorers import CONTENT, Scorer

METHODS = {
    "plain": "plain execution",
    "greedy": "plain execution without sampling",
    "parallel": "rehearsal, parallel, agreement",
    "likelihood": "rehearsal, parallel, likelihood",
    "no_errors": "rehearsal, parallel, fewest errors",
    "verdict": "rehearsal, parallel, self-evaluation",
    "judged": "rehearsal, parallel, verifier",
    "sequential": "rehearsal, one by one, verifier",
    "write": "rehearsal before writes, verifier",
    "vote": "self-consistency, equal tokens",
    "judged_vote": "self-consistency after the verifier, equal tokens",
    "refine": "self-refinement, equal tokens",
    "scratch": "scratchpad, trained",
}
"""The ways of deciding, with their titles."""
WITHOUT_BUDGET = ("plain", "greedy", "scratch")
"""Those that are run once, with N = 0. `scratch` is for a policy that was trained so."""
CONTROLS = ("vote", "judged_vote", "refine")
"""Those that spend a token budget."""
USUAL = tuple(name for name in METHODS if name not in ("likelihood", "no_errors", "scratch"))


def make(
    method: str,
    policy: Policy,
    budget: int,
    token_budget: int = 0,
    *,
    self_evaluation: Callable[[], Scorer] | None = None,
    temperature: float = 1.0,
    seed: int = 0,
) -> Plain:
    """A way of deciding by its name in `METHODS`.

    Args:
        budget: N.
        token_budget: tokens that a control may spend before each message.
        self_evaluation: makes the scorer of the method `verdict`.

    Raises:
        KeyError: there is no such method.
    """
    options: dict[str, Any] = {"temperature": temperature, "seed": seed}
    if method == "verdict":
        if self_evaluation is None:
            raise ValueError("the method `verdict` needs a self-evaluation; see `fit_self_evaluation`")
        return PrivateRehearsal(policy, budget, scorer=self_evaluation(), **options)
    verified = options | {"scorer": "carried_out"}
    ways: dict[str, Callable[[], Plain]] = {
        "plain": lambda: Plain(policy, **options),
        "greedy": lambda: Plain(policy, temperature=0.0, seed=seed),
        "parallel": lambda: PrivateRehearsal(policy, budget, **options),
        "likelihood": lambda: PrivateRehearsal(policy, budget, scorer="likelihood", **options),
        "no_errors": lambda: PrivateRehearsal(policy, budget, scorer="no_errors", **options),
        "judged": lambda: PrivateRehearsal(policy, budget, **verified),
        "sequential": lambda: PrivateRehearsal(
            policy, budget, "sequential", memory=True, enough=CONTENT, **verified
        ),
        "write": lambda: PrivateRehearsal(policy, budget, when="write", **verified),
        "vote": lambda: SelfConsistency(policy, token_budget, **options),
        "judged_vote": lambda: SelfConsistency(policy, token_budget, verified=True, **options),
        "refine": lambda: Refine(policy, token_budget, **options),
        "scratch": lambda: Scratchpad(policy, **options),
    }
    return ways[method]()
