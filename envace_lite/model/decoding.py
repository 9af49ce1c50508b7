"""Decoding: next tokens for a batch of rows that advance together, over one preallocated key-value cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from envace_lite.model.plain_rows import PlainDecoder, pad_left
from envace_lite.model.policy import Policy
from envace_lite.model.shared_prefix import Seats


class _Layer(DynamicLayer):
    """A cache layer of families (see `shared_prefix`), with room made in advance, so that a step copies nothing.

    Columns: the prompt's, then for each step one a place. Two families with prompts of 2 tokens and 3 places, after one
    step and with room for another (rows r0 to r4, an empty place, and what is not written yet):

        a b | r0 r1 r2 | .  .  .
        c d | r3 r4 -- | .  .  .
    """

    def __init__(self, seats: Seats, room: int):
        super().__init__()
        self.seats, self.room, self.length, self.is_initialized = seats, room, 0, False

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        # 1. The prompts come first, one row a family: make room for everything that can follow.
        if not self.is_initialized:
            families, heads, start, width = key_states.shape
            shape = (families, heads, start + self.room * self.seats.places, width)
            self.keys, self.values = key_states.new_empty(shape), value_states.new_empty(shape)
            self.is_initialized = True
            self._append(key_states, value_states)
            return key_states, value_states
        # 2. Then one token a row. The grid of places puts the rows of a family side by side.
        families = len(self.keys)
        self._append(self.seats.seat(key_states, families), self.seats.seat(value_states, families))
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def _append(self, keys: Tensor, values: Tensor) -> None:
        end = self.length + keys.shape[2]
        self.keys[:, :, self.length : end] = keys
        self.values[:, :, self.length : end] = values
        self.length = end

    def get_seq_length(self) -> int:
        return self.length

    def pick(self, families: Tensor, columns: Tensor, room: int) -> None:
        """Keep some families (F,) and for each of them the given columns (F, C); leave room for so many more."""
        # The keys of all families and heads lie one after another, `old` columns each: column c of head h of family f
        # is number (f * heads + h) * old + c of them. So one indexing gathers everything that stays.
        _, heads, old, width = self.keys.shape
        head = families[:, None, None] * heads + torch.arange(heads)[:, None]
        where = head * old + columns[:, None]
        self.length = columns.shape[1]
        for name in ("keys", "values"):
            kept = self.keys.new_empty(len(families), heads, self.length + room, width)
            kept[:, :, : self.length] = getattr(self, name).view(-1, width)[where]
            setattr(self, name, kept)


class Decoder:
    """Next-token logits of one model for a batch of rows that advance together.

    Args:
        model: the plain model (see `Policy.folded`).
        prompts: token ids; each is read once.
        copies: rows that start from each prompt.
        room: most tokens that will follow.
        pad: id of the padding token.

    Attributes:
        logits: (B, V) in float32 on the CPU, for the next token of each row.
    """

    def __init__(
        self, model: PreTrainedModel, prompts: Sequence[Sequence[int]], copies: int, room: int, pad: int
    ):
        # Prompts end in the last column, so that what is written next stands in the same column for all of them.
        ids, self.real = pad_left(prompts, pad)
        self.backbone, self.head, self.device = model.model, model.lm_head, model.device
        rows = torch.arange(len(prompts) * copies)
        self.seats = Seats(rows // copies, rows % copies, copies)
        self.steps, self.room = 0, room
        self.layers = [_Layer(self.seats, room) for _ in range(model.config.num_hidden_layers)]
        self.cache = Cache(layers=self.layers)
        # Padding takes no position: each prompt counts from 0, as it would alone.
        positions = (self.real.cumsum(1) - 1).clamp(min=0)
        given = (x.to(self.device) for x in (ids, square_mask(self.real), positions))
        states = self.backbone(*given, self.cache, use_cache=True)
        self.positions = positions[self.seats.family, -1:]
        self.logits = self._next(states)[self.seats.family]

    def pick(self, rows: Tensor) -> None:
        """Keep the given rows, in ascending order. A family without rows leaves; the others close up.

        If r1 and r3 of the example of `_Layer` stay, each family has one row, so one place is enough. Of each step only
        the column of its row is kept: 1 in the first family, 0 in the second. The cache is then

            a b | r1 | .
            c d | r3 | .
        """
        # 1. The families that still have rows, renumbered, and the places, counted from 0 in each.
        seats, prompt = self.seats, self.real.shape[1]
        families, family, counts = seats.family[rows].unique(return_inverse=True, return_counts=True)
        place = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[family]
        places = int(counts.max())
        # 2. Where the row of each new place sat before.
        before = torch.zeros(len(families), places, dtype=torch.long)  # an empty place copies the first one
        before[family, place] = seats.place[rows]
        # 3. The columns to keep: the prompt's, and of each step those of the places before.
        own = prompt + torch.arange(self.steps)[:, None] * seats.places + before[:, None]
        columns = torch.cat([torch.arange(prompt).expand(len(families), -1), own.flatten(1)], dim=1)
        for layer in self.layers:
            layer.pick(families, columns, (self.room - self.steps) * places)
        seats.family, seats.place, seats.places = family, place, places
        self.positions, self.real, self.logits = self.positions[rows], self.real[families], self.logits[rows]

    def step(self, tokens: Tensor) -> None:
        """Append one token to each row. `tokens`: (B,)."""
        self.steps += 1
        self.positions = self.positions + 1
        mask = self.seats.mask(self.real, self.steps)
        given = (x.to(self.device) for x in (tokens[:, None], mask, self.positions))
        self.logits = self._next(self.backbone(*given, self.cache, use_cache=True, seats=self.seats))

    def _next(self, read: Any) -> Tensor:
        """(B, V) where the draw is made, whatever the model computes with."""
        return self.head(read.last_hidden_state[:, -1]).float().cpu()


def open_decoder(
    policy: Policy, prompts: Sequence[Sequence[int]], copies: int, room: int
) -> Decoder | PlainDecoder:
    """The decoder for a policy's model, of which a LoRA's adapters are folded in."""
    plain, pad = policy.folded(), policy.chat.pad
    if plain.shares_prompts:
        return Decoder(plain.model, prompts, copies, room, pad)
    return PlainDecoder(plain.model, prompts, copies, pad)


def sample(logits: Tensor, temperature: float, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Draw a token a row from logits (B, V); greedy at temperature 0.

    Returns:
        Tokens (B,) and the log-probabilities (B,) with which they were drawn.
    """
    log_p = (logits / (temperature or 1.0)).log_softmax(-1)
    if temperature == 0:
        tokens = log_p.argmax(-1)
    else:
        # One random number a row: torch.multinomial draws one a word, and takes four times as long.
        # The words share a line of length one, each as much as it is likely; the word under a random point is drawn. By
        # rounding the line is a little longer or shorter than one, so the point is scaled by its real length.
        below = log_p.exp().cumsum(-1)
        point = torch.rand(len(below), 1, generator=generator) * below[:, -1:]
        tokens = torch.searchsorted(below, point, right=True).squeeze(-1).clamp(max=below.shape[1] - 1)
    return tokens, log_p.gather(-1, tokens[:, None]).squeeze(-1)


