"""Any chat template with tools as a language: the template itself shows where each role begins and ends.

A chat template renders whole conversations; a rollout needs what stands *between* two messages. So small conversations
are rendered with a mark in the place of each content, and cut at the marks:

    MARK<|im_end|>
    <|im_start|>user
    <tool_response>
    MARK

This is what Qwen's template puts between a call and its response: the end of the one, and the header of the other. The
rehearse role writes after the header of a tool's response, as the act role does after that of the assistant.

What is simplified against a chat model's own harness:

1. What was read stays as it was read. Templates may take thinking out of earlier turns, or move the tools behind
   them; here the ids of a conversation are always a prefix of the ids of a longer one.
2. A template's text between two messages may depend on their roles and on the name of a tool, and on nothing else.
3. Where calls have ids, the library fills them in: all first calls have the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from envace_lite.model.call_formats import FORMATS, LOOKS_LIKE_A_CALL, Calls, Reader, bare, without_thinking
from envace_lite.model.language import ACT, GIVEN, REHEARSE, Language, Message, Schemas
from envace_lite.model.policy import PolicyError
from envace_lite.model.shown import (
    NAMES,
    NEXT,
    QUOTED,
    TOOLS,
    USE_PLAIN,
    Shown,
    a_response,
    a_tool,
    a_user,
    an_answer,
    kind_of,
    some_calls,
)
from envace_lite.world.result import MALFORMED
from envace_lite.world.tools import ToolCall, ToolError


class Template(Shown, Language):
    """A chat template of the Hugging Face ecosystem; the methods of `Language` are explained there.

    Args:
        tokenizer: with a chat template.
        tools: `"auto"` for the template's own way to show tools, calls and responses; `"plain"` for a format of this
            library that every template with a user and an assistant can carry.
        options: passed on to the template, for example `enable_thinking=False` or `date_string="1 Jan 2026"`.

    Attributes:
        format: `"template"` or `"plain"`, for records.
        calls: the name of the format of calls (`call_formats.FORMATS`).
        parallel: whether one message can hold several calls.
        rewrites: whether the template would render an earlier turn in another way later on. What was read stays.

    Raises:
        PolicyError: the template has no tools, or one of its roles has no header or no end; it says what to do.
    """

    longest_message = 256
    longest_episode = 1024
    lenient = True

    def __init__(self, tokenizer: Any, tools: str = "auto", **options: Any):
        super().__init__(tokenizer, tools, **options)
        self.pad: int = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        self._encode = lru_cache(4096)(self._encoded)
        self._anchor = ""
        if self.decode((*self._encoded("x"), *self._encoded("x"))) != "xx":
            self._anchor = str(tokenizer.eos_token)
        self.calls, self._reader = self._find_reader()
        self._check_that_earlier_turns_stay()

    def _find_reader(self) -> tuple[str, Reader]:
        """The reader that reads back what the template writes."""
        if self.format == "plain":
            return "bare", bare
        formats = dict(FORMATS)
        if getattr(self.tokenizer, "response_template", None):
            formats = {"response_template": self._read_by_tokenizer, **formats}
        arguments = {"key": '{"a": 7}, </b>\n"'}
        message = {"role": "assistant", "tool_calls": [ToolCall(NAMES[0], arguments).to_message()]}
        written = self._begun + self._call_text(message).removesuffix(self._end["call"])
        for name, reader in formats.items():
            try:
                calls, _ = reader(without_thinking(written), TOOLS)
            except ValueError:
                continue
            if calls == [(NAMES[0], arguments)]:
                return name, reader
        raise PolicyError(f"no reader is known for calls as this chat template writes them; {USE_PLAIN}")

    def _read_by_tokenizer(self, text: str, tools: Schemas) -> tuple[Calls, str]:
        """The parser of transformers, where the tokenizer says how its responses are to be parsed."""
        message = self.tokenizer.parse_response(text, prefix="", tools=list(tools))
        calls = [
            (call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls", [])
        ]
        return calls, message.get("content") or ""

    def _check_that_earlier_turns_stay(self) -> None:
        """Compare with what the template makes of a growing conversation."""
        turn = [some_calls("a"), a_response(), some_calls("b"), a_response(), an_answer()]
        talk = [
            {"role": "system", "content": "be brief"},
            a_user(),
            *turn,
            a_user("more"),
            *turn,
            a_user("thanks"),
        ]
        thought = [a_user(), an_answer("<think>\nhm\n</think>\n\nbye"), a_user()]
        self.rewrites = "hm" not in self._try(thought)
        shorter = ""
        for length in (2, 4, 6, 8, 10, 12, 14):
            longer = self._text(talk[:length], TOOLS, prompt=True)
            if not longer.startswith(shorter):
                self.rewrites = True
                return
            made = "".join(self._pieces(talk[:length], TOOLS, "act"))
            if longer != made.replace(self._end["answer"], self._earlier_end):
                raise PolicyError(
                    f"this chat template writes a message differently with its place in the conversation; {USE_PLAIN}"
                )
            shorter = longer

    # From messages to ids.

    def _pieces(self, messages: Sequence[Message], tools: Schemas, prompt: str | None) -> list[str]:
        """The text of a conversation in the pieces that are tokenised one by one, as a rollout adds them."""
        roles = [message["role"] for message in messages]
        start = next((i for i, role in enumerate(roles) if role in ("assistant", "tool")), len(messages))
        pieces = [self._text(messages[:start], tools, prompt=start < len(messages) or prompt is not None)]
        for i in range(start, len(messages)):
            pieces.append(self._body(messages[i]))
            writer = messages[i + 1] if i + 1 < len(messages) else prompt
            if writer is not None:
                pieces += self._header(kind_of(messages[i]), writer, self._end[kind_of(messages[i])])
        return pieces

    def _body(self, message: Message) -> str:
        """What is written of a message: its content with what ends it."""
        kind = kind_of(message)
        if kind == "call":
            return self._call_text(message)
        shown = self._shown.get(kind, str)(str(message["content"]))
        return f"{self._opening if kind == 'answer' else ''}{shown}{self._end[kind]}"

    def _call_text(self, message: Message) -> str:
        name = message["tool_calls"][0]["function"]["name"]
        header = self._text([a_user()], [a_tool(name)], prompt=True)
        text = self._text([a_user(), message, a_response(NEXT, name)], [a_tool(name)])
        after = self._call_glue.replace(NAMES[0], name)
        return text[len(header) : text.rindex(NEXT) - len(after)] + self._end["call"]

    def _header(self, before: str, writer: Message | str, ended: str) -> list[str]:
        """What is missing between a message that `ended` so and the first token of the next; names stand alone."""
        if isinstance(writer, str):
            after, name = ("act", "") if writer == "act" else ("tool", writer)
        else:
            after, name = str(writer["role"]).replace("assistant", "act"), str(writer.get("name", ""))
        text = self._call_glue if before == "call" and after == "tool" else self._need(before, after)
        if ended and ended in text:
            text = text[text.index(ended) + len(ended) :]
        else:
            # Another token than the template's has ended the message: it stands in that one's place.
            for end in (self._end[before], self._earlier_end if before == "answer" else ""):
                text = text.removeprefix(end)
        around = re.split("|".join(NAMES), text)
        return [piece for part in around for piece in (part, name)][:-1]

    def _encoded(self, text: str) -> tuple[int, ...]:
        # A tokenizer that puts a blank before every text puts none after another token.
        ids = self.tokenizer(self._anchor + text, add_special_tokens=False).input_ids
        return tuple(ids[bool(self._anchor) :])

    def render(self, messages: Sequence[Message], tools: Schemas, *, prompt: str | None = None) -> list[int]:
        """Ids of a conversation; a last message ends with its own end."""
        return [token for piece in self._pieces(messages, tools, prompt) for token in self._encode(piece)]

    def extend(
        self,
        messages: Sequence[Message],
        tools: Schemas,
        role: str,
        *,
        new: int = 0,
        sampled: Sequence[int] = (),
    ) -> list[int]:
        """What is missing after the sampled message, the new messages, and the header of `role`; see `Language`."""
        last = len(messages) - new - 1
        kind = kind_of(messages[last])
        if not sampled:
            ended = self._end[kind]
        elif kind == "tool" and sampled[-1] not in self._tool_ends:
            # The last token may hold more than the end: what fits is not added again.
            more = self.decode(sampled).rpartition(self._tool_tail)[2]
            ended = self._tool_tail + more
        else:
            ended = self.decode(sampled[-1:])
        pieces: list[str] = []
        for message in messages[last + 1 :]:
            pieces += [*self._header(kind, message, ended), self._body(message)]
            kind = kind_of(message)
            ended = self._end[kind]
        pieces += self._header(kind, role, ended)
        return [token for piece in pieces for token in self._encode(piece)]

    # From ids to messages.

    def also_ends(self, tokens: Iterable[int]) -> None:
        """Let these ids end a message, too."""
        added = set(tokens)
        self._act_ends, self._tool_ends = self._act_ends | added, self._tool_ends | added

    def ended(self, ids: Sequence[int], role: str) -> bool:
        """Whether the last id ends a message, or the last letters end a response."""
        if role == "act":
            return ids[-1] in self._act_ends
        if ids[-1] in self._tool_ends or not self._tool_tail:
            return ids[-1] in self._tool_ends
        # A token has a letter at least, so that the tail is in so many tokens; one more may hold what follows it.
        return self._tool_tail in self.decode(ids[-len(self._tool_tail.encode()) - 1 :])

    def read(self, ids: Sequence[int], role: str) -> str:
        """The text before the end; a response that the template shows in quotes is taken out of them."""
        if role == "act":
            return self.decode(ids[:-1] if ids and ids[-1] in self._act_ends else ids)
        text = self.decode(ids)
        if end := self._tool_end.search(text):
            text = text[: end.start()]
        elif ids and ids[-1] in self._tool_ends:
            text = self.decode(ids[:-1])
        if self._shown["tool"] is QUOTED:
            try:
                return str(json.loads(f'"{text}"', strict=False))
            except ValueError:
                return text
        return text

    def read_act(self, ids: Sequence[int], tools: Schemas) -> dict[str, Any]:
        """An answer (`content`), or calls (`tool_calls`); thinking is taken off."""
        listed = {tool["function"]["name"] for tool in tools}
        try:
            text = without_thinking(self._begun + self.read(ids, "act"))
            if self.format == "plain" and self._special.search(self._opening):
                text = text.rpartition(self._opening)[2]  # an answer has a header of its own (gpt-oss)
            calls, said = self._reader(text, tools)
        except (ValueError, RecursionError):
            raise ToolError(MALFORMED) from None
        if not calls:
            if LOOKS_LIKE_A_CALL.search(said):
                raise ToolError(MALFORMED)
            return {"role": "assistant", "content": said.strip()}
        if any(name not in listed for name, _ in calls) or len(calls) > 1 > self.parallel:
            raise ToolError(MALFORMED)
        return {
            "role": "assistant",
            "tool_calls": [ToolCall(name, given).to_message() for name, given in calls],
        }

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids; special tokens are kept."""
        return str(
            self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )

    def sayable(self, text: str) -> str:
        """The text itself: every text has ids."""
        return text

    def role_ids(self, ids: Sequence[int]) -> list[int]:
        """Role ids of a rendered conversation: everything after a header up to and including what ends the message."""
        roles = [GIVEN] * len(ids)
        place, role = self._after(ids, 0, "user", "act", anywhere=True), ACT
        while place is not None:
            start = place
            writer = "act" if role == ACT else "tool"
            while place < len(ids):
                place += 1
                if self.ended(ids[start:place], writer):
                    break
            roles[start:place] = [role] * (place - start)
            end, place = place, None
            steps = (
                [("call", "tool", REHEARSE)]
                if role == ACT
                else [("tool", "tool", REHEARSE), ("tool", "act", ACT)]
            )
            for before, after, then in steps:
                if place is None and (place := self._after(ids, end, before, after)) is not None:
                    role = then
            if place is None:  # it was an answer: the act role goes on after the user
                place, role = self._after(ids, end, "user", "act", anywhere=True), ACT
        return roles

    def _after(
        self, ids: Sequence[int], start: int, before: str, after: str, *, anywhere: bool = False
    ) -> int | None:
        """Where the header from one kind of message to another ends, if it stands at `start` or `anywhere` later."""
        if self._glue(before, after) is None:
            return None
        ended = self._end[before]
        for part in self._header(before, "act" if after == "act" else NAMES[0], ended):
            if part == NAMES[0]:
                anywhere = True
                continue
            wanted = list(self._encode(part))
            last = len(ids) if anywhere else start + 1
            found = (i for i in range(start, last) if list(ids[i : i + len(wanted)]) == wanted)
            place = next(found, None)
            if place is None:
                return None
            start, anywhere = place + len(wanted), False
        return start

    def speaks_like(self, other: Language) -> bool:
        """Whether the other language has the same template, tokens and options."""
        return (
            isinstance(other, Template)
            and (self.format, self.options) == (other.format, other.options)
            and self.tokenizer.chat_template == other.tokenizer.chat_template
            and self.tokenizer.get_vocab() == other.tokenizer.get_vocab()
        )

    def __repr__(self) -> str:
        return (
            f"<Template: tools {self.format}, calls {self.calls}{', rewrites earlier turns' * self.rewrites}>"
        )
