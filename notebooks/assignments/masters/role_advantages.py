# %% [markdown]
# # Assignment: role-wise advantages
#
# One reward at the end of a rollout, and two roles that wrote messages on the way. How much is
# each token to blame? About 30 minutes, with pencil and paper.
#
# A group holds several rollouts of one task. `rewards[j]` is the reward of rollout `j`,
# `outputs[j]` the number of messages that one role wrote in it. The baseline of that role
# counts each rollout as often as the role wrote in it:
#
#     mu = sum(n[j] * R[j]) / sum(n[j])        A[j] = R[j] - mu
#
# Where the role wrote nothing in the whole group, take the plain mean of the rewards. Nothing
# is divided by a standard deviation.


# %% solution advantages
def role_advantages(rewards, outputs):
    """A list with the advantage of one role in each rollout."""
    ### BEGIN SOLUTION
    if sum(outputs):
        baseline = sum(n * r for n, r in zip(outputs, rewards)) / sum(outputs)
    else:
        baseline = sum(rewards) / len(rewards)
    return [reward - baseline for reward in rewards]
    ### END SOLUTION


# %% given close
def close(one, other):
    """Whether two lists of numbers are the same up to rounding."""
    assert one is not None, "the function returns nothing"
    same = len(one) == len(other) and all(abs(a - b) < 1e-9 for a, b in zip(one, other))
    return same


# %% test adv-equal 2 with equal numbers of messages it is plain GRPO
assert close(role_advantages([1, 0, 1, 0], [3, 3, 3, 3]), [0.5, -0.5, 0.5, -0.5]), (
    "with equal numbers of messages, the baseline is the plain mean: R - mean, not mean - R"
)
### BEGIN HIDDEN TESTS
assert close(
    role_advantages([1, 0, 0, 0], [2, 2, 2, 2]), [0.75, -0.25, -0.25, -0.25]
), "do not divide by the standard deviation"
### END HIDDEN TESTS

# %% test adv-weighted 3 a rollout counts as often as the role wrote in it
mine = role_advantages([1, 0, 1, 0], [2, 6, 2, 6])
assert close(mine, [0.75, -0.25, 0.75, -0.25]), (
    f"for R = [1, 0, 1, 0] and n = [2, 6, 2, 6] the baseline is 4 / 16; you give {mine}"
)
### BEGIN HIDDEN TESTS
odd = role_advantages([1, 0, 1, 0], [1, 2, 3, 0])
assert abs(sum(n * a for n, a in zip([1, 2, 3, 0], odd))) < 1e-9, (
    "messages times advantages have to sum to zero: divide by the sum of the messages"
)
assert close(role_advantages([0.5, 1.0], [1, 3]), [-0.375, 0.125]), (
    "rewards need not be 0 or 1"
)
### END HIDDEN TESTS

# %% test adv-silent 1 a role that wrote nothing in the whole group
assert close(role_advantages([1, 0], [0, 0]), [0.5, -0.5]), (
    "without messages, take the plain mean"
)

# %% [markdown]
# ## From rollouts to tokens
#
# Each token of a rollout gets the advantage of the role that wrote it. A given token (role id
# 0) gets none: 0.


# %% solution tokens
def token_advantages(role_ids, act_advantage, rehearse_advantage):
    """A list with the advantage of each token; role ids are 0 given, 1 act, 2 rehearse."""
    ### BEGIN SOLUTION
    of_role = {0: 0.0, 1: act_advantage, 2: rehearse_advantage}
    return [of_role[role] for role in role_ids]
    ### END SOLUTION


# %% test adv-tokens 2 each token has the advantage of its own role, a given one has none
spread = token_advantages([1, 1, 0, 2, 0, 1], 0.5, -0.25)
assert spread is not None, "token_advantages returns nothing"
assert len(spread) == 6, "there has to be one advantage for each token"
assert [spread[2], spread[4]] == [0, 0], (
    "a given token was not sampled, so it has no advantage"
)
assert list(spread) == [0.5, 0.5, 0, -0.25, 0, 0.5], (
    "role id 1 is act, role id 2 is rehearse"
)
### BEGIN HIDDEN TESTS
assert list(token_advantages([], 1, 1)) == [], "an empty rollout has no tokens"
assert list(token_advantages([2, 1, 0], 1, 2)) == [2, 1, 0], (
    "the roles may come in any order"
)
### END HIDDEN TESTS

# %% demo adv-demo
import torch

from envace_lite import grpo

one, other = torch.tensor([[1.0, 0.0, 1.0, 0.0]]), torch.tensor([[2.0, 6.0, 2.0, 6.0]])
print("yours:      ", role_advantages(one[0].tolist(), other[0].tolist()))
print("the library:", grpo.role_advantages(one, other)[0].tolist())
