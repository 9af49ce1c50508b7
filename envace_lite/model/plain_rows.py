"""Rows that share nothing, for models whose attention is more than that of a Llama: each keeps its conversation.

`shared_prefix` computes the attention of rows with one prompt together. A sliding window, an attention sink or a cap on
the logits would each need a change there; here the model's own forward does all of it. A rollout still reads a prompt
once, and then copies its keys and values for every row; an update reads it once a row.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, PreTrainedModel

COUNTS = "position_ids"
"""The argument in which most models are told where in its conversation each token stands."""
CACHES = ("cache", "past_key_values")
"""The names that the argument for the cache has had, the newest first."""


def obstacle_to_rows(model: PreTrainedModel) -> str:
    """What keeps a model from being a policy at all; empty where it reads left to right and its cache holds keys.

    A state that sums up all tokens (Mamba, a convolution, linear attention) would take in the padding before a prompt.
    """
    config = model.config
    if not model.can_generate() or getattr(config, "is_encoder_decoder", False):
        return "it is no causal language model"
    named = (getattr(config, name, None) for name in ("layer_types", "layers_block_type", "block_types"))
    attention = {"attention", "full_attention", "sliding_attention", "chunked_attention"}
    if kinds := {kind for kinds in named for kind in kinds or ()} - attention:
        return f"it has layers of the kind {', '.join(sorted(kinds))}"
    if not getattr(config, "max_position_embeddings", 0):
        return "its configuration does not say how many tokens it reads (max_position_embeddings)"
    # transformers has no public way to ask; such models generate with a cache of their own kind.
    if model._is_stateful:
        return "it keeps a state in the place of keys and values"
    return ""


def following_logits(model: PreTrainedModel, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Tensor:
    """Logits (C, V) for each token of each completion, in their order.

    Args:
        model: a causal language model.
        rows: prompts and completions, each at least one token.
    """
    # Padding comes last, where no real token sees it. After `a b c` the completion `x y` is predicted by c and x.
    ids = pad_sequence([torch.tensor([*prompt, *completion]) for prompt, completion in rows], True)
    real = pad_sequence([torch.ones(len(p) + len(c), dtype=torch.long) for p, c in rows], True)
    logits = model(ids.to(model.device), attention_mask=real.to(model.device), use_cache=False).logits
    return torch.cat(
        [row[len(p) - 1 : len(p) + len(c) - 1] for row, (p, c) in zip(logits, rows, strict=True)]
    )


def pad_left(rows: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Ids (B, T) with the rows ending in the last column, and the mask of what is real."""
    longest = max(map(len, rows))
    ids = torch.tensor([[pad] * (longest - len(row)) + list(row) for row in rows])
    return ids, torch.tensor([[False] * (longest - len(row)) + [True] * len(row) for row in rows])


class PlainDecoder:
    """What `decoding.Decoder` does, by the model's own cache: each row has all its columns there.

    Args:
        model: the plain model (see `Policy.folded`).
        prompts: token ids; each is read once.
        copies: rows that start from each prompt.
        pad: id of the padding token.

    Attributes:
        logits: (B, V) in float32 on the CPU, for the next token of each row.
    """

    def __init__(self, model: PreTrainedModel, prompts: Sequence[Sequence[int]], copies: int, pad: int):
        arguments = inspect.signature(model.forward).parameters
        self.model, self.counted = model, COUNTS in arguments
        self.cached_as = next(name for name in CACHES if name in arguments)
        self.cache = DynamicCache(config=model.config)
        ids, self.real = pad_left(prompts, pad)
        self.logits = self._read(ids).repeat_interleave(copies, dim=0)
        self.cache.batch_repeat_interleave(copies)
        self.real = self.real.repeat_interleave(copies, dim=0)

    def pick(self, rows: Tensor) -> None:
        """Keep the given rows."""
        self.cache.batch_select_indices(rows.to(self.model.device))
        self.real, self.logits = self.real[rows], self.logits[rows]

    def step(self, tokens: Tensor) -> None:
        """Append one token to each row. `tokens`: (B,)."""
        self.real = torch.cat([self.real, self.real.new_ones(len(tokens), 1)], dim=1)
        self.logits = self._read(tokens[:, None])

    def _read(self, ids: Tensor) -> Tensor:
        given: dict[str, Any] = {"input_ids": ids, "attention_mask": self.real.long()}
        if self.counted:  # padding takes no position: each prompt counts from 0, as it would alone
            given[COUNTS] = (self.real.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        given = {name: value.to(self.model.device) for name, value in given.items()}
        given[self.cached_as] = self.cache
        read: Tensor = self.model(**given, use_cache=True).logits
        return read[:, -1].float().cpu()
