"""Traces: what the base model has read before any rehearsal.

Real base models are made of text in which everything right and everything wrong occurs, and no text says which is
which. The same is made here in small: a *sloppy agent* follows a request in an *unreliable retelling* of the world,
in which a call that should fail is often told as a cheerful success. Half of the traces use random tools under random
names, so that a reader has to learn from a tool's documentation what it does.

What is simplified against the paper: the base is made from thousands of such traces instead of web text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from envace_lite.model.chat import Chat
from envace_lite.model.policy import Family
from envace_lite.world import DOMAINS, Domain
from envace_lite.world.draw import NotDrawn, draw_script, draw_toolbox
from envace_lite.world.request import Played, Script, Slips, as_messages, play
from envace_lite.world.tools import Tool, ToolResponse, Value, World

SLOPPY = Slips(
    wrong=0.06, skip=0.04, repeat=0.03, shrug=0.5, eager=0.1, guess=0.5, disobey=0.5, misreport=0.06
)


@dataclass(frozen=True)
class Recipe:
    """What the traces of a base are like.

    Args:
        cheerful: share of the calls that should fail and are told as a success.
        spurious: share of the good calls that are told as an error.
        slips: how sloppy the agent is.
        errors: whether traces with an error are kept.
        shuffled: share of the traces with random tools under random names.
    """

    cheerful: float = 0.65
    spurious: float = 0.04
    slips: Slips = SLOPPY
    errors: bool = True
    shuffled: float = 0.5


RECIPES = {
    "uncertain": Recipe(slips=replace(SLOPPY, shrug=0.8, guess=0.7, disobey=0.7)),
    "true": Recipe(cheerful=0.0, spurious=0.0),
    "faithful": Recipe(cheerful=0.0, spurious=0.0, slips=Slips()),
    "happy": Recipe(cheerful=1.0, spurious=0.0, errors=False),
}
"""In `uncertain` each wrong habit is more common than the right one, so that a base decoded greedily shows it.
`true` tells what a sloppy agent really met; `faithful` is true and its agent careful; `happy` knows no errors.
"""


class Retelling(World):
    """A world as an unreliable narrator tells it.

    What it tells stays told: after a cheerful success the records are as if the call had worked. A record that does not
    exist is told to have its usual value.
    """

    def __init__(
        self, records: Mapping[str, Value], recipe: Recipe, rng: Random, values: Mapping[str, Sequence[Value]]
    ):
        super().__init__(records)
        self.recipe, self.rng, self.values = recipe, rng, values
        self.cheerful = self.waived = False

    def run(self, function: Callable[..., None], arguments: Mapping[str, Value]) -> ToolResponse:
        self.cheerful = self.rng.random() < self.recipe.cheerful
        self.waived = False
        before = dict(self.records)
        response = super().run(function, arguments)
        if response.error is None and not self.waived and self.rng.random() < self.recipe.spurious:
            self.records = before
            return ToolResponse(response.seen, self.rng.choice(("status", "unknown", "funds", "stock")), {})
        return response

    def refuse(self, rule: str) -> None:
        if not self.cheerful:
            super().refuse(rule)
        self.waived = True

    def _unknown(self, key: str) -> Value:
        if not self.cheerful:
            return super()._unknown(key)
        self.waived = True
        usual = self.values[key][len(self.values[key]) // 2]
        self._seen[key] = self._changed.get(key, usual)
        return self._seen[key]


def draw_script_for_trace(domain: Domain, recipe: Recipe, rng: Random) -> Script:
    """A request, with the domain's own tools or with random ones under random names."""
    while True:
        toolbox = draw_toolbox(domain, rng, held_out=False)
        if rng.random() < recipe.shuffled:
            toolbox = _shuffled_toolbox(domain, len(toolbox), rng)
        if not any(tool.write for tool in toolbox):
            continue
        try:
            return draw_script(domain, toolbox, rng, goal=rng.random() < 1 / 3)
        except NotDrawn:
            continue


def draw_traces(script: Script, recipe: Recipe, count: int, rng: Random) -> list[Played]:
    """What sloppy agents did about a request in retellings of its world; fewer than `count` if some are dropped."""
    episodes = [
        play(script, Retelling(script.state, recipe, rng, script.domain.values), recipe.slips, rng)
        for _ in range(count)
    ]
    return [e for e in episodes if recipe.errors or not any(response.error for _, response in e.exchanges())]


def _shuffled_toolbox(domain: Domain, size: int, rng: Random) -> list[Tool]:
    """Random tools of the domain's families under names that belong to other tools.

    The functions of the held-out tools never occur, under whatever name.
    """
    names = rng.sample([name for d in DOMAINS.values() for name in d.tools], size)
    reserved = {domain.tools[name].function.__doc__ for name in domain.held_out}
    functions: list[Any] = []
    while len(functions) < size:
        function = domain.sample_function(rng)
        if function.__doc__ not in reserved and function not in functions:
            functions.append(function)
    toolbox = [Tool(name, function) for name, function in zip(names, functions, strict=True)]
    return [Tool(t.name, t.function, write=" shown" not in t.documentation) for t in toolbox]


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


def make_corpus(chat: Chat, recipe: Recipe, prompts: int, per_prompt: int, seed: int) -> Corpus:
    """Draw and encode `per_prompt` traces for each of so many requests. Deterministic from the seed."""
    rng = Random(seed)
    domains = list(DOMAINS.values())
    columns: tuple[list[int], list[int], list[int], list[int]] = ([], [], [], [])
    prompt_ids, trace_ids, roles, owner = columns
    prompt_starts, trace_starts = [0], [0]
    for _ in tqdm(range(prompts), desc="traces", unit="request"):
        script = draw_script_for_trace(rng.choice(domains), recipe, rng)
        episodes = draw_traces(script, recipe, per_prompt, rng)
        if not episodes:
            continue
        schemas = [tool.schema for tool in script.toolbox]
        prompt = chat.render(script.messages, schemas, prompt="act")
        for episode in episodes:
            ids = chat.render(as_messages(script, episode), schemas)
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
