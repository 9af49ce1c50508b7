"""World-rehearsal training: rollouts, task success, role-wise advantages, one update; and again.

What is simplified against the paper: 24 tasks with 8 rollouts a step and LoRA on a 1.4 M model instead of 16 with 4 and
all weights of an 8 B one; one process; rollouts and updates take turns.

Every random draw of a step comes from the seed and the step's number alone. A run that is interrupted and resumed is
therefore bit for bit the run that was never interrupted.
"""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm

from envace_lite.grpo import clipped_loss, role_advantages
from envace_lite.model.chat import ACT, GIVEN, REHEARSE, ROLE_NAMES
from envace_lite.model.checkpoint import CheckpointError, claimed, load_state, save_state
from envace_lite.model.policy import Family, Policy, with_lora
from envace_lite.reward import Reward, task_success
from envace_lite.rollout import Responder, Trajectory, rollout
from envace_lite.world import Task

Observer = Callable[[int, Policy, Sequence[Trajectory]], dict[str, float]]
"""Looks on from outside after a step, and returns what should stand in the log. It feeds nothing back."""


@dataclass(frozen=True)
class TrainConfig:
    """How a policy is trained."""

    steps: int = 120
    """Number of updates."""
    prompts: int = 24
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
    epochs: int = 1
    """Updates on each batch of rollouts."""
    temperature: float = 1.0
    """Of the rollouts."""
    train_act: bool = True
    """Whether the act role's tokens are in the loss."""
    train_rehearse: bool = True
    """Whether the rehearse role's tokens are in the loss."""
    informative: float = 0.0
    """Least share of groups that hold both a success and a failure; tasks are drawn anew (twice at most) until it
    is reached. 0 takes what comes."""
    max_grad_norm: float = 1.0
    """Longer gradients are shortened to this."""
    seed: int = 0
    """Of adapters, task order and sampling."""
    detail_every: int = 10
    """Steps between two measurements of each role's own gradient norm (they cost a second backward pass)."""
    observe_every: int = 10
    """Steps between two calls of the observer; it also sees the policy before the first step."""
    save_every: int = 10
    """Steps between two checkpoints."""


@dataclass(frozen=True)
class Grounding:
    """Real responses whose likelihood is part of the loss: a departure from the paper, which uses task success alone.

    It exists to be compared with (see `experiments.trap`), and is never on by default.

    Args:
        examples: each the tokens up to the header of a response, with the tokens of the real one.
        weight: of their mean negative log-probability, beside the loss of a step.
        per_step: so many are drawn for each step.
    """

    examples: Sequence[tuple[Sequence[int], Sequence[int]]]
    weight: float = 0.1
    per_step: int = 8

    def draw(self, seed: int, step: int) -> list[Family]:
        """The examples of a step."""
        rng = Random(f"{seed}/{step}/grounding")
        chosen = rng.sample(list(self.examples), min(self.per_step, len(self.examples)))
        return [Family(prompt, [response]) for prompt, response in chosen]


