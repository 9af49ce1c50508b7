"""What the engine does, done by the usual means: for `bench` to measure the engine against.

`generate_rollout` is what one would write first: `transformers.generate` for each message of a batch of conversations,
which are read anew each time. `TrlSteps` trains on such rollouts with TRL's `GRPOTrainer`.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from envace_lite.model.language import GIVEN
from envace_lite.model.plain_rows import pad_left
from envace_lite.model.policy import Policy
from envace_lite.reward import task_success
from envace_lite.rollout import Responder, Row, Trajectory
from envace_lite.train import TrainConfig
from envace_lite.world import Task


@torch.inference_mode()
def generate_rollout(
    policy: Policy, tasks: Sequence[Task], *, group_size: int = 1, temperature: float = 1.0
) -> list[Trajectory]:
    """World rehearsal by `transformers.generate`, message by message; the same episodes as `rollout` writes.

    The conversations that are not finished are padded on the left and continued together until each has ended its
    message. All randomness comes from torch's global generator.
    """
    chat = policy.compact
    prompts = [chat.render(task.messages, task.tools, prompt="act") for task in tasks]
    episodes = [
        Row(policy, Trajectory(task, prompt), Responder(), None)
        for task, prompt in zip(tasks, prompts, strict=True)
        for _ in range(group_size)
    ]
    model = policy.folded().model
    while running := [episode for episode in episodes if not episode.done]:
        ids, real = pad_left([[*e.trajectory.prompt, *e.trajectory.ids] for e in running], chat.pad)
        written = model.generate(
            input_ids=ids,
            attention_mask=real.long(),
            do_sample=temperature > 0,
            **({"temperature": temperature, "top_k": 0} if temperature else {}),
            max_new_tokens=chat.longest_message,
            pad_token_id=chat.pad,
            eos_token_id=chat.end,
        )[:, ids.shape[1] :]
        for episode, tokens in zip(running, written.tolist(), strict=True):
            for token in tokens:
                episode.take(token, 0.0)
                if token == chat.end or episode.done:
                    break
            while episode.injected and not episode.done:
                episode.take(chat.pad, 0.0)
    return [episode.trajectory for episode in episodes]


class TrlSteps:
    """Training steps by TRL's `GRPOTrainer` with a two-role rollout in its `rollout_func`.

    Args:
        policy: with LoRA adapters, as `train` trains them; it is changed.
        tasks: what is trained on.
        config: steps, prompts, group size and rate.

    Attributes:
        seconds: of each step.
        tokens: rollout tokens of each step.
    """

    def __init__(self, policy: Policy, tasks: Sequence[Task], config: TrainConfig):
        self.policy, self.config = policy, config
        self.tasks = {task.id: task for task in tasks}
        self.seconds: list[float] = []
        self.tokens: list[int] = []

    def rollout(self, prompts: Sequence[str], _: Any) -> dict[str, list[Any] | None]:
        """What `rollout_func` has to return; the prompts come repeated, those of a group next to each other."""
        size = self.config.group_size
        tasks = [self.tasks[name] for name in prompts[::size]]
        trajectories = generate_rollout(self.policy, tasks, group_size=size)
        self.tokens.append(sum(len(t.ids) for t in trajectories))
        return {
            "prompt_ids": [t.prompt for t in trajectories],
            "completion_ids": [t.ids for t in trajectories],
            "logprobs": None,
            "env_mask": [[int(role != GIVEN) for role in t.roles] for t in trajectories],
            "reward": [task_success(t) for t in trajectories],
        }

    def run(self) -> None:
        """Train for `config.steps` steps and fill `seconds` and `tokens`.

        Raises:
            ModuleNotFoundError: TRL is not installed.
        """
        import pyarrow as pa
        from datasets import Dataset
        from transformers import TrainerCallback
        from trl import GRPOConfig, GRPOTrainer

        steps = self

        class Clock(TrainerCallback):
            def on_step_begin(self, *_: Any, **__: Any) -> None:
                self.begin = time.perf_counter()

            def on_step_end(self, *_: Any, **__: Any) -> None:
                steps.seconds.append(time.perf_counter() - self.begin)

        def reward(reward: list[float], **_: Any) -> list[float]:
            return reward

        config = self.config
        rows = config.prompts * config.group_size
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            arguments = GRPOConfig(
                output_dir=folder,
                use_cpu=True,
                bf16=False,
                max_steps=config.steps,
                learning_rate=config.lr,
                per_device_train_batch_size=rows,
                num_generations=config.group_size,
                steps_per_generation=1,
                max_completion_length=160,
                gradient_checkpointing=False,
                beta=0.0,
                loss_type="grpo",
                report_to="none",
                logging_strategy="no",
                save_strategy="no",
                disable_tqdm=True,
                seed=config.seed,
            )
            GRPOTrainer(
                model=self.policy.model,
                reward_funcs=reward,
                args=arguments,
                train_dataset=Dataset(pa.table({"prompt": list(self.tasks)}), fingerprint="tasks"),
                processing_class=self.policy.compact.tokenizer,
                rollout_func=self.rollout,
                callbacks=[Clock()],
            ).train()
