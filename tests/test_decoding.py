"""Decoding: the draw of a token, and rows of shared prompts that leave against whole sequences read anew."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch
from transformers import LlamaForCausalLM

from envace_lite.model.decoding import Decoder, sample
from envace_lite.model.policy import new_policy
from envace_lite.model.shared_prefix import FAMILIES, Seats
from helpers import copied

POLICY = new_policy(width=32, layers=2)
PROMPTS = [[9, 10, 11, 12, 13, 14], [20, 21], [30, 31, 32, 33]]


def test_tokens_are_drawn_with_their_probabilities() -> None:
    """Within five standard deviations of a binomial; and never a token of probability zero."""
    logits = torch.tensor([-torch.inf, 0.0, 1.0, -torch.inf, 2.0, -torch.inf])
    draws = 40_000
    tokens, log_p = sample(logits.expand(draws, -1), 1.0, torch.Generator().manual_seed(0))
    expected = logits.softmax(0)
    found = tokens.bincount(minlength=6) / draws
    assert torch.equal(found > 0, expected > 0)
    assert (found - expected).abs().max() < 5 * (0.25 / draws) ** 0.5
    assert torch.allclose(log_p, expected.log()[tokens])


@pytest.mark.parametrize(("point", "token"), [(0.0, 1), (1.0 - 2**-24, 4)])
def test_the_ends_of_the_draw_are_possible_tokens(
    point: float, token: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least and the greatest random number do not fall on a token of probability zero."""
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: torch.full(shape, point))
    logits = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf, 2.0]])
    assert sample(logits, 1.0, None)[0].tolist() == [token]


def test_a_lower_temperature_sharpens_and_none_is_greedy() -> None:
    logits = torch.tensor([[0.0, 1.0, 0.5]]).expand(5000, -1)
    share = [
        (sample(logits, t, torch.Generator().manual_seed(0))[0] == 1).float().mean() for t in (1.0, 0.3, 0)
    ]
    assert share[0] < share[1] < share[2] == 1


@pytest.mark.same_bits
@pytest.mark.parametrize("copies", [1, 2, 5])
def test_logits_are_those_of_the_whole_sequence_whoever_has_left(copies: int) -> None:
    """Rows leave at random, so that places and whole families fall empty and the rest closes up, several times."""
    rng = Random(copies)
    chat = POLICY.chat
    model = POLICY.model
    with torch.inference_mode():
        decoder = Decoder(model, PROMPTS, copies, 20, chat.pad)
        rows = [list(prompt) for prompt in PROMPTS for _ in range(copies)]
        for step in range(20):
            if step % 4 == 3 and len(rows) > 1:
                kept = sorted(rng.sample(range(len(rows)), max(1, int(0.7 * len(rows)))))
                decoder.pick(torch.tensor(kept))
                rows = [rows[i] for i in kept]
            assert len(decoder.logits) == len(rows)
            for logits, row in zip(decoder.logits, rows, strict=True):
                assert torch.allclose(logits, model(torch.tensor([row])).logits[0, -1], atol=1e-5)
            tokens = [rng.randrange(8, len(chat.words)) for _ in rows]
            rows = [[*row, token] for row, token in zip(rows, tokens, strict=True)]
            decoder.step(torch.tensor(tokens))


def test_a_family_keeps_its_prompt_once() -> None:
    model = POLICY.model
    with torch.inference_mode():
        decoder = Decoder(model, PROMPTS, 8, 5, POLICY.chat.pad)
        decoder.step(torch.full((24,), 9))
    assert decoder.layers[0].keys.shape[:3] == (3, 4, 6 + 5 * 8)
    assert decoder.layers[0].get_seq_length() == 6 + 8


def test_a_row_sees_its_prompt_and_itself() -> None:
    real = torch.tensor([[False, True], [True, True]])
    seats = Seats(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 0]), 2)
    mask = seats.mask(real, 2)[:, 0].int().tolist()
    assert mask == [
        [[0, 1, 1, 0, 1, 0], [0, 1, 0, 1, 0, 1]],
        [[1, 1, 1, 0, 1, 0], [1, 1, 0, 1, 0, 1]],
    ]


@pytest.mark.same_bits
def test_without_seats_it_is_the_usual_attention() -> None:
    """So the model reads and generates elsewhere as any other one."""
    usual = copied(POLICY).model
    usual.set_attn_implementation("sdpa")
    ids, model = torch.tensor([PROMPTS[0]]), POLICY.model
    assert model.config._attn_implementation == FAMILIES
    assert torch.equal(model(ids).logits, usual(ids).logits)
    assert model.generate(ids, max_new_tokens=2, do_sample=False).shape[1] <= 8


def test_a_saved_policy_asks_for_the_usual_attention(tmp_path: Path) -> None:
    """Plain transformers, which know nothing of ours, load it."""
    POLICY.save(tmp_path)
    assert FAMILIES not in (tmp_path / "config.json").read_text(encoding="utf-8")
    assert LlamaForCausalLM.from_pretrained(tmp_path).config._attn_implementation == "sdpa"
