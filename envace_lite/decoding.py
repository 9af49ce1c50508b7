"""Decoding: next tokens for a batch of rows that advance together, over one preallocated key-value cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from envace_lite.policy import Policy, pad_left, square_mask

LONGEST_MESSAGE = 32
"""A message with more tokens than this is cut off."""


class _Layer(DynamicLayer):
    """A cache layer with room made in advance, so that a step writes one column instead of copying all."""

    def __init__(self, room: int):
        super().__init__()
        self.room, self.length, self.is_initialized = room, 0, False

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        rows, heads, new, width = key_states.shape
        if not self.is_initialized:
            self.keys = key_states.new_empty(rows, heads, self.room, width)
            self.values = key_states.new_empty(rows, heads, self.room, width)
            self.is_initialized = True
        end = self.length + new
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_seq_length(self) -> int:
        return self.length

    def pick(self, rows: Tensor) -> None:
        """Keep (or repeat) the given rows."""
        kept = [tensor.new_empty(len(rows), *tensor.shape[1:]) for tensor in (self.keys, self.values)]
        for new, old in zip(kept, (self.keys, self.values), strict=True):
            new[:, :, : self.length] = old[:, :, : self.length].index_select(0, rows)
        self.keys, self.values = kept


class Decoder:
    """Next-token logits of one model for a batch of rows that advance together.

    Args:
        model: the plain model (see `Policy.sampler`).
        prompts: token ids; each is read once.
        copies: rows that start from each prompt.
        room: most tokens that will follow.
        pad: id of the padding token.
    """

    def __init__(
        self, model: PreTrainedModel, prompts: Sequence[Sequence[int]], copies: int, room: int, pad: int
    ):
        ids, real = pad_left(prompts, pad)
        self.backbone, self.head = model.model, model.lm_head
        self.layers = [_Layer(ids.shape[1] + room) for _ in range(model.config.num_hidden_layers)]
        self.cache = Cache(layers=self.layers)
        self.positions = (real.cumsum(1) - 1).clamp(min=0)
        self.real = real
        states = self.backbone(ids, square_mask(real), self.positions, self.cache, use_cache=True)
        self.logits: Tensor = self.head(states.last_hidden_state[:, -1])
        self.positions = self.positions[:, -1:]
        if copies > 1:
            self.pick(torch.arange(len(prompts)).repeat_interleave(copies))

    def pick(self, rows: Tensor) -> None:
        """Keep (or repeat) the given rows."""
        for layer in self.layers:
            layer.pick(rows)
        self.positions, self.real, self.logits = self.positions[rows], self.real[rows], self.logits[rows]

    def step(self, tokens: Tensor) -> None:
        """Append one token to each row. `tokens`: (B,)."""
        self.real = torch.cat([self.real, torch.ones_like(self.real[:, :1])], dim=1)
        self.positions = self.positions + 1
        states = self.backbone(
            tokens[:, None], self.real[:, None, None], self.positions, self.cache, use_cache=True
        ).last_hidden_state
        self.logits = self.head(states[:, -1])


def sample(logits: Tensor, temperature: float, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Draw a token a row. Greedy at temperature 0.

    Args:
        logits: (B, V).

    Returns:
        Tokens (B,) and the log-probabilities (B,) with which they were drawn.
    """
    log_p = (logits / (temperature or 1.0)).log_softmax(-1)
    if temperature == 0:
        tokens = log_p.argmax(-1)
    else:
        tokens = torch.multinomial(log_p.exp(), 1, generator=generator).squeeze(-1)
    return tokens, log_p.gather(-1, tokens[:, None]).squeeze(-1)


@torch.inference_mode()
def complete(
    policy: Policy,
    prefixes: Sequence[Sequence[int]],
    *,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
    at_once: int = 64,
) -> list[tuple[str, float]]:
    """Finish one message after each prefix (ids that end in a role's header).

    Returns:
        For each prefix the message without `<end>`, and its log-probability.
    """
    chat = policy.chat
    order = sorted(range(len(prefixes)), key=lambda i: len(prefixes[i]))
    results: list[tuple[str, float]] = [("", 0.0)] * len(prefixes)
    with policy.sampler() as model:
        for start in range(0, len(order), at_once):
            rows = order[start : start + at_once]
            decoder = Decoder(model, [prefixes[i] for i in rows], 1, LONGEST_MESSAGE, chat.pad)
            written: dict[int, list[int]] = {i: [] for i in rows}
            total = dict.fromkeys(rows, 0.0)
            for _ in range(LONGEST_MESSAGE):
                tokens, log_p = sample(decoder.logits, temperature, generator)
                for i, token, value in zip(rows, tokens.tolist(), log_p.tolist(), strict=True):
                    written[i].append(token)
                    total[i] += value
                running = [row for row, i in enumerate(rows) if written[i][-1] != chat.end]
                if not running:
                    break
                if len(running) < len(rows):
                    decoder.pick(torch.tensor(running))
                    tokens = tokens[running]
                    rows = [rows[row] for row in running]
                decoder.step(tokens)
            for i, ids in written.items():
                ended = ids[-1:] == [chat.end]
                results[i] = (chat.decode(ids[:-1] if ended else ids), total[i])
    return results
