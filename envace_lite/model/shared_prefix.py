"""Attention of rows that share a prompt: it is kept, and read, once for all of them.

Rollouts come in groups, and a group's prompt is longer than what follows it. So the rows of a prompt form a *family*.
The examples below have two families: the prompt `a b c` with the rows r0 and r1, and the prompt `d e` with the row r2.

*Sampling* (`Seats`) waits for the reading of cached keys and values. A family's cache holds the prompt once and each
row's own tokens after it; its rows are computed together, and a mask lets each see the prompt and itself.

*An update* (`Branches`) reads whole completions. The rest of the model sees one long row of tokens without padding;
attention takes from it a block for each prompt and one for each completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

FAMILIES = "families"
"""Name of this attention among those of transformers; without `seats` or `branches` it is its `sdpa`."""


@dataclass
class Seats:
    """Where each row of a batch sits: in which family, and at which place there.

    In the example `family` is [0 0 1], `place` is [0 1 0], and there are 2 `places`. As a grid of families and places:

        r0 r1
        r2 --        an empty place

    Args:
        family: (B,) ascending.
        place: (B,) different for the rows of one family.
        places: how many there are in each family; some may be empty.
    """

    family: Tensor
    place: Tensor
    places: int

    def seat(self, rows: Tensor, families: int) -> Tensor:
        """(B, H, 1, D) -> (F, H, places, D): the rows of the batch laid out as the grid, zeros on empty places."""
        grid = rows.new_zeros(families, self.places, rows.shape[1], rows.shape[3])
        grid[self.family, self.place] = rows[:, :, 0]
        return grid.transpose(1, 2)

    def mask(self, real: Tensor, steps: int) -> Tensor:
        """Who sees what: (F, 1, places, L + steps * places), for prompts with real tokens (F, L) and so many steps.

        After one step the columns of the first family are `a b c r0 r1`: r0 sees 1 1 1 1 0 and r1 sees 1 1 1 0 1. The
        second one is padded on the left, `- d e r2 --`: r2 sees 0 1 1 1 0.
        """
        # All rows of a family see the same prompt; of the later columns each row sees those of its own place.
        prompt = real[:, None].expand(-1, self.places, -1)
        own = torch.eye(self.places, dtype=torch.bool).repeat(1, steps).expand(len(real), -1, -1)
        return torch.cat([prompt, own], dim=2)[:, None]


class Branches:
    """Where each token of one long row stands: family after family, each its prompt and then its completions.

    With completions x y after `a b c`, z beside it, and u v after `d e`, the row and the places are

        a b c x y z d e u v
        0 1 2 3 4 3 0 1 2 3

    so x and z are both the fourth token of a conversation, and z does not see x or y.

    Args:
        lengths: for each family the length of its prompt and those of its completions, all at least 1.

    Attributes:
        places: (T,) the position of each token in its own conversation.
        before: (C,) for each of them the token that comes before it.
        mask: (N, 1, longest completion, longest prompt + longest completion) what each completion's tokens see.
    """

    def __init__(self, lengths: Sequence[tuple[int, Sequence[int]]]):
        # 1. Which columns of the row each prompt and each completion has; a completion's first token follows the
        #    prompt's last. In the example `before` is [2 3 2 7 8], for x y z u v.
        prompts, completions, owner, places, before = [], [], [], [], []
        start = 0
        for family, (prompt, rows) in enumerate(lengths):
            prompts.append(torch.arange(start, start + prompt))
            places.append(torch.arange(prompt))
            start, last = start + prompt, start + prompt - 1
            for row in rows:
                completions.append(torch.arange(start, start + row))
                places.append(torch.arange(prompt, prompt + row))
                before.append(torch.cat([torch.tensor([last]), completions[-1][:-1]]))
                owner.append(family)
                start += row
        self.places, self.before = torch.cat(places), torch.cat(before)
        # 2. The blocks of attention, padded with -1: roots [0 1 2] [6 7 -], leaves [3 4] [5 -] [8 9].
        roots, leaves = (pad_sequence(rows, True, -1) for rows in (prompts, completions))
        # 3. Where each token of the row lies among the blocks, padding left out: sorting the columns brings them back.
        padded = torch.cat([roots.flatten(), leaves.flatten()])
        self._back = padded.argsort()[(padded < 0).sum() :]
        # 4. A completion's tokens see its prompt, without padding, and themselves up to each: z sees 1 1 1 and 1 0.
        above = roots[owner]
        longest = leaves.shape[1]
        causal = torch.ones(longest, longest, dtype=torch.bool).tril().expand(len(leaves), -1, -1)
        self.mask = torch.cat([(above >= 0)[:, None].expand(-1, longest, -1), causal], dim=2)[:, None]
        # Padding may point anywhere: what it holds is seen by padding alone.
        self._roots, self._leaves = roots.clamp(min=0), leaves.clamp(min=0)
        self._seen = torch.cat([above.clamp(min=0), self._leaves], dim=1)

    def to(self, device: torch.device) -> Branches:
        """Itself, with everything on the device of a model."""
        vars(self).update({name: value.to(device) for name, value in vars(self).items()})
        return self

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """Attention between the tokens of the row: (1, H, T, D), perhaps fewer heads of keys -> (1, T, H, D)."""
        query, key, value = (states[0].transpose(0, 1) for states in (query, key, value))

        def blocks(states: Tensor, where: Tensor) -> Tensor:
            taken = states.index_select(0, where.flatten())
            return taken.view(*where.shape, *states.shape[1:]).transpose(1, 2)

        # Prompts read themselves, once; completions read their prompt and themselves.
        root_queries, root_keys, root_values = (blocks(states, self._roots) for states in (query, key, value))
        seen_keys, seen_values = (blocks(states, self._seen) for states in (key, value))
        own = blocks(query, self._leaves)
        # Several query heads may share a head of keys and values (grouped-query attention).
        how: dict[str, Any] = {"scale": scale, "enable_gqa": query.shape[1] != key.shape[1]}
        mixed = (
            scaled_dot_product_attention(root_queries, root_keys, root_values, is_causal=True, **how),
            scaled_dot_product_attention(own, seen_keys, seen_values, self.mask, **how),
        )
        # The blocks one after another, (columns, H, D), and from them the tokens in the order of the row.
        rows = [part.transpose(1, 2).flatten(0, 1) for part in mixed]
        return torch.cat(rows).index_select(0, self._back)[None]


def family_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    seats: Seats | None = None,
    branches: Branches | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The `sdpa` of transformers, between the rows of each family if there are `seats` or `branches`.

    Args:
        query: (B, H, 1, D), a new token a row; with `branches` (1, H, T, D).
        key, value: (F, H, columns, D), the families' caches; with `branches` (1, H, T, D).
        attention_mask: (F, 1, places, columns); `branches` have their own.

    Returns:
        (B, 1, H, D), or with `branches` (1, T, H, D); and no weights.
    """
    if branches is not None:
        return branches.attend(query, key, value, kwargs.get("scaling")), None
    # A prompt that is read for the first time has neither: it is an ordinary batch.
    if seats is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    # The queries of a family's rows stand side by side, so its cache is read once for all of them.
    grid = seats.seat(query, len(key))
    mixed, _ = sdpa_attention_forward(module, grid, key, value, attention_mask, **kwargs)
    return mixed[seats.family, seats.place][:, None], None


