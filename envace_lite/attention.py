"""Attention of rows that share a prompt: its keys and values are kept, and read, once for all of them.

For each new token, sampling reads a cache of keys and values, and that is what it waits for. Rollouts come in groups,
and a group's prompt is longer than what follows it. So the rows of a prompt form a *family*, whose cache holds the
prompt once and each row's own tokens after it; the queries of a family's rows are computed together, and a mask lets
each see the prompt and itself. Every other part of the model sees plain rows of one token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

FAMILIES = "families"
"""Name of this attention among those of transformers; without `seats` it is its `sdpa`."""


@dataclass
class Seats:
    """Where each row of a batch sits: in which family, and at which place there.

    Args:
        family: (B,) ascending.
        place: (B,) different for the rows of one family.
        places: how many there are in each family; some may be empty.
    """

    family: Tensor
    place: Tensor
    places: int

    def seat(self, rows: Tensor, families: int) -> Tensor:
        """(B, H, 1, D) -> (F, H, places, D), with zeros on empty places."""
        grid = rows.new_zeros(families, self.places, rows.shape[1], rows.shape[3])
        grid[self.family, self.place] = rows[:, :, 0]
        return grid.transpose(1, 2)

    def mask(self, real: Tensor, steps: int) -> Tensor:
        """Who sees what: (F, 1, places, L + steps * places), for prompts with real tokens (F, L) and so many steps."""
        prompt = real[:, None].expand(-1, self.places, -1)
        own = torch.eye(self.places, dtype=torch.bool).repeat(1, steps).expand(len(real), -1, -1)
        return torch.cat([prompt, own], dim=2)[:, None]


def family_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    seats: Seats | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The `sdpa` of transformers, between the rows of each family if there are `seats`.

    Args:
        query: (B, H, 1, D), a new token a row.
        key, value: (F, H, columns, D), the families' caches.
        attention_mask: (F, 1, places, columns).

    Returns:
        (B, 1, H, D), and no weights.
    """
    if seats is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    grid = seats.seat(query, len(key))
    mixed, _ = sdpa_attention_forward(module, grid, key, value, attention_mask, **kwargs)
    return mixed[seats.family, seats.place][:, None], None


AttentionInterface.register(FAMILIES, family_attention)
AttentionMaskInterface.register(FAMILIES, sdpa_mask)
