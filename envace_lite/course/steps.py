"""What happened, step by step: plain data that can be tested, and the same as text and as HTML.

Nothing here needs a widget: `widgets` only adds buttons. Colours help, and labels say the same: each step names its
role, each token too, and what differs from the real response is marked and called so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import pandas as pd

from envace_lite.experiments.pages import mark_difference
from envace_lite.model.language import GIVEN, REHEARSE, ROLE_NAMES, Language
from envace_lite.rehearsal.ledger import Decision
from envace_lite.rollout import Trajectory
from envace_lite.world import get_domain

_LINE = {"given": "dotted", "act": "solid", "rehearse": "double"}
_COLOURS = {"given": "128,128,128", "act": "0,114,178", "rehearse": "213,94,0"}


@dataclass(frozen=True)
class Token:
    """One token: its word, its role, and the probability with which it was sampled (None if nobody sampled it)."""

    word: str
    role: str
    probability: float | None


@dataclass(frozen=True)
class Step:
    """One message of a rollout.

    Args:
        role: `act`, `rehearse` or `given`: who wrote the message.
        tokens: the message with its header.
        call: the call that this message answers, if it answers one.
        real: what the real environment answers to it; empty if it was not asked.
        written: what it says, without its header and its end.
        is_prompt: whether it is what stands before the rollout begins.
    """

    role: str
    tokens: tuple[Token, ...]
    call: str = ""
    real: str = ""
    written: str = ""
    is_prompt: bool = False


def rollout_steps(trajectory: Trajectory, chat: Language, *, real: bool = True) -> list[Step]:
    """The messages of a rollout, the prompt first.

    Args:
        real: also make the same calls, in the same order, in the real environment. It looks on from outside: the
            rollout is over.
    """
    prompt = tuple(Token(chat.decode([i]), "given", None) for i in trajectory.prompt)
    steps, message = (
        [Step("given", prompt, written=chat.decode(trajectory.prompt), is_prompt=True)],
        list[int](),
    )
    reals = [""] * len(trajectory.exchanges)
    if real:
        session = get_domain(trajectory.task.domain).reset(trajectory.task)
        reals = [session.call(call).text for call, _ in trajectory.exchanges]
    answers = [
        (call.text, text, response.text)
        for (call, response), text in zip(trajectory.exchanges, reals, strict=True)
    ]
    last = len(trajectory.ids) - 1
    for place, (token, role) in enumerate(zip(trajectory.ids, trajectory.roles, strict=True)):
        message.append(place)
        # A message ends with its last token; a sampled one that was cut off, where nothing more was sampled.
        cut = role != GIVEN and place < last and trajectory.roles[place + 1] == GIVEN
        if token == chat.tokenizer.eos_token_id or cut or place == last:
            told = trajectory.said[len(steps) - 1] if len(steps) <= len(trajectory.said) else {}
            answering = (role == REHEARSE or told.get("role") == "tool") and answers
            about = answers.pop(0) if answering else ("", "", "")
            steps.append(_step(trajectory, chat, message, *about))
            message = []
    return steps


def _step(
    trajectory: Trajectory, chat: Language, places: Sequence[int], call: str, real: str, told: str
) -> Step:
    """One message of a trajectory, from the places of its tokens."""
    tokens, sampled = [], []
    for place in places:
        role, token = trajectory.roles[place], trajectory.ids[place]
        probability = None if role == GIVEN else math.exp(trajectory.log_probs[place])
        word = chat.decode([token]).replace("\n", "\\n")
        tokens.append(Token(word, ROLE_NAMES.get(role, "given"), probability))
        sampled += [] if role == GIVEN else [token]
    role_name = tokens[-1].role
    return Step(role_name, tuple(tokens), call, real, chat.read(sampled, role_name) if sampled else told)


def _prompt_lines(step: Step) -> list[str]:
    return re.split(r" (?=<(?:def|user|assistant)>)|\n|(?<=\|>)(?=<\|)", step.written.strip())


def step_text(step: Step, *, real: bool = True, probabilities: bool = True) -> str:
    """A step in a few lines of text."""
    if step.is_prompt:
        return "\n  ".join([step.role, *_prompt_lines(step)])
    lines = [step.role]
    for token in step.tokens:
        chance = f" {token.probability:.2f}" if probabilities and token.probability is not None else ""
        lines.append(f"  {token.word:18}{token.role}{chance}")
    if real and step.real:
        word = "the same" if step.real == step.written else "not the same"
        lines.append(f"  real response: {step.real} ({word})")
    return "\n".join(lines)


def _meaning(step: Step) -> str:
    if step.is_prompt:
        return "what the policy reads before it writes anything"
    call = f"<code>{escape(step.call)}</code>"
    if step.role == "rehearse":
        return f"the policy writes what {call} would bring"
    if step.role == "act":
        return "the policy writes a call, or its answer"
    return f"what {call} brought, put before the policy" if step.call else "what the user says next"


def step_html(step: Step, title: str = "", *, real: str = "folded", probabilities: bool = True) -> str:
    """A step as HTML.

    Args:
        title: stands before the role's name.
        real: `folded` (one click away), `open` or `hidden`.
    """
    shades = _COLOURS[step.role]
    if step.is_prompt:
        cells = "<br>".join(f"<code>{escape(line)}</code>" for line in _prompt_lines(step))
    else:
        cells = "".join(_token_html(token, probabilities) for token in step.tokens)
    body = (
        f"<p style='margin:.2em 0'>{title and title + ', '}<b>{step.role}</b>: {_meaning(step)}</p>"
        f"<p style='margin:.2em 0'>{cells}</p>"
    )
    if step.real and real != "hidden":
        same = step.real == step.written
        word = "It is the same." if same else "It is not the same; this was rehearsed instead:"
        marked = "" if same else f" <code>{mark_difference(step.real, step.written)}</code>"
        body += (
            f"<details{' open' if real == 'open' else ''}><summary>The real response</summary>"
            f"<p style='margin:.2em 0'><code>{escape(step.real)}</code>. {word}{marked}</p></details>"
        )
    return (
        f"<div style='border-left:6px {_LINE[step.role]} rgb({shades});background:rgba({shades},.08);"
        f"padding:.3em .8em;margin:.3em 0'>{body}</div>"
    )


def _token_html(token: Token, probabilities: bool) -> str:
    chance = f" {token.probability:.2f}" if probabilities and token.probability is not None else ""
    colour = _COLOURS[token.role]
    return (
        f"<span style='display:inline-block;vertical-align:top;text-align:center;padding:0 .3em;margin:.1em;"
        f"border-bottom:2px {_LINE[token.role]} rgb({colour})'><code>{escape(token.word)}</code><br>"
        f"<small>{token.role}{chance}</small></span> "
    )


# ------------------------------------------------------------------------------------------------ comparison

SHOWN = {
    "all": "all pairs",
    "differs": "pairs that differ",
    "errors": "pairs whose real response is an error",
}


def chosen(columns: Mapping[str, pd.DataFrame], which: str) -> list[int]:
    """The rows of a comparison that are to be shown: one of the keys of `SHOWN`."""
    first = next(iter(columns.values()))
    if which == "errors":
        return list(first.index[first.real_error])
    if which == "differs":
        return [i for i in first.index if not all(frame.exact[i] for frame in columns.values())]
    return list(first.index)


def comparison_text(columns: Mapping[str, pd.DataFrame], rows: Sequence[int]) -> str:
    """Call, real response and each rehearsed one, as text."""
    first, lines = next(iter(columns.values())), []
    width = max(map(len, ("real", *columns))) + 1
    for row in rows:
        lines += [first.call[row], f"  {'real':{width}}{first.real[row]}"]
        for name, frame in columns.items():
            sign = "=" if frame.exact[row] else "differs:"
            lines.append(f"  {name:{width}}{sign} {frame.rehearsed[row]}")
    return "\n".join(lines) or "no pair of this sort"


def comparison_html(columns: Mapping[str, pd.DataFrame], rows: Sequence[int]) -> str:
    """A rollout beside the real responses as a table, in which the words that differ are marked."""
    if not rows:
        return "<p>no pair of this sort</p>"
    first = next(iter(columns.values()))
    left = "text-align:left;vertical-align:top"
    head = "".join(
        f"<th scope='col' style='{left}'>{escape(name)}</th>" for name in ("call", "real response", *columns)
    )
    body = []
    for row in rows:
        cells = [f"<code>{escape(first.call[row])}</code>", f"<code>{escape(first.real[row])}</code>"]
        for frame in columns.values():
            marked = mark_difference(first.real[row], frame.rehearsed[row])
            cells.append(f"{'same' if frame.exact[row] else 'differs'}: <code>{marked}</code>")
        body.append("<tr>" + "".join(f"<td style='{left}'>{cell}</td>" for cell in cells) + "</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


# ------------------------------------------------------------------------------------------------ private rehearsal


def decisions_text(budget: int, decisions: Sequence[Decision]) -> str:
    """The decisions under one budget, as text."""
    lines = [f"budget {budget}"]
    for d in decisions:
        lines += [f"  {d.action:7}{d.candidate}", f"    rehearsed {d.rehearsed or '-'} ({d.reason})"]
        lines += [f"    real      {d.real}"] if d.real else []
    return "\n".join(lines)


def decisions_html(budget: int, decisions: Sequence[Decision]) -> str:
    """The decisions of an episode as a table."""
    rows = []
    for d in decisions:
        real = f"<code>{escape(d.real)}</code>" if d.real else "never asked"
        cells = [f"<b>{escape(d.action)}</b>", f"<code>{escape(d.candidate)}</code>"]
        cells += [f"<code>{escape(d.rehearsed) or '-'}</code>", escape(d.reason), real]
        rows.append("<tr>" + "".join(f"<td style='text-align:left'>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(
        f"<th scope='col' style='text-align:left'>{name}</th>"
        for name in ("decision", "candidate", "rehearsed response", "verdict", "real response")
    )
    return (
        f"<table><caption style='text-align:left'>Budget {budget}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )
