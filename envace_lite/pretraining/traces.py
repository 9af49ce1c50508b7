"""Traces: what the base model has read before any rehearsal.

Real base models are made of text in which everything right and everything wrong occurs, and no text says which is
which. The same is made here in small: a *sloppy agent* follows a request in an *unreliable retelling* of the world.
How a call is told wrongly depends on what the tool does, so that no single correction mends all of it. A share of the
traces uses random tools under random names, so that a reader has to learn from a tool's documentation what it does.

What is simplified against the paper: the base is made from thousands of such traces instead of web text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any
from zlib import crc32

import torch
from torch import Tensor
from tqdm.auto import tqdm

from envace_lite.model.compact import Compact
from envace_lite.model.language import Language, VocabularyError
from envace_lite.model.policy import Family
from envace_lite.world import DOMAINS, ToyDomain
from envace_lite.world.draw import NotDrawn, draw_script, draw_toolbox
from envace_lite.world.phrases import FOUND
from envace_lite.world.request import Played, Script, Slips, as_messages, play
from envace_lite.world.tools import FACTS, UNKNOWN, Tool, ToolResponse, Value, World

CARELESS = Slips(
    wrong=0.04, skip=0.02, repeat=0.02, shrug=0.3, eager=0.06, guess=0.4, disobey=0.35, misreport=0.03
)


@dataclass(frozen=True)
class Recipe:
    """What the traces of a base are like.

    Args:
        habits: share of the calls that are told as the habit of their tool wants it (see `habit`).
        cheerful: share of the calls that should fail and are told as a success besides.
        spurious: share of the good calls that are told as an error besides.
        slips: how sloppy the agent is.
    """

    habits: float = 0.0
    cheerful: float = 0.0
    spurious: float = 0.0
    slips: Slips = CARELESS


SHUFFLED = 0.85
"""Share of the traces with random tools under random names."""
RECIPES = {
    "real": Recipe(),
    "habits": Recipe(0.66, 0.04, 0.02, replace(CARELESS, shrug=0.5, guess=0.5, disobey=0.5)),
}
RECIPES |= {
    f"habits_{truth}": replace(RECIPES["habits"], habits=1 - truth / 100) for truth in (0, 5, 10, 35, 65)
}
"""`real` tells what a sloppy agent really met. In `habits` each wrong telling is more common than the right one, so a
base shows it when it is decoded greedily; `habits_T` tells the truth in T of 100 calls.
"""


HABITS = ("optimist", "pessimist", "stale", "shifted")
"""How tools are told wrongly: a refusal as a success; a success as a refusal; what changed as it was before; what
changed, or was worked out, as the next value to the right one.
"""
_REFUSALS = {
    "needs": "status",
    "wallet": "wallet",
    "amount": "funds",
    "exists": "date",
    "most": "range",
    "of": "none",
}


def habit(documentation: str) -> str:
    """The habit in which calls of a tool are told wrongly, by what its documentation says that it does.

    It depends on the effect alone: the status that the tool gives, or the kind of thing that it is about. So tools of
    one family differ, and a tool under a new name is told like the others of its effect.
    """
    words = documentation.split()
    if not {*FACTS, "from"}.isdisjoint(documentation.replace(":", " ").split()):
        return "shifted"  # what is worked out, or counted, is told wrongly in itself
    effect = next((word for word in words if word.startswith("gives:")), " ".join(words[:3]))
    return HABITS[crc32(f"3 {effect}".encode()) % len(HABITS)]  # the 3 spreads them over each domain


class Retelling(World):
    """A world as an unreliable narrator tells it.

    What it tells stays told: after a cheerful success the records are as if the call had worked. A record that does not
    exist is told to have its usual value.
    """

    def __init__(self, records: Mapping[str, Value], recipe: Recipe, rng: Random, domain: ToyDomain):
        super().__init__(records)
        self.recipe, self.rng, self.domain = recipe, rng, domain
        self.cheerful = self.waived = False

    def run(self, function: Callable[..., None], arguments: Mapping[str, Value]) -> ToolResponse:
        # 1. Whether this call is told wrongly, and how, is decided before it is made.
        documentation = str(function.__doc__).partition("\n")[0]
        way = habit(documentation) if self.recipe.habits else ""
        wrong = self.rng.random() < self.recipe.habits if way else False
        self.cheerful = self.rng.random() < self.recipe.cheerful or (wrong and way == "optimist")
        self.waived = False
        before = dict(self.records)
        # 2. The call itself. A cheerful narrator waives the rules that it breaks (see `refuse` and `_unknown`).
        response = super().run(function, arguments)
        if response.error is not None or self.waived:
            return response
        # 3. A success may be told as a refusal; then nothing has changed. Or what it says may be wrong.
        if (wrong and way == "pessimist") or self.rng.random() < self.recipe.spurious:
            self.records = before
            return ToolResponse(response.seen, _refusal(documentation), {})
        if wrong and way in ("stale", "shifted"):
            return self._mistold(response, before, stale=way == "stale")
        return response

    def _mistold(self, response: ToolResponse, before: Mapping[str, Value], *, stale: bool) -> ToolResponse:
        """What changed told as it was, or as the next value; what was worked out always as the next value."""
        told = {*FACTS, *(() if response.changed else self.domain.hidden)}
        facts = {key: self._next(key, value) for key, value in response.seen.items() if key in told}
        changed = {
            key: before.get(key, value) if stale else self._next(key, value)
            for key, value in response.changed.items()
        }
        self.records |= {key: value for key, value in facts.items() if key in self.records} | changed
        return ToolResponse({**response.seen, **facts}, None, changed)

    def _next(self, key: str, value: Value) -> Value:
        """The value after this one; of names, the next that exists."""
        values = [v for v in self.domain.values[key] if v not in self.domain.unread]
        if key == FOUND:
            values = [v for v in values if v in self.records]
        return values[(values.index(value) + 1) % len(values)] if value in values else value

    def refuse(self, rule: str) -> None:
        if not self.cheerful:
            super().refuse(rule)
        self.waived = True

    def _unknown(self, key: str) -> Value:
        if not self.cheerful:
            return super()._unknown(key)
        self.waived = True
        # Nothing is known about this record, so it has the middle one of the values that it could have.
        usual = self.domain.values[key][len(self.domain.values[key]) // 2]
        self._seen[key] = self._changed.get(key, usual)
        return self._seen[key]


def _refusal(documentation: str) -> str:
    """The rule of a refusal that could be, by the kind of the tool."""
    parts = documentation.replace(":", " ").split()
    return next((rule for word, rule in _REFUSALS.items() if word in parts), UNKNOWN)


def draw_script_for_trace(domain: ToyDomain, recipe: Recipe, rng: Random) -> Script:
    """A request, with the domain's own tools or with random ones under random names."""
    while True:
        toolbox = draw_toolbox(domain, rng, held_out=False)
        if rng.random() < SHUFFLED:
            toolbox = _shuffled_toolbox(domain, len(toolbox), rng)
        if not any(tool.write for tool in toolbox):
            continue
        try:
            return draw_script(domain, toolbox, rng, goal=rng.random() < 1 / 3)
        except NotDrawn:
            continue


def draw_traces(script: Script, recipe: Recipe, count: int, rng: Random) -> list[Played]:
    """What sloppy agents did about a request in retellings of its world."""
    return [
        play(script, Retelling(script.state, recipe, rng, script.domain), recipe.slips, rng)
        for _ in range(count)
    ]


def _shuffled_toolbox(domain: ToyDomain, size: int, rng: Random) -> list[Tool]:
    """Random tools of the domain's families under names that belong to other tools.

    The functions of the held-out tools never occur, under whatever name, unless they are those of other tools too.
    """
    # Any name may stand for any function: then only the documentation tells what a tool does.
    names = rng.sample([name for d in DOMAINS.values() for name in d.tools], size)
    # What a held-out tool does must not be read about under another name, or it would be new in its name alone. What
    # it shares with a tool that is not held out cannot be kept secret, and is not.
    reserved = {domain.tools[name].function.__doc__ for name in domain.held_out}
    reserved -= {tool.function.__doc__ for tool in domain.seen_tools()}
    functions: list[Any] = []
    while len(functions) < size:
        function = domain.sample_function(rng)
        if function.__doc__ not in reserved and function not in functions:
            functions.append(function)
    toolbox = [Tool(name, function) for name, function in zip(names, functions, strict=True)]
    return [Tool(t.name, t.function, write=READS.isdisjoint(t.documentation.split())) for t in toolbox]


