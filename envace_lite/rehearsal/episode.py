"""Episodes on the real environment that are decided message by message.

What is simplified against the paper: all open episodes decide together, so that one batch of the rollout engine
imagines for all of them; no imagined continuation sees what the user will say later.

`Plain` commits each message as it is written: the N = 0 of every comparison. A `Deliberation` thinks first, in one of
several ways (see `private` and `controls`), while sessions are guarded, and then commits one message in each episode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from envace_lite.model.language import GIVEN, Language
from envace_lite.model.policy import Policy
from envace_lite.rehearsal.choice import UNWRITTEN, Choice, Messages, Written, messages_of, parsed, size
from envace_lite.rehearsal.guard import imagining
from envace_lite.rehearsal.ledger import Decision, Entry, Ledger
from envace_lite.rollout import HORIZON, Execute, Responder, Trajectory, rollout
from envace_lite.world import Session, Task, get_domain
from envace_lite.world.result import Result
from envace_lite.world.tools import ToolCall
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
        promised: whether, by the verifier, the calls of the continuation behind the first message did what was asked.
    """

    def __init__(self, task: Task, session: Session | None = None):
        self.task, self.session = task, session or get_domain(task.domain).reset(task)
        self.conversation: Messages = [dict(message) for message in task.messages]
        self.exchanges: list[tuple[ToolCall, Result]] = []
        self.answers: list[str] = []
        self.stop_reason, self.ledger = "", Ledger()
        self.memory = self.number = self.beyond = 0
        self.promised = False

    def situation(self, memory: Messages | None = None) -> Task:
        """The task as it stands now, without what the user will say later."""
        return replace(self.task, messages=[*self.conversation, *(memory or [])], later_turns=())

    def commit(self, choice: Choice, policy: Policy) -> None:
        """Log a decision, and carry the chosen message out."""
        language = policy.chat
        self._log(choice, language)
        self.beyond += choice.spent - len(choice.drawn[0].prompt)
        best = choice.drawn[choice.chosen]
        if not self.number:
            self.promised = request_status(best.task, best.said) == DONE and bool(best.exchanges)
        self.conversation += choice.keep
        self.memory += size(choice.keep, self.task, language)
        written = messages_of(best, language)
        self.carry_out(written[choice.place] if written else UNWRITTEN, choice.steps, language)
        read = len(language.render(self.conversation, self.task.tools))
        full = read > policy.context - language.longest_message
        if not self.stop_reason:
            self.stop_reason = "horizon" if len(self.exchanges) >= HORIZON else "overlong" if full else ""

    def _log(self, choice: Choice, language: Language) -> None:
        """Log what was read and written for a decision, but for the message that is committed."""
        now = self.session.digest()
        read = Entry(self.number, "imagined", "prompt", "", choice.prefill, now, now)
        self.ledger.add(read)
        if choice.memory:
            self.ledger.add(replace(read, role="memory", tokens=choice.memory))
        for i, trajectory in enumerate(choice.drawn):
            exchanges = iter(trajectory.exchanges)
            for place, message in enumerate(messages_of(trajectory, language)):
                if (i, place) == (choice.chosen, choice.place):
                    continue
                kept = i == choice.chosen and place > choice.place
                entry = replace(
                    read, role=message.role, text=message.text, tokens=len(message.ids), kept=kept
                )
                # A response that was cut off belongs to no exchange.
                if message.role == "rehearse" and (exchange := next(exchanges, None)):
                    entry = replace(entry, call=exchange[0].text, error=exchange[1].error)
                self.ledger.add(entry)

    def carry_out(self, written: Written, steps: Sequence[Decision], language: Language) -> None:
        """Commit a message of the act role, and log it with the decision for it."""
        now = self.session.digest()
        self.ledger.add(Entry(self.number, "committed", "act", written.text, len(written.ids), now, now))
        self.ledger.decisions += steps
        self.number += 1
        message = parsed(written, self.task, language)
        if message is None:
            self.stop_reason = "malformed" if written.whole else "overlong"
            return
        self.conversation.append(message)
        for entry in message.get("tool_calls", ()):
            self._call(ToolCall.from_message(entry), language)
        if "content" in message:
            turn, later = len(self.answers), self.task.later_turns
            self.answers.append(message["content"])
            if turn == len(later):
                self.stop_reason = "answer"
            else:
                self.conversation.append({"role": "user", "content": later[turn]})

    def _call(self, call: ToolCall, language: Language) -> None:
        before = self.session.digest()
        response = self.session.call(call)
        entry = Entry(self.number - 1, "committed", "real", response.text, 0, before, self.session.digest())
        self.ledger.add(replace(entry, call=call.text, error=response.error))
        self.ledger.resolve(response.text)
        self.exchanges.append((call, response))
        # As in the rollout engine: a real response may name a record that the language has no word for.
        content = language.sayable(response.text)
        self.conversation.append({"role": "tool", "name": call.name, "content": content})

    def __repr__(self) -> str:
        calls = "; ".join(f"{call.text} -> {response.text}" for call, response in self.exchanges)
        return f"<Episode {self.task.id}: {calls} => {' / '.join(self.answers) or self.stop_reason}>"


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
        responder, draws = self.responder(), torch.Generator().manual_seed(self.seed)
        made = rollout(self.policy, tasks, responder, temperature=self.temperature, generator=draws)
        return [self._replayed(trajectory, responder) for trajectory in made]

    def _replayed(self, trajectory: Trajectory, responder: Execute) -> Episode:
        """The episode that a trajectory tells of, message by message, in a session of its own.

        The same calls bring the same responses there. So the states between them, which the ledger records, are known.
        """
        episode, language = Episode(trajectory.task), self.policy.chat
        # 1. What was read: the prompt, headers and injected tokens. The ledger has them before the first message.
        now = episode.session.digest()
        read = len(trajectory.prompt) + trajectory.roles.count(GIVEN)
        episode.ledger.add(Entry(0, "committed", "prompt", "", read, now, now))
        for number, message in enumerate(messages_of(trajectory, language), 1):
            # 2. A message that was set aside, or cut off where one would have been, is thinking.
            if responder.aside(number):
                now = episode.session.digest()
                entry = Entry(episode.number, "imagined", "act", message.text, len(message.ids), now, now)
                episode.ledger.add(replace(entry, kept=False))
            # 3. Any other one was committed.
            else:
                step = Decision(message.text, "", "nothing is rehearsed", "commit")
                episode.carry_out(message, [step], language)
        # 4. The engine ends an episode by its tokens, and keeps real responses as they are.
        episode.conversation, episode.stop_reason = trajectory.messages(), trajectory.stop_reason
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
                episode.commit(choice, self.policy)
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
        max_tokens: int | None = None,
    ) -> Iterator[list[Trajectory]]:
        """`count` imagined continuations of each situation, in batches."""
        step = max(ROWS // count, 1)
        imagine = partial(rollout, self.policy, temperature=self.temperature, generator=generator)
        for start in range(0, len(situations), step):
            some = situations[start : start + step]
            drawn = imagine(some, responder, group_size=count, max_tokens=max_tokens)
            yield from (drawn[i : i + count] for i in range(0, len(drawn), count))
