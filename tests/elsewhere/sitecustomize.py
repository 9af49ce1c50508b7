"""A process that computes as if it ran on another machine. Python runs this file at its start when its folder is on
`PYTHONPATH`, so kernels, commands and tests are reached alike. What it does is said by environment variables:

    ENVACE_DISTURB=1e-5         add so many times a standard normal number to every logit ...
    ENVACE_DISTURB_SEED=3       ... drawn from this seed (0 if it is not set)
    ENVACE_THREADS=2            torch keeps so many threads, whatever a program asks for
    ENVACE_DETERMINISTIC=1      torch.use_deterministic_algorithms(True)
    ENVACE_MARGINS=FILE         write down how narrowly tokens were chosen (see `Margins`)

Another processor rounds the last bit of a logit otherwise, about 1e-6. The disturbance is ten times that, at random.

Nothing happens before the library's decoding is imported, so a process that samples nothing is left alone.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import itertools
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

NOISE = 1 << 22
"""So many normal numbers are drawn once and then used again and again, from ever other places."""
LEAST_WORDS = 1000
"""A linear layer with so many outputs or more is the one that writes the logits."""


class Margins:
    """How narrowly tokens were chosen, by cell of a notebook.

    Attributes:
        greedy: by execution count, the least lead of a greedy choice over the second one, in log-probability.
        drawn: by execution count, the least distance of a random number from the border at which it would have
            chosen another token, in probability.
    """

    def __init__(self, path: str):
        self.path = path
        self.greedy: dict[int, float] = {}
        self.drawn: dict[int, float] = {}

    def around(self, sample: Any) -> Any:
        """The function `decoding.sample`, watched."""

        def watched(logits: Any, temperature: float, generator: Any) -> Any:
            state = generator.get_state() if temperature and generator is not None else None
            tokens, log_p = sample(logits, temperature, generator)
            if temperature == 0:
                best = logits.log_softmax(-1).topk(2, dim=-1).values
                self._note(self.greedy, (best[:, 0] - best[:, 1]).min().item())
            elif state is not None:
                self._note(self.drawn, _distance(logits / temperature, tokens, generator, state))
            return tokens, log_p

        return watched

    def _note(self, least: dict[int, float], value: float) -> None:
        shell = sys.modules.get("IPython")
        kernel = shell.get_ipython() if shell else None
        cell = kernel.execution_count if kernel else 0
        if value < least.get(cell, float("inf")):
            least[cell] = value
            noted = json.dumps({"greedy": self.greedy, "drawn": self.drawn})
            Path(self.path).write_text(noted, encoding="utf-8")


def _distance(logits: Any, tokens: Any, generator: Any, state: Any) -> float:
    """The least distance, over the rows, of a draw's random number from a border of what it chose.

    The generator is set back and asked again, so that what is measured are the very numbers of the draw.
    """
    import torch

    again = torch.Generator().set_state(state)
    below = logits.softmax(-1).double().cumsum(-1)
    point = torch.rand(len(below), 1, generator=again).double() * below[:, -1:]
    upper = below.gather(-1, tokens[:, None])
    lower = torch.cat([torch.zeros_like(upper), below], dim=-1).gather(-1, tokens[:, None])
    # Beyond the first and the last token with any probability there is none that could have been chosen.
    above = torch.where(upper < below[:, -1:], upper - point, 1.0)
    beneath = torch.where(lower > 0, point - lower, 1.0)
    return float(torch.minimum(above, beneath).min())


def disturb(scale: float, seed: int) -> None:
    """Add noise to every logit that any model writes from now on."""
    import torch

    noise = torch.randn(NOISE, generator=torch.Generator().manual_seed(seed)) * scale
    places = itertools.count(seed)

    def hook(module: Any, _: Any, output: Any) -> Any:
        if not isinstance(module, torch.nn.Linear) or module.out_features < LEAST_WORDS:
            return None
        where = (next(places) * 7919 + torch.arange(output.numel())) % NOISE
        return output + noise[where].view_as(output).to(output.dtype)

    torch.nn.modules.module.register_module_forward_hook(hook)


def apply(decoding: ModuleType) -> None:
    """Do what the environment says; `decoding` is the module that chooses tokens, just imported."""
    import torch

    if scale := float(os.environ.get("ENVACE_DISTURB", "0")):
        disturb(scale, int(os.environ.get("ENVACE_DISTURB_SEED", "0")))
    if threads := int(os.environ.get("ENVACE_THREADS", "0")):
        torch.set_num_threads(threads)
        torch.set_num_threads = lambda _: None
    if os.environ.get("ENVACE_DETERMINISTIC"):
        torch.use_deterministic_algorithms(True)
    if path := os.environ.get("ENVACE_MARGINS"):
        decoding.sample = Margins(path).around(decoding.sample)


class _Finder:
    """Imports the library's decoding as usual, and calls `apply` when that is done."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if not (name.startswith("envace_lite.") and name.endswith(".decoding")):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        usual = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            usual(module)
            apply(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Finder)  # type: ignore[arg-type]
