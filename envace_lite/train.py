"""World-rehearsal training: rollouts, task success, role-wise advantages, one update; and again.

What is simplified against the paper: 12 tasks with 8 rollouts a step and LoRA on a 1.4 M model instead of 16 with 4 and
all weights of an 8 B one; one process; rollouts and updates take turns. Each batch of rollouts is used for one update,
in which the policy still is the one that sampled them: every probability ratio is 1, so the clip never acts.
"""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm

from envace_lite.grpo import clipped_loss, role_advantages
from envace_lite.model.checkpoint import claimed, load_state, save_state
from envace_lite.model.language import ACT, GIVEN, REHEARSE, ROLE_NAMES
from envace_lite.model.policy import Family, Policy, with_lora
from envace_lite.reward import Reward, task_success
from envace_lite.rollout import Responder, Trajectory, rollout
from envace_lite.world import Task

EvalCallback = Callable[[int, Policy, Sequence[Trajectory]], dict[str, float]]
"""An eval callback: looks on from outside after a step, and returns what goes into the log. It feeds nothing back."""
ExtraLoss = Callable[[Policy, int, Sequence[Trajectory]], None]
"""Adds to the gradients of a policy in the update of a step (from 0), after those of its rollouts."""


@dataclass(frozen=True)
class TrainConfig:
    """How a policy is trained."""

    steps: int = 240
    """Number of updates."""
    prompts: int = 12
    """Tasks (groups) a step."""
    group_size: int = 8
    """Rollouts of each task."""
    lr: float = 2e-3
    """Highest learning rate: about 2e-3 for LoRA, 2e-4 for all weights."""
    warmup: int = 20
    """Steps over which the rate rises; without it the first steps do the most harm."""
    decay: float = 0.1
    """What is left of the rate at the last step (it falls linearly)."""
    lora_rank: int = 16
    """Rank of the adapters; 0 trains all weights."""
    clip: float = 0.2
    """How far a token's probability ratio may move before its gradient stops."""
    temperature: float = 1.0
    """Of the rollouts."""
    train_act: bool = True
    """Whether the act role's tokens are in the loss."""
    train_rehearse: bool = True
    """Whether the rehearse role's tokens are in the loss."""
    max_grad_norm: float = 1.0
    """Longer gradients are shortened to this."""
    seed: int = 0
    """Of adapters, task order and sampling."""
    observe_every: int = 40
    """Steps between two calls of the eval callback; it also sees the policy before the first step."""
    save_every: int = 10
    """Steps between two checkpoints."""


@dataclass
class TrainLog:
    """What happened: the `metrics` of each step, what the eval callback returned, and sums over all steps."""

    rows: list[dict[str, float]] = field(default_factory=list)
    observed: list[dict[str, float]] = field(default_factory=list)
    totals: dict[str, float] = field(
        default_factory=lambda: {"seconds": 0.0, "tokens": 0, "environment_calls": 0}
    )

    @property
    def frame(self) -> pd.DataFrame:
        """The metrics by step."""
        return pd.DataFrame(self.rows).set_index("step")

    def _repr_html_(self) -> str:
        return str(self.frame.tail(10).round(3).to_html())

    def __repr__(self) -> str:
        last = self.rows[-1] if self.rows else {}
        return f"<TrainLog: {len(self.rows)} steps, reward {last.get('reward', float('nan')):.3f}>"


