"""The rollout engine: many episodes at once, in which one policy acts and something answers.

What is simplified against the paper: a batch advances one token a time on one CPU; calls and responses are short;
a call or a response that cannot be parsed ends the episode as a failure.

Each row of the batch takes one token a step. Some tokens are sampled, by the act role or by the rehearse role; the
others are injected: headers, injected responses, what the user says next. A group's prompt is read once, rows that are
finished leave the batch, and the ids that were sampled are the ids that are trained on: nothing is encoded again.
Who answers a call is the responder's business: `Rehearse`, `Execute`, `Simulate`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

import torch

from envace_lite.model.decoding import open_decoder, sample
from envace_lite.model.language import ACT, GIVEN, REHEARSE, ROLE_NAMES, Language, Message, VocabularyError
from envace_lite.model.policy import Policy
from envace_lite.world import Session, Task, get_domain
from envace_lite.world.result import MALFORMED, Result
from envace_lite.world.tools import ToolCall, ToolError

ACTOR = "act"
"""Who writes a message: the act role; otherwise the name of the tool that the rehearse role plays."""
HORIZON = 10
"""The call of this number is answered, and then the episode ends as a failure."""


class Responder:
    """Who answers a call. The base class lets the policy's rehearse role answer.

    Attributes:
        role: role id of the response's tokens; `GIVEN` tokens are not trained.
        simulator: the policy that writes the response, if it is another one.
        environment_calls: how many calls the real environment has answered so far.
        horizon: calls after which an episode ends; with 0 it ends at the first call, unanswered.
    """

    role = REHEARSE
    simulator: Policy | None = None
    environment_calls = 0
    horizon = HORIZON

    def start(self) -> None:
        """Called before a batch of episodes is opened."""

    def open(self, task: Task) -> Callable[[ToolCall], Result] | None:
        """What answers the calls of one episode; None when the answers are sampled."""
        return None

    def aside(self, number: int) -> bool:
        """Whether the act role's message of this number, from 1, is set aside: it stays in sight, unanswered."""
        return False


class Rehearse(Responder):
    """The policy answers its own calls. No session is ever opened."""

    def __init__(self, *, horizon: int = HORIZON):
        self.horizon = horizon


class Execute(Responder):
    """The real environment answers. `sessions` holds those of the latest batch, in the order of the rows."""

    role = GIVEN

    def __init__(self) -> None:
        self.sessions: list[Session] = []

    def start(self) -> None:
        self.sessions = []

    def open(self, task: Task) -> Callable[[ToolCall], Result]:
        session = get_domain(task.domain).reset(task)
        self.sessions.append(session)

        def answer(call: ToolCall) -> Result:
            self.environment_calls += 1
            return session.call(call)

        return answer


class Simulate(Responder):
    """Another, frozen policy answers; it reads what the acting policy reads.

    Args:
        simulator: has to share the vocabulary.
    """

    role = GIVEN

    def __init__(self, simulator: Policy):
        self.simulator = simulator


@dataclass
class Trajectory:
    """The record of one episode.

    Args:
        task: what was asked.
        prompt: ids up to the first header of the act role.
        ids: ids of everything after it.
        roles: role id of each of them.
        log_probs: log-probability with which each was sampled; 0 for `GIVEN` tokens.
        exchanges: calls with their responses.
        answers: the final answer of each user turn.
        stop_reason: `answer`, or why there is none: `malformed`, `overlong`, `horizon`.
        outputs: number of messages that each role wrote.
        said: the messages after those of the task, in the standard form; drafts are left out.
    """

    task: Task
    prompt: list[int]
    ids: list[int] = field(default_factory=list)
    roles: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    exchanges: list[tuple[ToolCall, Result]] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    stop_reason: str = ""
    outputs: dict[int, int] = field(default_factory=lambda: {ACT: 0, REHEARSE: 0})
    said: list[dict[str, Any]] = field(default_factory=list)

    def append(self, token: int, role: int, log_prob: float) -> None:
        """Add one token."""
        self.ids.append(token)
        self.roles.append(role)
        self.log_probs.append(log_prob)

    def messages(self) -> list[dict[str, Any]]:
        """The conversation in the standard form."""
        return [*(dict(message) for message in self.task.messages), *self.said]

    def segments(self, language: Language) -> list[tuple[str, str]]:
        """The episode as (who, words): `act`, `rehearse` or `given`, in the order of the tokens."""
        runs = groupby(zip(self.roles, self.ids, strict=True), itemgetter(0))
        return [(ROLE_NAMES.get(role, "given"), language.decode(i for _, i in run)) for role, run in runs]

    def __repr__(self) -> str:
        calls = "; ".join(f"{call.text} -> {response.text}" for call, response in self.exchanges)
        return f"<Trajectory {self.task.id}: {calls} => {' / '.join(self.answers) or self.stop_reason}>"


