"""Private rehearsal: the policy imagines how a conversation could go on, and then commits one message.

What is simplified against the paper, which publishes no code for this:

1. A continuation is scored by a plain function (see `scorers`), and the first message of the best one is committed.
   The paper's policy reads its rehearsals and then writes a new message.
2. A memory is kept in the standard form of messages: the imagined call and its response, as if they had happened. The
   policy was never trained on another form. So only refusals are remembered: a refused call changes nothing, and its
   place in the conversation is true to the world. A remembered success would tell the policy that it was done.
3. The memory holds only what the first exchange of a continuation brought.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from envace_lite.model.decoding import complete
from envace_lite.model.policy import Policy
from envace_lite.rehearsal.choice import Choice, size
from envace_lite.rehearsal.episode import Deliberation, Episode
from envace_lite.rehearsal.gate import Rehearser
from envace_lite.rehearsal.scorers import SCORERS, Scorer
from envace_lite.rollout import Rehearse, Trajectory
from envace_lite.world import Task, get_domain
from envace_lite.world.result import ABSTAIN, MALFORMED, Rehearsed, Result
from envace_lite.world.tools import Exchange, ToolCall, exchange_messages

MODES = ("parallel", "sequential")
OCCASIONS = ("always", "write")
_Waiting = tuple[Episode, Choice]


class PrivateRehearsal(Deliberation):
    """Imagine `budget` continuations before each message, and commit the first message of the best one.

    Args:
        policy: acts, and rehearses the responses.
        budget: N, continuations before one message; with 0 this is plain execution.
        mode: `parallel` (independent continuations) or `sequential` (each sees what the earlier ones saw refused).
        scorer: a name in `SCORERS`, or a function. One that reads continuations again says by a method `reads` what
            that costs.
        when: `always`, or only before a `write`: then a draft is written first, committed where it writes nothing, and
            set aside where it does.
        memory: whether refusals that were imagined stay in the committed conversation.
        enough: a score with which a sequential rehearsal is content: it imagines no further. None never is. For scorers
            that judge a continuation by itself.
        temperature, seed: as for `Plain`.

    Raises:
        ValueError: an option is none of these.
    """

    def __init__(
        self,
        policy: Policy,
        budget: int = 2,
        mode: str = "parallel",
        scorer: str | Scorer = "agreement",
        *,
        when: str = "always",
        memory: bool = False,
        enough: float | None = None,
        temperature: float = 1.0,
        seed: int = 0,
    ):
        super().__init__(policy, temperature=temperature, seed=seed)
        for value, known in ((mode, MODES), (when, OCCASIONS)):
            if value not in known:
                raise ValueError(f"there are {', '.join(known)}; {value!r} is none")
        if isinstance(scorer, str) and scorer not in SCORERS:
            raise ValueError(f"there are the scorers {', '.join(SCORERS)}; {scorer!r} is none")
        if budget < 0:
            raise ValueError(f"a budget is not negative; {budget} is")
        if enough is not None and (mode != "sequential" or hasattr(scorer, "reads")):
            raise ValueError(
                "`enough` is for the mode `sequential`, with a scorer that does not read continuations again"
            )
        self.budget, self.mode, self.when, self.memory, self.enough = budget, mode, when, memory, enough
        self.scorer = SCORERS[scorer] if isinstance(scorer, str) else scorer

    def decide(self, episodes: Sequence[Episode], generator: torch.Generator) -> list[Choice]:
        """Imagine for all these episodes together, and choose."""
        choices = [Choice() for _ in episodes]
        waiting: list[_Waiting] = list(zip(episodes, choices, strict=True))
        drafts = int(self.when == "write")
        if drafts:
            # A draft is a continuation that ends at its first call, unanswered.
            self._imagine(waiting, Rehearse(horizon=0), 1, generator)
            waiting = [(episode, choice) for episode, choice in waiting if _would_write(choice.drawn[0])]
        rounds, count = (1, self.budget) if self.mode == "parallel" else (self.budget, 1)
        for _ in range(rounds):
            waiting = [(e, c) for e, c in waiting if self._fits(e.situation(c.told)) and not self._content(c)]
            self._imagine(waiting, Rehearse(), count, generator)
        for choice in choices:
            self._choose(choice, drafts)
            if self.memory:
                # The refusal of a call that is about to be committed would then stand there twice.
                choice.refused.pop(choice.steps[-1].candidate, None)
                choice.keep = choice.told
        return choices

    def _imagine(
        self, waiting: Sequence[_Waiting], responder: Rehearse, count: int, generator: torch.Generator
    ) -> None:
        """Draw `count` continuations in each of these episodes, and remember what they saw refused."""
        language = self.policy.chat
        situations = [episode.situation(choice.told) for episode, choice in waiting]
        drawn = self.draw(situations, responder, count, generator)
        for (episode, choice), trajectories in zip(waiting, drawn, strict=True):
            choice.add(trajectories, episode.memory + size(choice.told, episode.situation(), language))
            for call, response in (t.exchanges[0] for t in trajectories if t.exchanges):
                if response.error is not None and response.error != MALFORMED:
                    content = language.sayable(response.text)
                    choice.refused[call.text] = [
                        {"role": "assistant", "tool_calls": [call.to_message()]},
                        {"role": "tool", "name": call.name, "content": content},
                    ]

    def _fits(self, task: Task) -> bool:
        """Whether another message fits in the context."""
        prompt = self.policy.chat.render(task.messages, task.tools, prompt="act")
        return len(prompt) <= self.policy.context - self.policy.chat.longest_message

    def _content(self, choice: Choice) -> bool:
        """Whether what was imagined last is good enough."""
        last = choice.drawn[-1:]
        return self.enough is not None and bool(last and last[0].said) and self.scorer(last)[0] >= self.enough

    def _choose(self, choice: Choice, drafts: int) -> None:
        """The best of the continuations that begin with a message; else what was written first."""
        usable = [i for i in range(drafts, len(choice.drawn)) if choice.drawn[i].said]
        continuations = [choice.drawn[i] for i in usable]
        scores = list(self.scorer(continuations)) if usable else []
        if len(scores) != len(usable):
            raise ValueError(
                f"a scorer returns a number for each continuation, not {len(scores)} for {len(usable)}"
            )
        if usable and hasattr(self.scorer, "reads"):
            choice.prefill += self.scorer.reads(continuations)
        name = getattr(self.scorer, "__name__", type(self.scorer).__name__.lower())
        score_of = dict(zip(usable, scores, strict=True))
        reasons = {i: f"{name} {score:.2f} of {len(usable)} imagined" for i, score in score_of.items()}
        choice.settle(self.policy.chat, max(usable, key=score_of.__getitem__, default=0), reasons)


def _would_write(draft: Trajectory) -> bool:
    """Whether a draft asks for a rehearsal: it calls a tool that can write, or is no message."""
    tools = get_domain(draft.task.domain).tools
    calls = draft.said[0].get("tool_calls", ()) if draft.said else ()
    return not draft.said or any(tools[entry["function"]["name"]].write for entry in calls)


def rehearser(policy: Policy, task: Task) -> Rehearser:
    """A policy as the rehearser of a `Gate`: what its rehearse role answers to a call, by greedy decoding.

    It reads the conversation, then what the gate has carried out before, then the call. Where that is more than its
    context holds, its answer is that it does not know.

    Args:
        task: the conversation before the first call, and the tools that the policy reads.
    """

    def rehearse(call: ToolCall, history: Sequence[Exchange]) -> Rehearsed:
        told = [message for exchange in history for message in exchange_messages(*exchange)]
        asked = {"role": "assistant", "tool_calls": [call.to_message()]}
        prefix = policy.chat.render([*task.messages, *told, asked], task.tools, prompt=call.name)
        if len(prefix) > policy.context - policy.chat.longest_message:
            return Rehearsed(Result(None, ABSTAIN, "the conversation is longer than the model's context"))
        ((text, log_prob),) = complete(policy, [prefix], roles=[call.name])
        return Rehearsed(get_domain(task.domain).read(text), log_prob)

    return rehearse
