"""What the engine asks of a language: how a conversation becomes token ids, and how sampled ids become messages again.

There are two. `compact.Compact` is that of the compact model: whole words, one token each. `template.Template` is any
chat template of the Hugging Face ecosystem that has tools. Both speak for both roles: the act role writes calls and
answers, the rehearse role writes what a tool would respond.

Conversations stand in the standard form of that ecosystem (`role`, `content`, `tool_calls`), and only the ends of
messages need care: ids that were sampled are kept as they are, and what follows them is added by `extend`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

GIVEN, ACT, REHEARSE = 0, 1, 2
"""Role ids: prompt, headers and injected responses; the act role; the rehearse role."""
ROLE_NAMES = {ACT: "act", REHEARSE: "rehearse"}

Message = Mapping[str, Any]
Schemas = Sequence[Mapping[str, Any]]


class VocabularyError(ValueError):
    """A conversation holds words that the tokenizer does not know."""


class Language(Protocol):
    """How messages become ids, and ids become messages, for both roles.

    A *role* is `"act"`, or the name of the tool that the rehearse role is to play.

    Attributes:
        tokenizer: of transformers.
        pad: id of the padding token.
        longest_message: a message with more tokens than this is cut off.
        longest_episode: an episode with so many tokens after its prompt ends as a failure.
        lenient: whether a malformed call is told to the act role, which may try again; otherwise it ends the episode.
    """

    tokenizer: Any
    pad: int
    longest_message: int
    longest_episode: int
    lenient: bool

    def render(self, messages: Sequence[Message], tools: Schemas, *, prompt: str | None = None) -> list[int]:
        """Ids of a conversation, to the end of the header of the role `prompt`, which writes next (None: nobody does).

        Raises:
            VocabularyError: naming the words that have no ids.
        """

    def extend(
        self,
        messages: Sequence[Message],
        tools: Schemas,
        role: str,
        *,
        new: int = 0,
        sampled: Sequence[int] = (),
    ) -> list[int]:
        """Ids between the end of the last sampled message and the first token that `role` writes.

        Args:
            messages: the conversation so far, with the sampled message in it.
            new: how many messages at its end stand there besides and have no ids yet: the user's, real responses.
            sampled: ids of the sampled message, with those that ended it.
        """

    def ended(self, ids: Sequence[int], role: str) -> bool:
        """Whether a message that `role` is writing is complete with the last of its ids."""

    def read(self, ids: Sequence[int], role: str) -> str:
        """The text of a complete message, without what ended it."""

    def read_act(self, ids: Sequence[int], tools: Schemas) -> dict[str, Any]:
        """What the act role wrote, as a standard message: an answer (`content`) or calls (`tool_calls`).

        Raises:
            ToolError: rule `malformed`, when it is neither.
        """

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids, special tokens included."""

    def sayable(self, text: str) -> str:
        """A text as this language can say it: a real response may hold a word that it lacks."""

    def role_ids(self, ids: Sequence[int]) -> list[int]:
        """Role ids of a rendered conversation."""

    def speaks_like(self, other: Language) -> bool:
        """Whether both give the same ids to the same conversation, so that one can read what the other has written."""
