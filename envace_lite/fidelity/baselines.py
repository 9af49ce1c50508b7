"""What a fidelity has to be seen against: responders that understand nothing, and one that knows what can be known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from envace_lite.fidelity.pairs import HIDDEN, ProbePair, groundings
from envace_lite.world.tools import ABSTAIN, ToolResponse

Baseline = Callable[[Sequence[ProbePair]], list[ToolResponse]]


def always_success(pairs: Sequence[ProbePair]) -> list[ToolResponse]:
    """Whatever is asked: `ok`."""
    return [ToolResponse({}, None, {}) for _ in pairs]


def copy_arguments(pairs: Sequence[ProbePair]) -> list[ToolResponse]:
    """Looks up each argument in the initial state, and says `ok`."""

    def answer(pair: ProbePair) -> ToolResponse:
        names = [str(value) for value in pair.call.arguments.values()]
        return ToolResponse({n: pair.task.state[n] for n in names if n in pair.task.state}, None, {})

    return [answer(pair) for pair in pairs]


def most_frequent(known: Sequence[ProbePair]) -> Baseline:
    """Answers each tool's calls with the real response that is most frequent for it among `known` pairs.

    A tool that is not among them gets the most frequent response of all.
    """
    of_all = Counter(pair.real.text for pair in known)
    by_tool: dict[str, Counter[str]] = {}
    for pair in known:
        by_tool.setdefault(pair.call.name, Counter())[pair.real.text] += 1

    def answer(pairs: Sequence[ProbePair]) -> list[ToolResponse]:
        texts = (by_tool.get(pair.call.name, of_all).most_common(1)[0][0] for pair in pairs)
        return [ToolResponse.parse(text) for text in texts]

    return answer


def oracle(pairs: Sequence[ProbePair]) -> list[ToolResponse]:
    """The real response without its hidden leaves: the most that can be rehearsed without guessing."""
    return [_without_hidden(pair) for pair in pairs]


def _without_hidden(pair: ProbePair) -> ToolResponse:
    known = {slot for slot, grounding in groundings(pair).items() if grounding != HIDDEN}
    seen, changed = (
        {key: value for key, value in part.items() if f"{name} {key}" in known}
        for name, part in (("seen", pair.real.seen), ("changed", pair.real.changed))
    )
    return ToolResponse(seen, pair.real.error if "verdict" in known else ABSTAIN, changed)
