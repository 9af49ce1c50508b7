"""What several tests need: tasks, conversations, policies that do as they are told."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache
from itertools import islice
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from envace_lite.model.compact import Compact, build_tokenizer
from envace_lite.model.language import Language
from envace_lite.model.policy import CONTEXT, Policy
from envace_lite.rollout import Trajectory
from envace_lite.world import DOMAINS, Domain, Session, Task, get_domain
from envace_lite.world.shipped import shipped_tasks
from envace_lite.world.tools import ToolCall, ToolResponse, parse_calls

EVERY_DOMAIN = list(DOMAINS.values())
EVERY_SPLIT = ["train", "test", "held_out"]
CHAT = Compact(build_tokenizer())


@cache
def splits(name: str) -> dict[str, list[Task]]:
    """The splits of a domain as they are shipped."""
    return {split: shipped_tasks([name], split) for split in EVERY_SPLIT}


def some_tasks(domain: Domain, count: int) -> list[Task]:
    """The first tasks of the three splits, `count` in all."""
    share = -(-count // 3)
    return [task for split in EVERY_SPLIT for task in splits(domain.name)[split][:share]][:count]


def find_task(domain: str, *tags: str, without: Sequence[str] = ()) -> Task:
    """The first training task with these tags."""
    tasks = splits(domain)["train"]
    return next(task for task in tasks if {*tags} <= {*task.tags} and not {*without} & {*task.tags})


def planned_calls(task: Task) -> list[ToolCall]:
    """The calls of a task's plan."""
    return [call for turn in task.plan for text in turn for call in parse_calls(text, task.tools)]


def open_session(task: Task) -> Session:
    return get_domain(task.domain).reset(task)


def carried_out(task: Task, calls: Sequence[ToolCall]) -> Session:
    """A session in which these calls were made."""
    session = open_session(task)
    for call in calls:
        session.call(call)
    return session


def conversation(task: Task, *, together: bool = False) -> list[dict[str, Any]]:
    """The messages of an agent that follows the plan on the real environment.

    Args:
        together: whether the calls of a turn are made in one message.
    """
    session = open_session(task)
    messages: list[dict[str, Any]] = [*task.messages]
    for index, (turn, answer) in enumerate(zip(task.plan, task.outcomes[0].answers, strict=True)):
        if index:
            messages.append({"role": "user", "content": task.later_turns[index - 1]})
        calls = [call for text in turn for call in parse_calls(text, task.tools)]
        for batch in [calls] if together and calls else [[call] for call in calls]:
            messages.append({"role": "assistant", "tool_calls": [call.to_message() for call in batch]})
            for call in batch:
                response = session.call(call)
                messages.append({"role": "tool", "name": call.name, "content": response.text})
        messages.append({"role": "assistant", "content": answer})
    return messages


def trajectory(task: Task, exchanges: Sequence[tuple[str, str]], *answers: str) -> Trajectory:
    """A trajectory in which these calls brought these responses."""
    pairs = [(parse_calls(call, task.tools)[0], ToolResponse.parse(text)) for call, text in exchanges]
    said: list[dict[str, Any]] = []
    waiting = iter(pairs)
    for turn, calls in enumerate(task.plan):
        said += [{"role": "user", "content": task.later_turns[turn - 1]}] if turn else []
        last = turn == len(task.plan) - 1
        for call, response in waiting if last else islice(waiting, len(calls)):
            said.append({"role": "assistant", "tool_calls": [call.to_message()]})
            said.append({"role": "tool", "name": call.name, "content": response.text})
        said += [{"role": "assistant", "content": answer} for answer in answers[turn : turn + 1]]
    return Trajectory(task, [], exchanges=pairs, answers=list(answers), stop_reason="answer", said=said)


def real_exchanges(task: Task) -> list[tuple[str, str]]:
    """The planned calls with their real responses, as compact sentences."""
    session = open_session(task)
    return [(call.text, session.call(call).text) for call in planned_calls(task)]


def copied(policy: Policy) -> Policy:
    """A policy that may be trained without an effect on the given one."""
    return Policy(copy.deepcopy(policy.model), policy.chat)


def weights(policy: Policy) -> dict[str, Tensor]:
    """A copy of all weights."""
    return {name: value.clone() for name, value in policy.model.state_dict().items()}


def same_weights(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether two sets of weights are equal bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class Scripted(Policy):
    """A policy that writes given conversations, word for word.

    Its model keeps the ids that it has read as the keys of its cache, and continues them as the first conversation
    that starts like them does. What no conversation starts with it continues with the token that ends messages.

    Args:
        conversations: token ids of whole conversations, prompts included.
    """

    def __init__(self, conversations: Sequence[Sequence[int]], chat: Language = CHAT):
        self.conversations, self.chat = [list(ids) for ids in conversations], chat
        config = SimpleNamespace(num_hidden_layers=1, max_position_embeddings=CONTEXT)
        cpu = torch.device("cpu")
        self.model = SimpleNamespace(
            model=self._read, lm_head=lambda states: states, config=config, device=cpu
        )
        self.shares_prompts = True

    def _read(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Any, **_: Any) -> SimpleNamespace:
        column = ids[:, None, :, None].float()
        read = cache.layers[0].update(column, column)[0][:, 0, :, 0].long()
        logits = torch.zeros(*ids.shape, len(self.chat.tokenizer))
        for row, seen in enumerate(read.tolist()):
            logits[row, -1, self._following([token for token in seen if token != self.chat.pad])] = 1000.0
        return SimpleNamespace(last_hidden_state=logits)

    def _following(self, seen: list[int]) -> int:
        for ids in self.conversations:
            if len(ids) > len(seen) and ids[: len(seen)] == seen:
                return ids[len(seen)]
        return int(self.chat.tokenizer.eos_token_id)


def scripted(*conversations: tuple[Task, Sequence[dict[str, Any]]]) -> Scripted:
    """A policy that writes these conversations (each begins with its task's messages)."""
    return Scripted([CHAT.render(messages, task.tools) for task, messages in conversations])