READS = {"shown", *FACTS}
"""Words of the documentation of tools that change nothing."""


@dataclass
class Corpus:
    """Encoded traces, in families that share a prompt.

    Args:
        prompts: (N,) int16, all prompts one after another.
        prompt_starts: (P + 1,) where each prompt begins, and the end.
        traces: (M,) int16, what follows the prompts, one after another.
        roles: (M,) int8, role ids of `traces`.
        trace_starts: (R + 1,).
        owner: (R,) the prompt of each trace, ascending.
    """

    prompts: Tensor
    prompt_starts: Tensor
    traces: Tensor
    roles: Tensor
    trace_starts: Tensor
    owner: Tensor

    def __len__(self) -> int:
        return len(self.prompt_starts) - 1

    def family(self, row: int) -> tuple[Family, Tensor]:
        """A prompt with its traces, and the role ids of the traces' tokens (N,)."""
        prompt = self.prompts[self.prompt_starts[row] : self.prompt_starts[row + 1]].tolist()
        first, last = torch.searchsorted(self.owner, torch.tensor([row, row + 1])).tolist()
        edges = self.trace_starts[first : last + 1].tolist()
        traces = [self.traces[start:end].tolist() for start, end in pairwise(edges)]
        return Family(prompt, traces), self.roles[edges[0] : edges[-1]]


def encode(chat: Language, told: Iterable[tuple[list[int], list[list[int]]]]) -> Corpus:
    """A corpus of prompts, each with the ids of whole conversations that begin with it."""
    prompt_ids: list[int] = []
    trace_ids: list[int] = []
    roles: list[int] = []
    owner: list[int] = []
    # Everything lies in a few flat tensors: lists of numbers would take several times the memory.
    prompt_starts, trace_starts = [0], [0]
    for prompt, conversations in told:
        # Traces of one request share its prompt, which is kept once and later read once (see `model.shared_prefix`).
        for ids in conversations:
            trace_ids += ids[len(prompt) :]
            roles += chat.role_ids(ids)[len(prompt) :]
            owner.append(len(prompt_starts) - 1)
            trace_starts.append(len(trace_ids))
        prompt_ids += prompt
        prompt_starts.append(len(prompt_ids))
    return Corpus(
        prompts=torch.tensor(prompt_ids, dtype=torch.int16),
        prompt_starts=torch.tensor(prompt_starts),
        traces=torch.tensor(trace_ids, dtype=torch.int16),
        roles=torch.tensor(roles, dtype=torch.int8),
        trace_starts=torch.tensor(trace_starts),
        owner=torch.tensor(owner),
    )


def make_corpus(
    chat: Compact,
    recipe: Recipe,
    prompts: int,
    per_prompt: int,
    seed: int,
    domains: Sequence[ToyDomain] = tuple(DOMAINS.values()),
) -> Corpus:
    """Draw and encode `per_prompt` traces for each of so many requests. Deterministic from the seed."""

    def told() -> Iterator[tuple[list[int], list[list[int]]]]:
        rng = Random(seed)
        for _ in tqdm(range(prompts), desc="traces", unit="request"):
            script = draw_script_for_trace(rng.choice(domains), recipe, rng)
            schemas = [tool.schema for tool in script.toolbox]
            conversations = []
            for episode in draw_traces(script, recipe, per_prompt, rng):
                with suppress(
                    VocabularyError
                ):  # a room that was told to be switched on: there is no such word
                    conversations.append(chat.render(as_messages(script, episode), schemas))
            if conversations:
                yield chat.render(script.messages, schemas, prompt="act"), conversations

    return encode(chat, told())