class Row:
    """One row of the batch: what it is doing, and which tokens are injected before it samples again.

    It ends as `overlong` with `max_tokens` tokens, or when the context is full. Raises `ValueError` for a prompt that
    alone fills the context.
    """

    def __init__(self, policy: Policy, trajectory: Trajectory, responder: Responder, max_tokens: int | None):
        self.language, self.trajectory, self.responder = policy.chat, trajectory, responder
        size, context = len(trajectory.prompt), policy.context
        self.room = min(max_tokens or self.language.longest_episode, context - size)
        if self.room < 1:
            raise ValueError(f"{trajectory.task.id}: its prompt has {size} tokens, and the context {context}")
        self.domain = get_domain(trajectory.task.domain)
        self.answer = responder.open(trajectory.task)
        self.injected: deque[int] = deque()
        self.message: list[int] = []
        self.writer = ACTOR
        self.pending: deque[ToolCall] = deque()

    @property
    def done(self) -> bool:
        return bool(self.trajectory.stop_reason)

    @property
    def rehearsing(self) -> bool:
        return self.writer != ACTOR

    def take(self, token: int, log_prob: float) -> None:
        """Append a sampled token, or the next injected one in its place."""
        record = self.trajectory
        # One token in every step, injected or sampled: so all rows stay in the same column of the key-value cache. What
        # was sampled in the place of an injected token is dropped.
        if self.injected:
            record.append(self.injected.popleft(), GIVEN, 0.0)
        else:
            # What a simulator writes is given: it is no word of the policy, so the policy is not trained on it.
            role = self.responder.role if self.rehearsing else ACT
            record.append(token, role, log_prob if role != GIVEN else 0.0)
            self.message.append(token)
            if self.language.ended(self.message, self.writer):
                self._close()
        full = len(self.message) >= self.language.longest_message or len(record.ids) >= self.room
        if full and not self.done:
            record.stop_reason = "overlong"
            # A message that is cut off was written, too: its role's baseline has to count it.
            record.outputs[REHEARSE if self.rehearsing else ACT] += bool(self.message)

    def _close(self) -> None:
        """Go on after a message that was sampled to its end."""
        ids, self.message = self.message, []
        outputs = self.trajectory.outputs
        outputs[REHEARSE if self.rehearsing else ACT] += 1
        if self.rehearsing:
            # A response that is not well formed costs the episode, as a call does: else nothing keeps the form.
            text = self.language.read(ids, self.writer)
            response = self.domain.read(text)
            if response.error == MALFORMED:
                self.trajectory.stop_reason = MALFORMED
            else:
                self._respond(response, text)
                self._go_on(ids)
        elif self.responder.aside(outputs[ACT]):
            draft = {"role": "assistant", "content": self.language.read(ids, ACTOR)}
            self._inject([*self.trajectory.messages(), draft], ACTOR, ids)
        else:
            self._acted(ids)

    def _acted(self, ids: list[int]) -> None:
        record = self.trajectory
        try:
            message = self.language.read_act(ids, record.task.tools)
        except ToolError as error:
            if self.language.lenient:
                record.said.append({"role": "assistant", "content": self.language.read(ids, ACTOR)})
                self._say(f"This is no call of a listed tool: {error}", ids)
            else:
                record.stop_reason = MALFORMED
            return
        record.said.append(message)
        if "content" in message:
            record.answers.append(message["content"])
            later = record.task.later_turns[len(record.answers) - 1 :]
            if later:
                self._say(later[0], ids)
            else:
                record.stop_reason = "answer"
        elif not self.responder.horizon:
            # Only the first message was wanted (drafts, votes): its calls stay without a response.
            record.stop_reason = "horizon"
        else:
            self.pending.extend(map(ToolCall.from_message, message["tool_calls"]))
            self._go_on(ids)

    def _say(self, text: str, ids: list[int]) -> None:
        """The user speaks, and then the act role."""
        self.trajectory.said.append({"role": "user", "content": text})
        self._inject(self.trajectory.messages(), ACTOR, ids, new=1)

    def _go_on(self, ids: list[int]) -> None:
        """After the sampled message `ids`: the next call is answered, or the act role writes again.

        Calls of one message are answered one after another, before the act role reads the responses.
        """
        # 1. The environment answers at once; what it says has no ids yet.
        told = len(self.pending) if self.answer else 0
        while self.answer and self.pending:
            response = self.answer(self.pending[0])
            self._respond(response, response.text)
        # 2. The header alone changes the role: after it the same weights write the response.
        if not self.pending and len(self.trajectory.exchanges) >= self.responder.horizon:
            self.trajectory.stop_reason = "horizon"
            return
        writer = self.pending[0].name if self.pending else ACTOR
        self._inject(self.trajectory.messages(), writer, ids, new=told)

    def _respond(self, response: Result, text: str) -> None:
        call = self.pending.popleft()
        self.trajectory.exchanges.append((call, response))
        self.trajectory.said.append({"role": "tool", "name": call.name, "content": text})

    def _inject(self, messages: Sequence[Message], writer: str, ids: Sequence[int], new: int = 0) -> None:
        """Go on with what stands between the sampled message `ids` and the first token of `writer`."""
        tools = self.trajectory.task.tools
        self.injected.extend(self.language.extend(messages, tools, writer, new=new, sampled=ids))
        self.writer = writer


