"""Episodes on the real environment that are decided message by message.

What is simplified against the paper: all open episodes decide together, so that one batch of the rollout engine
imagines for all of them; no imagined continuation sees what the user will say later.

`Plain` commits each message as it is written: plain execution, the N = 0 of every comparison. A `Deliberation` thinks
first, in one of several ways (see `private` and `controls`), and then commits one message, in every episode that is
still open. Sessions are guarded as long as it thinks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

import torch

from envace_lite.model.chat import GIVEN, Chat
from envace_lite.model.decoding import LONGEST_MESSAGE
from envace_lite.model.policy import CONTEXT, Policy
from envace_lite.rehearsal.choice import Choice, Messages, bare, length, messages_of, parsed, size
from envace_lite.rehearsal.guard import imagining
from envace_lite.rehearsal.ledger import Decision, Entry, Ledger
from envace_lite.rollout import HORIZON, MAX_TOKENS, Execute, Responder, Trajectory, rollout
from envace_lite.world import Session, Task, get_domain
from envace_lite.world.tools import ToolCall, ToolResponse
from envace_lite.world.verifier import DONE, request_status

ROWS = 256
"""Rows that are imagined together: enough for the engine, few enough for a small memory."""


class Episode:
    """One task on the real environment.

    Args:
        task: what was asked.
        session: the real environment; a fresh one by default.

    Attributes:
        conversation: messages so far, in the standard form; a memory that was kept stands among them.
        exchanges, answers, stop_reason: as in a `Trajectory`.
        ledger: everything that happened.
        memory: tokens of memory in the conversation.
        number: committed messages.
        beyond: tokens taken for them, beyond one reading of the conversation for each.
        promised: whether the verifier finds the request carried out in the imagined continuation, calls and all, that
            the first committed message was taken from.
    """

    def __init__(self, task: Task, session: Session | None = None):
        self.task, self.session = task, session or get_domain(task.domain).reset(task)
        self.conversation: Messages = [dict(message) for message in task.messages]
        self.exchanges: list[tuple[ToolCall, ToolResponse]] = []
        self.answers: list[str] = []
        self.stop_reason, self.ledger = "", Ledger()
        self.memory = self.number = self.beyond = 0
        self.promised = False

    def situation(self, memory: Messages | None = None) -> Task:
        """The task as it stands now, without what the user will say later."""
        return replace(self.task, messages=[*self.conversation, *(memory or [])], later_turns=())

    def imagined(self, choice: Choice, chat: Chat) -> None:
        """Log what was read and written for a decision, but for the message that is committed."""
        now = self.session.digest()
        add, blank = self.ledger.add, Entry(self.number, "imagined", "prompt", "", before=now, after=now)
        add(replace(blank, tokens=choice.prefill))
        if choice.memory:
            add(replace(blank, role="memory", tokens=choice.memory))
        for i, trajectory in enumerate(choice.drawn):
            exchanges = iter(trajectory.exchanges)
            for place, (role, text) in enumerate(messages_of(trajectory, chat)):
                if (i, place) == (choice.chosen, choice.place):
                    continue
                kept = i == choice.chosen and place > choice.place
                entry = replace(blank, role=role, text=bare(text), tokens=length(text), kept=kept)
                answered = next(exchanges, None) if role == "rehearse" else None
                if answered:
                    entry = replace(entry, call=answered[0].text, error=answered[1].error)
                add(entry)

    def commit(self, choice: Choice, chat: Chat) -> None:
        """Log a decision, and carry the chosen message out in the real environment."""
        self.imagined(choice, chat)
        self.beyond += choice.spent - len(choice.drawn[0].prompt)
        best = choice.drawn[choice.chosen]
        if not self.number:
            self.promised = request_status(best.task, best.said) == DONE and bool(best.exchanges)
        written = messages_of(best, chat)
        text = written[choice.place][1] if written else ""
        self.said(text, self.session.digest())
        self.ledger.decide(*choice.steps)
        self.conversation += choice.keep
        self.memory += size(choice.keep, chat)
        message = parsed(text, self.task)
        if message is None:
            self.stop_reason = "malformed" if text.endswith("<end>") else "overlong"
            return
        self.conversation.append(message)
        if "content" in message:
            self._answered(message["content"])
        else:
            for entry in message["tool_calls"]:
                self._call(ToolCall.from_message(entry), chat)
        long = len(chat.render(self.conversation, self.task.tools)) > CONTEXT - LONGEST_MESSAGE
        if not self.stop_reason and len(self.exchanges) >= HORIZON:
            self.stop_reason = "horizon"
        elif not self.stop_reason and long:
            self.stop_reason = "overlong"

    def said(self, text: str, now: str) -> None:
        """Log a committed message of the act role, written in the state `now`."""
        self.ledger.add(Entry(self.number, "committed", "act", bare(text), length(text), now, now))
        self.number += 1

    def answered(self, call: ToolCall, response: ToolResponse, before: str, after: str) -> None:
        """Log a real response."""
        entry = Entry(self.number - 1, "committed", "real", response.text, 0, before, after, call.text)
        self.ledger.add(replace(entry, error=response.error))
        self.exchanges.append((call, response))

    def _call(self, call: ToolCall, chat: Chat) -> None:
        before = self.session.digest()
        response = self.session.call(call)
        self.answered(call, response, before, self.session.digest())
        self.ledger.resolve(response.text)
        # As in the rollout engine: a real response may name a record that the compact language has no word for.
        content = chat.decode(chat.encode(response.text, strict=False))
        self.conversation.append({"role": "tool", "name": call.name, "content": content})

    def _answered(self, answer: str) -> None:
        self.answers.append(answer)
        if len(self.answers) > len(self.task.later_turns):
            self.stop_reason = "answer"
        else:
            self.conversation.append(
                {"role": "user", "content": self.task.later_turns[len(self.answers) - 1]}
            )

    def __repr__(self) -> str:
        calls = "; ".join(f"{call.text} -> {response.text}" for call, response in self.exchanges)
        return f"<Episode {self.task.id}: {calls} => {' / '.join(self.answers) or self.stop_reason}>"


class _Recorded(Responder):
    """The real environment answers, and the digests of the state around each call are kept, by row."""

    role = GIVEN

    def __init__(self, responder: Execute):
        self.responder = responder
        self.digests: list[list[tuple[str, str]]] = []

    def start(self) -> None:
        self.responder.start()
        self.digests = []

    def aside(self, number: int) -> bool:
        return self.responder.aside(number)

    def open(self, task: Task) -> Callable[[ToolCall], ToolResponse]:
        responder = self.responder
        answer, session = responder.open(task), responder.sessions[-1]
        around: list[tuple[str, str]] = []
        self.digests.append(around)

        def recorded(call: ToolCall) -> ToolResponse:
            before = session.digest()
            response = answer(call)
            around.append((before, session.digest()))
            return response

        return recorded


class Plain:
    """Plain execution: doing nothing more than to act.

    Args:
        policy: plays the act role, and the rehearse role where something is imagined.
        temperature: of everything that is sampled.
        seed: all randomness of a `run` comes from it.
    """

    def __init__(self, policy: Policy, *, temperature: float = 1.0, seed: int = 0):
        self.policy, self.temperature, self.seed = policy.folded(), temperature, seed

    def responder(self) -> Execute:
        """Who answers when nothing is imagined."""
        return Execute()

    def run(self, tasks: Sequence[Task]) -> list[Episode]:
        """Carry out each task once on the real environment. Bit-equal to `rollout` with `Execute`."""
        recorded = _Recorded(self.responder())
        trajectories = rollout(
            self.policy,
            tasks,
            recorded,
            temperature=self.temperature,
            generator=torch.Generator().manual_seed(self.seed),
        )
        rows = zip(trajectories, recorded.responder.sessions, recorded.digests, strict=True)
        return [self._replayed(recorded, *row) for row in rows]

    def _replayed(
        self,
        recorded: _Recorded,
        trajectory: Trajectory,
        session: Session,
        digests: list[tuple[str, str]],
    ) -> Episode:
        """The episode that a trajectory tells of, message by message.

        The act role's messages `pack_order o1` and `say packed`, with one exchange, become the committed message
        `pack_order o1`, its real response with the digests of the state before and after, and the committed answer.
        """
        episode, chat = Episode(trajectory.task, session), self.policy.chat
        # 1. What was read: the prompt, headers and injected tokens, all in the state before the first call.
        now = digests[0][0] if digests else session.digest()
        read = len(trajectory.prompt) + trajectory.roles.count(GIVEN)
        episode.ledger.add(Entry(0, "committed", "prompt", "", read, now, now))
        exchanges = iter(zip(trajectory.exchanges, digests, strict=True))
        said = iter([message for message in trajectory.said if message["role"] == "assistant"])
        for number, (_, text) in enumerate(messages_of(trajectory, chat), 1):
            # 2. A message that was set aside, or cut off where one would have been, is thinking.
            if recorded.aside(number):
                entry = Entry(episode.number, "imagined", "act", bare(text), length(text), now, now)
                episode.ledger.add(replace(entry, kept=False))
                continue
            # 3. Any other one was committed, and then come the real responses to its calls, if it was no broken one.
            episode.said(text, now)
            episode.ledger.decide(Decision(bare(text), "", "nothing is rehearsed", "commit"))
            calls = next(said, {}).get("tool_calls", ())
            for (call, response), (before, now) in islice(exchanges, len(calls)):
                episode.answered(call, response, before, now)
                episode.ledger.resolve(response.text)
        episode.conversation = trajectory.messages()
        episode.answers, episode.stop_reason = list(trajectory.answers), trajectory.stop_reason
        return episode


class Deliberation(Plain):
    """A way of thinking before each message that is committed. Subclasses write `decide`.

    Attributes:
        budget: how much it may think; with 0 it is plain execution, bit for bit.
    """

    budget = 0

    def run(self, tasks: Sequence[Task]) -> list[Episode]:
        """Carry out each task once on the real environment."""
        if not self.budget:
            return super().run(tasks)
        generator = torch.Generator().manual_seed(self.seed)
        episodes = [Episode(task) for task in tasks]
        while waiting := [episode for episode in episodes if not episode.stop_reason]:
            for episode, choice in zip(waiting, self.deliberate(waiting, generator), strict=True):
                episode.commit(choice, self.policy.chat)
        return episodes

    def deliberate(self, episodes: Sequence[Episode], generator: torch.Generator) -> list[Choice]:
        """Decide under guard: whatever `decide` does, no session is called or changed."""
        with imagining(*(episode.session for episode in episodes)):
            return self.decide(episodes, generator)

    def decide(self, episodes: Sequence[Episode], generator: torch.Generator) -> list[Choice]:
        """What to commit next in each episode."""
        raise NotImplementedError

    def draw(
        self,
        situations: Sequence[Task],
        responder: Responder,
        count: int,
        generator: torch.Generator,
        max_tokens: int = MAX_TOKENS,
    ) -> Iterator[list[Trajectory]]:
        """`count` imagined continuations of each situation, in batches."""
        step = max(ROWS // count, 1)
        for start in range(0, len(situations), step):
            drawn = rollout(
                self.policy,
                situations[start : start + step],
                responder,
                group_size=count,
                temperature=self.temperature,
                generator=generator,
                max_tokens=max_tokens,
            )
            yield from (drawn[i : i + count] for i in range(0, len(drawn), count))