@torch.inference_mode()
def complete(
    policy: Policy,
    prefixes: Sequence[Sequence[int]],
    *,
    roles: Sequence[str] | None = None,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
    at_once: int = 64,
) -> list[tuple[str, float]]:
    """Finish one message after each prefix (ids that end in a role's header).

    Args:
        roles: who writes it: `act`, or the name of the tool that the rehearse role plays; by default all are of the act
            role. It says what ends a message.

    Returns:
        For each prefix the message without what ends it, and its log-probability.
    """
    language, policy = policy.chat, policy.folded()
    roles = roles or ["act"] * len(prefixes)
    written: list[list[int]] = [[] for _ in prefixes]
    total = [0.0] * len(prefixes)
    # Prefixes of similar length go together, so that little is padded.
    order = sorted(range(len(prefixes)), key=lambda i: len(prefixes[i]))
    for start in range(0, len(order), at_once):
        rows = order[start : start + at_once]
        decoder = open_decoder(policy, [prefixes[i] for i in rows], 1, language.longest_message)
        for _ in range(language.longest_message):
            tokens, log_p = sample(decoder.logits, temperature, generator)
            for i, token, value in zip(rows, tokens.tolist(), log_p.tolist(), strict=True):
                written[i].append(token)
                total[i] += value
            # A row that has ended its message leaves the cache at once.
            running = [row for row, i in enumerate(rows) if not language.ended(written[i], roles[i])]
            if not running:
                break
            if len(running) < len(rows):
                decoder.pick(torch.tensor(running))
                tokens, rows = tokens[running], [rows[row] for row in running]
            decoder.step(tokens)
    texts = [language.read(ids, role) for ids, role in zip(written, roles, strict=True)]
    return list(zip(texts, total, strict=True))


def square_mask(real: Tensor) -> Tensor:
    """(B, T) -> (B, 1, T, T): each token sees itself and the real ones before it."""
    length = real.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    return ((causal & real[:, None, :]) | torch.eye(length, dtype=torch.bool))[:, None]
