"""What a fidelity has to be seen against: responders that understand nothing, and one that knows what can be known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from envace_lite.fidelity.grounding import HIDDEN, groundings
from envace_lite.fidelity.pairs import ProbePair
from envace_lite.world import ToyDomain, get_domain
from envace_lite.world.result import ABSTAIN, Result
from envace_lite.world.tools import ToolResponse

Baseline = Callable[[Sequence[ProbePair]], list[Result]]


def always_success(pairs: Sequence[ProbePair]) -> list[Result]:
    """Whatever is asked: it went well, and nothing more."""
    return [get_domain(pair.task.domain).read("ok") for pair in pairs]


def copy_arguments(pairs: Sequence[ProbePair]) -> list[Result]:
    """Looks up each argument in a toy world's initial state, and says `ok`; elsewhere says the arguments back."""

    def answer(pair: ProbePair) -> Result:
        if not isinstance(get_domain(pair.task.domain), ToyDomain):
            return Result(dict(pair.call.arguments), told=False)
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

    def answer(pairs: Sequence[ProbePair]) -> list[Result]:
        texts = (by_tool.get(pair.call.name, of_all).most_common(1)[0][0] for pair in pairs)
        return [get_domain(pair.task.domain).read(text) for pair, text in zip(pairs, texts, strict=True)]

    return answer


def oracle(pairs: Sequence[ProbePair]) -> list[Result]:
    """The real response without its hidden leaves: the most that can be rehearsed without guessing.

    Outside the toy worlds it is the real response itself, since a value that is computed counts as hidden there.
    """
    return [_without_hidden(pair) for pair in pairs]


def _without_hidden(pair: ProbePair) -> Result:
    if not isinstance(get_domain(pair.task.domain), ToyDomain):
        return get_domain(pair.task.domain).read(pair.real.text)
    known = {slot for slot, grounding in groundings(pair).items() if grounding != HIDDEN}
    seen, changed = (
        {key: value for key, value in part.items() if f"{name} {key}" in known}
        for name, part in (("seen", pair.real.seen), ("changed", pair.real.changed))
    )
    return ToolResponse(seen, pair.real.error if "verdict" in known else ABSTAIN, changed)