def train(
    policy: Policy,
    tasks: Sequence[Task],
    config: TrainConfig = TrainConfig(),
    *,
    responder: Responder | None = None,
    reward: Reward = task_success,
    folder: Path | str | None = None,
    eval_callback: EvalCallback | None = None,
    extra_loss: ExtraLoss | None = None,
    workers: int = 1,
) -> tuple[Policy, TrainLog]:
    """Train a copy of a policy; the given one stays as it is.

    Args:
        policy: a plain policy.
        tasks: what is trained on; each step draws evenly from the domains among them.
        responder: who answers calls; the policy itself by default.
        reward: judges a trajectory.
        folder: where checkpoints go; an interrupted run found there is continued. One run at a time has it.
        eval_callback: called every `config.observe_every` steps.
        extra_loss: called within each update; not part of world rehearsal.
        workers: threads that share an update; set torch to one thread each.

    Raises:
        CheckpointError: the folder cannot be written, is in use, or holds a run with another configuration.
    """
    if config.lora_rank:
        trained = with_lora(policy, rank=config.lora_rank, seed=config.seed)
    else:
        trained = Policy(copy.deepcopy(policy.model), policy.chat)
    parameters = {name: p for name, p in trained.model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(parameters.values(), lr=config.lr, betas=(0.9, 0.99), weight_decay=0.0)
    responder, log, first = responder or Responder(), TrainLog(), 0
    identity = _identity(policy, tasks, config, responder, reward, extra_loss) if folder else {}
    path = Path(folder) / "train.pt" if folder else None
    with claimed(folder) if folder else nullcontext():
        if path and path.is_file():
            # Only what is trained was saved. The rest comes from the base, which `identity` holds to be the same.
            state = load_state(path, identity)
            for name, value in state["parameters"].items():
                parameters[name].data.copy_(value)
            optimizer.load_state_dict(state["optimizer"])
            log, first = TrainLog(**state["log"]), state["step"]
        elif eval_callback:
            log.observed.append({"step": 0, **eval_callback(0, trained, [])})
        for step in (bar := tqdm(range(first, config.steps), desc="train", unit="step")):
            begin, asked = time.perf_counter(), responder.environment_calls
            # Every random draw of a step comes from the seed and the step's number alone. A run that is interrupted and
            # resumed is therefore bit for bit the run that was never interrupted.
            trajectories, rewards = collect(trained, tasks, config, step, responder, reward)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(config, step)
            extra = partial(extra_loss, trained, step, trajectories) if extra_loss else None
            row = update(trained, trajectories, rewards, config, optimizer, extra_loss=extra, workers=workers)
            done, row = step + 1, {**metrics(trajectories, rewards), **row}
            log.rows.append({"step": done, **row})
            log.totals["seconds"] += time.perf_counter() - begin
            log.totals["tokens"] += sum(len(t.ids) for t in trajectories)
            log.totals["environment_calls"] += responder.environment_calls - asked
            # What looks on comes last: its time is not that of training, and a checkpoint holds what it has returned.
            bar.set_postfix({name: f"{row[name]:.2f}" for name in ("reward", "informative")})
            if eval_callback and done % config.observe_every == 0:
                log.observed.append({"step": done, **eval_callback(done, trained, trajectories)})
            if path and (done % config.save_every == 0 or done == config.steps):
                weights, kept = {name: p.data for name, p in parameters.items()}, optimizer.state_dict()
                save_state(path, identity, parameters=weights, optimizer=kept, log=vars(log), step=done)
    return trained, log


def _identity(
    policy: Policy, tasks: Sequence[Task], config: TrainConfig, *parts: Responder | Reward | ExtraLoss | None
) -> dict[str, Any]:
    """What has to be the same when a run is continued; a part may say by an attribute `identity` what it depends on."""
    digest = hashlib.sha256(" ".join(task.id for task in tasks).encode())
    for value in policy.model.state_dict().values():
        digest.update(value.detach().numpy().tobytes())
    way = [getattr(part, "__name__", type(part).__name__) for part in parts if part]
    way += [getattr(part, "identity", "") for part in parts if hasattr(part, "identity")]
    return {"config": asdict(config), "way": way, "base_and_tasks": digest.hexdigest()}


def collect(
    policy: Policy,
    tasks: Sequence[Task],
    config: TrainConfig,
    step: int,
    responder: Responder,
    reward: Reward,
) -> tuple[list[Trajectory], Tensor]:
    """The rollouts of a step and their rewards (prompts, group_size)."""
    rng, size = Random(f"{config.seed}/{step}"), config.group_size
    generator = torch.Generator().manual_seed(1_000_003 * config.seed + step)
    by_domain: dict[str, list[Task]] = {}
    for task in tasks:
        by_domain.setdefault(task.domain, []).append(task)
    # The domains take turns: each has its share of every step, however many tasks it has.
    drawn = [rng.choice(some) for some in islice(cycle(by_domain.values()), config.prompts)]
    trajectories = rollout(
        policy, drawn, responder, group_size=size, temperature=config.temperature, generator=generator
    )
    return trajectories, torch.tensor([float(reward(t)) for t in trajectories]).view(-1, size)


def learning_rate(config: TrainConfig, step: int) -> float:
    """Warm-up, then a straight line down to `decay` of the highest rate."""
    progress = step / max(config.steps, 1)
    return config.lr * min(1.0, (step + 1) / max(config.warmup, 1)) * (1 - (1 - config.decay) * progress)


def update(
    policy: Policy,
    trajectories: Sequence[Trajectory],
    rewards: Tensor,
    config: TrainConfig,
    optimizer: torch.optim.Optimizer,
    *,
    extra_loss: Callable[[], None] | None = None,
    workers: int = 1,
) -> dict[str, float]:
    """One update of both roles on a batch of rollouts; groups without a difference in reward are skipped.

    Args:
        trajectories: those of a group next to each other.
        rewards: (prompts, group_size).
        extra_loss: adds to the gradients before the optimiser's step.

    Returns:
        Entropy by role, the gradient's norm, and `drift`: the largest difference between the rollout's
        log-probabilities and the recomputed ones, which is rounding.
    """
    # 1. One advantage for each role in each rollout, (P, G); a role that is not trained has none.
    size, advantages = config.group_size, advantages_by_role(trajectories, rewards, config)
    # 2. Only groups in which some rollout did better than another teach anything: where all advantages are zero, so
    #    is the gradient. Leaving them out saves their computation and nothing else, as long as step 4 counts them.
    kept = [g for g in range(len(rewards)) if any(values[g].any() for values in advantages.values())]
    groups = [trajectories[g * size : (g + 1) * size] for g in kept]
    members = [t for group in groups for t in group]
    # 3. Everything by token, in the order of the rollouts: (N,). A token has the advantage of the role that wrote it;
    #    given tokens, and those of a role that is not trained, keep the weight 0.
    roles = torch.tensor([role for t in members for role in t.roles], dtype=torch.long)
    old = torch.tensor([value for t in members for value in t.log_probs])
    lengths = torch.tensor([len(t.ids) for t in members], dtype=torch.long)
    weights = torch.zeros(len(roles))
    for role, values in advantages.items():
        weights = torch.where(roles == role, values[kept].flatten().repeat_interleave(lengths), weights)
    # 4. The loss is a mean over all tokens of trained roles, those of skipped groups too: a step with few groups
    #    that teach something is a small step.
    total = sum(role in advantages for t in trajectories for role in t.roles)

    def objective(log_p: Tensor, _: Tensor, where: Tensor) -> Tensor:
        return clipped_loss(log_p, old[where], weights[where], config.clip).sum() / total

    # 5. The gradient, with each prompt read once for all its rollouts.
    optimizer.zero_grad()
    row: dict[str, float] = {}
    if groups and total:
        families = [Family(group[0].prompt, [t.ids for t in group]) for group in groups]
        log_p, entropy = policy.backward(families, objective, temperature=config.temperature, workers=workers)
        # Rollouts were sampled with the adapters folded into the weights; here they stand beside them.
        row["drift"] = (log_p - old)[roles != GIVEN].abs().max().item()
        for role in advantages:
            if (roles == role).any():
                row[f"entropy_{ROLE_NAMES[role]}"] = entropy[roles == role].mean().item()
    if extra_loss:
        extra_loss()
    # 6. The step. Where nothing has a gradient, nothing moves: the optimiser leaves out what has none, momentum or not.
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    row["grad_norm"] = torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm).item()
    optimizer.step()
    return row