@torch.inference_mode()
def rollout(
    policy: Policy,
    tasks: Sequence[Task],
    responder: Responder | None = None,
    *,
    group_size: int = 1,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
    max_tokens: int | None = None,
) -> list[Trajectory]:
    """Run `group_size` episodes of each task.

    Args:
        policy: plays the act role, and the rehearse role when the responder lets it.
        responder: who answers calls; `Rehearse()` by default.
        temperature: of both roles; 0 is greedy.
        generator: all randomness comes from it.
        max_tokens: an episode with so many tokens after its prompt ends as `overlong`; by default the language says.

    Returns:
        Trajectories; those of one task are next to each other.

    Raises:
        VocabularyError, ValueError: a simulator has another vocabulary; a prompt alone fills the context.
    """
    if not tasks:
        return []
    responder, language = responder or Rehearse(), policy.chat
    policies = [policy, *([responder.simulator] if responder.simulator else [])]
    if any(not language.speaks_like(p.chat) for p in policies):
        raise VocabularyError("the simulator has another vocabulary; train it from the base of the policy")
    responder.start()
    prompts = [language.render(task.messages, task.tools, prompt=ACTOR) for task in tasks]
    rows = [
        Row(policy, Trajectory(task, prompt), responder, max_tokens)
        for task, prompt in zip(tasks, prompts, strict=True)
        for _ in range(group_size)
    ]
    room = max(row.room for row in rows)
    # A simulator has a cache of its own and reads every token, too: each policy knows the whole conversation.
    decoders = [open_decoder(p, prompts, group_size, room) for p in policies]
    active = rows
    while True:
        # 1. Each row samples from whoever writes in it.
        logits = decoders[0].logits
        if responder.simulator:
            rehearsing = torch.tensor([row.rehearsing for row in active])
            logits = torch.where(rehearsing[:, None], decoders[1].logits, logits)
        tokens, log_p = sample(logits, temperature, generator)
        # 2. It takes that token, or an injected one in its place.
        for row, token, value in zip(active, tokens.tolist(), log_p.tolist(), strict=True):
            if not row.done:
                row.take(token, value)
        # 3. Rows that are done leave when a fifth of them is: copying the cache costs about as much as one step.
        running = [place for place, row in enumerate(active) if not row.done]
        if not running:
            return [row.trajectory for row in rows]
        if len(running) <= 0.8 * len(active):
            for decoder in decoders:
                decoder.pick(torch.tensor(running))
            active = [active[place] for place in running]
        # 4. The models read what was taken. A row that is done but still there repeats its last token, unrecorded.
        for decoder in decoders:
            decoder.step(torch.tensor([row.trajectory.ids[-1] for row in active]))
