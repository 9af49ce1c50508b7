"""Role-wise advantages and the clipped loss."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from envace_lite.grpo import clipped_loss, role_advantages, role_baseline

SIZES = st.tuples(st.integers(1, 5), st.integers(1, 8))
REWARD, COUNT = st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.integers(0, 9)


@st.composite
def groups(draw: st.DrawFn, counts: st.SearchStrategy[int] = COUNT) -> tuple[Tensor, Tensor]:
    """Rewards and numbers of outputs of some groups, in double precision."""
    rows, size = draw(SIZES)

    def table(values: st.SearchStrategy[float] | st.SearchStrategy[int]) -> Tensor:
        flat = draw(st.lists(values, min_size=rows * size, max_size=rows * size))
        return torch.tensor(flat, dtype=torch.float64).view(rows, size)

    return table(REWARD), table(counts)


def test_the_worked_example() -> None:
    """Rewards [1, 0, 1, 0] of rollouts with 2, 6, 2 and 6 outputs: the baseline is 4 / 16."""
    rewards, outputs = torch.tensor([[1.0, 0, 1, 0]]), torch.tensor([[2.0, 6, 2, 6]])
    assert role_baseline(rewards, outputs).tolist() == [[0.25]]
    assert role_advantages(rewards, outputs).tolist() == [[0.75, -0.25, 0.75, -0.25]]
    assert role_advantages(rewards, torch.ones(1, 4)).tolist() == [[0.5, -0.5, 0.5, -0.5]]


def test_each_group_has_its_own_baseline() -> None:
    rewards = torch.tensor([[1.0, 0, 1, 0], [1, 1, 1, 0]])
    outputs = torch.tensor([[2.0, 6, 2, 6], [1, 1, 1, 1]])
    assert role_baseline(rewards, outputs).tolist() == [[0.25], [0.75]]


@given(groups(counts=st.just(0)) | groups().map(lambda pair: (pair[0], torch.full_like(pair[0], 3.0))))
def test_with_equal_counts_it_is_plain_grpo(pair: tuple[Tensor, Tensor]) -> None:
    rewards, outputs = pair
    plain = rewards - rewards.mean(-1, keepdim=True)
    torch.testing.assert_close(role_advantages(rewards, outputs), plain)


@given(groups())
def test_advantages_of_all_outputs_add_up_to_nothing(pair: tuple[Tensor, Tensor]) -> None:
    rewards, outputs = pair
    total = (outputs * role_advantages(rewards, outputs)).sum(-1)
    torch.testing.assert_close(total, torch.zeros_like(total), atol=1e-9, rtol=0)


@given(groups())
def test_a_group_without_a_difference_has_no_advantage(pair: tuple[Tensor, Tensor]) -> None:
    """Exactly none in single precision too, since such groups are left out of an update."""
    _, outputs = pair
    for reward in (0.0, 1.0):
        assert not role_advantages(torch.full_like(outputs, reward).float(), outputs.float()).any()


@given(groups(), st.floats(-3, 3))
def test_a_constant_added_to_all_rewards_changes_nothing(
    pair: tuple[Tensor, Tensor], constant: float
) -> None:
    rewards, outputs = pair
    shifted = role_advantages(rewards + constant, outputs)
    torch.testing.assert_close(shifted, role_advantages(rewards, outputs), atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.1, 2.0, -2.2, -2.2),
        (1.5, 2.0, -2.4, 0.0),  # already likely enough: no more of it
        (0.5, 2.0, -1.0, -1.0),  # good and too unlikely: all of the gradient
        (0.5, -2.0, 1.6, 0.0),  # already unlikely enough
        (1.5, -2.0, 3.0, 3.0),  # bad and too likely
        (1.0, 0.0, 0.0, 0.0),
    ],
)
def test_known_losses(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    old = torch.tensor([-2.0], dtype=torch.float64)
    log_p = (old + torch.tensor(ratio, dtype=torch.float64).log()).requires_grad_()
    value = clipped_loss(log_p, old, torch.tensor([advantage], dtype=torch.float64))
    assert value.item() == pytest.approx(loss)
    (grad,) = torch.autograd.grad(value.sum(), log_p)
    assert grad.item() == pytest.approx(gradient)


@pytest.mark.parametrize("clip", [0.1, 0.2, 0.5])
def test_both_ends_of_the_clip(clip: float) -> None:
    """A good token gains nothing above 1 + clip, a bad one nothing below 1 - clip; on the other side both move."""
    for ratio, advantage, bound in ((2.0, 1.0, 1 + clip), (0.3, -1.0, 1 - clip)):
        log_p = torch.tensor([ratio]).log()
        assert clipped_loss(log_p, torch.zeros(1), torch.tensor([advantage]), clip).item() == pytest.approx(
            -bound * advantage
        )
    for ratio, advantage in ((0.3, 1.0), (2.0, -1.0)):
        log_p = torch.tensor([ratio]).log()
        assert clipped_loss(log_p, torch.zeros(1), torch.tensor([advantage]), clip).item() == pytest.approx(
            -ratio * advantage
        )


def test_the_width_of_the_clip() -> None:
    old, log_p = torch.zeros(1), torch.tensor([1.5]).log()
    assert clipped_loss(log_p, old, torch.ones(1), clip=0.3).item() == pytest.approx(-1.3)
    assert clipped_loss(log_p, old, torch.ones(1), clip=0.6).item() == pytest.approx(-1.5)