def advantages_by_role(
    trajectories: Sequence[Trajectory], rewards: Tensor, config: TrainConfig
) -> dict[int, Tensor]:
    """The advantage (P, G) of each trained role's tokens in each rollout.

    A group of two rollouts with the rewards 1 and 0, in which the act role wrote 3 and 1 messages and the rehearse role
    2 and 2: the act role's baseline is (3 * 1 + 1 * 0) / 4 = 0.75, so its advantages are 0.25 and -0.75; those of the
    rehearse role are 0.5 and -0.5.
    """
    # Both roles share the reward of the whole rollout. What differs is the baseline: it is a mean over the role's
    # messages, so a rollout in which the role wrote a lot weighs more in it.
    roles = [role for role, on in ((ACT, config.train_act), (REHEARSE, config.train_rehearse)) if on]
    outputs = {role: torch.tensor([float(t.outputs[role]) for t in trajectories]) for role in roles}
    return {role: role_advantages(rewards, outputs[role].view_as(rewards)) for role in roles}


def metrics(trajectories: Sequence[Trajectory], rewards: Tensor) -> dict[str, float]:
    """What a step's rollouts were like.

    `reward`: mean; `informative`: share of groups with a success and a failure; `calls`: a rollout; `error_rate`: share
    of the responses that are errors; `unfinished`: share of the rollouts without a final answer. By role:
    `reward_act`, `reward_rehearse`: mean over that role's messages (its baseline over the whole batch); `length_...`:
    tokens a message. What is false in a rehearsed response only an eval callback can know, which asks the real world.
    """
    exchanges = [response for t in trajectories for _, response in t.exchanges]
    row = {
        "reward": rewards.mean().item(),
        "informative": (rewards.amax(-1) > rewards.amin(-1)).float().mean().item(),
        "calls": len(exchanges) / len(trajectories),
        "error_rate": sum(r.error is not None for r in exchanges) / max(len(exchanges), 1),
        "unfinished": sum(t.stop_reason != "answer" for t in trajectories) / len(trajectories),
    }
    for role, name in ROLE_NAMES.items():
        # Weighed by messages, as in the role's baseline.
        outputs = torch.tensor([float(t.outputs[role]) for t in trajectories])
        written = max(outputs.sum().item(), 1.0)
        row[f"reward_{name}"] = (outputs * rewards.flatten()).sum().item() / written
        row[f"length_{name}"] = sum(t.roles.count(role) for t in trajectories) / written
    return row