def branch_logits(model: Any, families: Sequence[tuple[Sequence[int], Sequence[Sequence[int]]]]) -> Tensor:
    """Logits (C, V) for each token of each completion, in their order; everything is one row without padding.

    Args:
        model: a causal language model whose attention is `families`.
        families: prompts with their completions.
    """
    branches = Branches([(len(prompt), [*map(len, rows)]) for prompt, rows in families]).to(model.device)
    ids = torch.tensor([token for prompt, rows in families for row in (prompt, *rows) for token in row])
    states = model.model(
        ids[None].to(model.device), branches.mask, branches.places[None], use_cache=False, branches=branches
    ).last_hidden_state[0]
    # The state of a token predicts the next one: a completion's first token is predicted by the prompt's last.
    return model.lm_head(states.index_select(0, branches.before))


def obstacle_to_sharing(model: PreTrainedModel) -> str:
    """What keeps the rows of a model from sharing a prompt; empty for Llama and what computes like it.

    A token has to see all tokens before it, through transformers' attention interface and nothing else, and its logits
    have to be those of a bare head. A sliding window that is longer than the context is no window.
    """
    config = model.config
    window, context = getattr(config, "sliding_window", None), getattr(config, "max_position_embeddings", 0)
    # transformers has no public way to ask; without the interface `set_attn_implementation` would do nothing.
    if not model._supports_attention_backend or not context:
        return "its attention does not go through transformers' attention interface"
    named = (getattr(config, name, None) for name in ("layer_types", "layers_block_type", "block_types"))
    kinds = {kind for kinds in named for kind in kinds or ()} - {"full_attention", "attention"}
    if window is None or window >= context:
        kinds -= {"sliding_attention"}
    elif not kinds and not getattr(config, "layer_types", None):
        kinds = {"sliding_attention"}
    if kinds:
        return f"it has layers of the kind {', '.join(sorted(kinds))}"
    if any(name.endswith("sinks") for name, _ in model.named_parameters()):
        return "its attention has sinks"
    for name in ("attn_logit_softcapping", "final_logit_softcapping", "logit_scale", "logits_scaling"):
        if getattr(config, name, None) not in (None, 1.0):
            return f"it changes logits by `{name}`"
    if not all(hasattr(model, name) for name in ("model", "lm_head")):
        return "it has no decoder with a head upon it"
    return ""


AttentionInterface.register(FAMILIES, family_attention)
AttentionMaskInterface.register(FAMILIES, sdpa_mask)