@dataclass
class TrainLog:
    """What happened, one row a step.

    Args:
        rows: metrics of each step; see `metrics` for their meaning.
        observed: what the observer returned, with its step.
        totals: seconds, rollout tokens, environment calls.
    """

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
    observer: Observer | None = None,
    grounding: Grounding | None = None,
    workers: int = 1,
) -> tuple[Policy, TrainLog]:
    """Train a copy of a policy; the given one stays as it is.

    Args:
        policy: a plain policy.
        tasks: what is trained on; each step draws evenly from the domains among them.
        responder: who answers calls; the policy itself by default.
        reward: judges a trajectory.
        folder: where checkpoints go; an interrupted run found there is continued. One run at a time has it.
        observer: called every `config.observe_every` steps.
        grounding: real responses to imitate beside; not part of world rehearsal.
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
    identity = _identity(policy, tasks, config, responder, reward, grounding) if folder else {}
    path = Path(folder) / "train.pt" if folder else None
    with claimed(folder) if folder else nullcontext():
        if path and path.is_file():
            state = load_state(path)
            if state.get("identity") != identity:
                raise CheckpointError(f"{path} has another configuration; delete it or choose another folder")
            for name, value in state["parameters"].items():
                parameters[name].data.copy_(value)
            optimizer.load_state_dict(state["optimizer"])
            log, first = TrainLog(**state["log"]), state["step"]
        elif observer:
            log.observed.append({"step": 0, **observer(0, trained, [])})
        for step in (bar := tqdm(range(first, config.steps), desc="train", unit="step")):
            begin, asked = time.perf_counter(), responder.environment_calls
            trajectories, rewards = collect(trained, tasks, config, step, responder, reward)
            row = {"step": step + 1, **metrics(trajectories, rewards)}
            shown = grounding.draw(config.seed, step) if grounding else []
            for epoch in range(config.epochs):
                detail = epoch == 0 and step % config.detail_every == 0
                row |= update(
                    trained,
                    trajectories,
                    rewards,
                    config,
                    optimizer,
                    step,
                    shown=shown,
                    weight=grounding.weight if grounding else 0.0,
                    detail=detail,
                    workers=workers,
                )
            log.rows.append(row)
            log.totals["seconds"] += time.perf_counter() - begin
            log.totals["tokens"] += sum(len(t.ids) for t in trajectories)
            log.totals["environment_calls"] += responder.environment_calls - asked
            bar.set_postfix(reward=f"{row['reward']:.2f}", informative=f"{row['informative']:.2f}")
            if observer and (step + 1) % config.observe_every == 0:
                log.observed.append({"step": step + 1, **observer(step + 1, trained, trajectories)})
            if path and ((step + 1) % config.save_every == 0 or step + 1 == config.steps):
                save_state(
                    path,
                    {
                        "identity": identity,
                        "parameters": {name: p.data for name, p in parameters.items()},
                        "optimizer": optimizer.state_dict(),
                        "log": {"rows": log.rows, "observed": log.observed, "totals": log.totals},
                        "step": step + 1,
                    },
                )
    return trained, log


def _identity(
    policy: Policy,
    tasks: Sequence[Task],
    config: TrainConfig,
    responder: Responder,
    reward: Reward,
    grounding: Grounding | None,
) -> dict[str, Any]:
    """What has to be the same when a run is continued."""
    digest = hashlib.sha256(" ".join(task.id for task in tasks).encode())
    for value in policy.model.state_dict().values():
        digest.update(value.detach().numpy().tobytes())
    way = [type(responder).__name__, getattr(reward, "__name__", type(reward).__name__)]
    way += [repr(grounding)] if grounding else []
    way += [f"{responder.drafts} drafts"] if responder.drafts else []
    return {"config": asdict(config), "way": way, "base_and_tasks": digest.hexdigest()}


def collect(
    policy: Policy,
    tasks: Sequence[Task],
    config: TrainConfig,
    step: int,
    responder: Responder,
    reward: Reward,
) -> tuple[list[Trajectory], Tensor]:
    """The rollouts of a step and their rewards (prompts, group_size).

    With `config.informative`, groups that all succeed or all fail are replaced by those of fresh tasks, twice at most.
    """
    generator = torch.Generator().manual_seed(1_000_003 * config.seed + step)
    rng = Random(f"{config.seed}/{step}")
    kept: list[Trajectory] = []
    rewards = torch.empty(0, config.group_size)
    for _ in range(3):
        wanted = _draw(tasks, config.prompts, rng)
        fresh = rollout(
            policy,
            wanted,
            responder,
            group_size=config.group_size,
            temperature=config.temperature,
            generator=generator,
        )
        values = torch.tensor([reward(t) for t in fresh]).view(-1, config.group_size)
        kept, rewards = kept + fresh, torch.cat([rewards, values])
        order = torch.argsort(_mixed(rewards).int(), descending=True, stable=True)[: config.prompts].tolist()
        kept = [kept[row * config.group_size + i] for row in order for i in range(config.group_size)]
        rewards = rewards[order]
        if _mixed(rewards).float().mean() >= config.informative:
            break
    return kept, rewards


def _draw(tasks: Sequence[Task], count: int, rng: Random) -> list[Task]:
    by_domain: dict[str, list[Task]] = {}
    for task in tasks:
        by_domain.setdefault(task.domain, []).append(task)
    names = list(by_domain)
    return [rng.choice(by_domain[names[i % len(names)]]) for i in range(count)]


def _mixed(rewards: Tensor) -> Tensor:
    return rewards.amax(-1) > rewards.amin(-1)


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
    step: int,
    *,
    shown: Sequence[Family] = (),
    weight: float = 0.0,
    detail: bool = False,
    workers: int = 1,
) -> dict[str, float]:
    """One update of both roles on a batch of rollouts; groups without a difference in reward are skipped.

    Args:
        shown: real responses to imitate beside (see `Grounding`), with this `weight`.

    Returns:
        Entropy by role, the gradient's norm (with `detail` also by role), and the largest difference between the
        rollout's log-probabilities and the recomputed ones, which is rounding on the first epoch.
    """
    size = config.group_size
    trained_roles = [role for role, on in ((ACT, config.train_act), (REHEARSE, config.train_rehearse)) if on]
    advantages = {
        role: role_advantages(
            rewards, torch.tensor([float(t.outputs[role]) for t in trajectories]).view(-1, size)
        )
        for role in trained_roles
    }
    groups = [row for row in range(len(rewards)) if any(a[row].any() for a in advantages.values())]
    total = sum(role in trained_roles for t in trajectories for role in t.roles)
    if not shown and not (groups and total):
        return {"grad_norm": 0.0}
    members = [t for row in groups for t in trajectories[row * size : (row + 1) * size]]
    families = [
        Family(trajectories[row * size].prompt, [t.ids for t in trajectories[row * size : (row + 1) * size]])
        for row in groups
    ]
    roles = torch.tensor([role for t in members for role in t.roles])
    old = torch.tensor([value for t in members for value in t.log_probs])
    lengths = torch.tensor([len(t.ids) for t in members], dtype=torch.long)
    token_advantages = {
        role: values[groups].flatten().repeat_interleave(lengths) for role, values in advantages.items()
    }
    imitated = sum(len(family.completions[0]) for family in shown)

    def objective(log_p: Tensor, _: Tensor, where: Tensor) -> list[Tensor]:
        own = where < len(roles)  # what follows are the responses to imitate
        sampled, inside = log_p[own], where[own]
        terms = []
        for role, values in token_advantages.items():
            losses = clipped_loss(sampled, old[inside], values[inside], config.clip)
            terms.append(losses[roles[inside] == role].sum() / max(total, 1))
        if shown:
            terms.append(-weight * log_p[~own].sum() / imitated)
        return terms if detail else [torch.stack(terms).sum()]

    for group in optimizer.param_groups:
        group["lr"] = learning_rate(config, step)
    log_p, entropy, norms = policy.backward(
        [*families, *shown], objective, temperature=config.temperature, workers=workers
    )
    log_p, entropy = log_p[: len(roles)], entropy[: len(roles)]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    row = {"grad_norm": torch.nn.utils.clip_grad_norm_(parameters, config.max_grad_norm).item()}
    optimizer.step()
    if groups:
        row["drift"] = (log_p - old)[roles != GIVEN].abs().max().item()
    for role, name in ROLE_NAMES.items():
        if role in trained_roles and (roles == role).any():
            row[f"entropy_{name}"] = entropy[roles == role].mean().item()
    if detail:
        names = [*(ROLE_NAMES[role] for role in advantages), "grounding"][: len(norms)]
        row |= {f"grad_norm_{name}": norm for name, norm in zip(names, norms, strict=True)}
    return row


def metrics(trajectories: Sequence[Trajectory], rewards: Tensor) -> dict[str, float]:
    """What a step's rollouts were like.

    `reward`: mean; `informative`: share of groups with a success and a failure; `calls`: a rollout; `error_rate`:
    share of the responses that are errors; `unfinished`: share of the rollouts without a final answer. By role:
    `reward_act`, `reward_rehearse`: mean over that role's messages (its baseline over the whole batch); `length_...`:
    tokens a message. The false-success rate needs the real responses: it is the observer's `optimism`.
    """
    exchanges = [response for t in trajectories for _, response in t.exchanges]
    row = {
        "reward": rewards.mean().item(),
        "informative": _mixed(rewards).float().mean().item(),
        "calls": len(exchanges) / len(trajectories),
        "error_rate": sum(r.error is not None for r in exchanges) / max(len(exchanges), 1),
        "unfinished": sum(t.ending != "answer" for t in trajectories) / len(trajectories),
    }
    for role, name in ROLE_NAMES.items():
        outputs = torch.tensor([float(t.outputs[role]) for t in trajectories])
        written = max(outputs.sum().item(), 1.0)
        row[f"reward_{name}"] = (outputs * rewards.flatten()).sum().item() / written
        row[f"length_{name}"] = sum(t.roles.count(role) for t in trajectories) / written
    return row
