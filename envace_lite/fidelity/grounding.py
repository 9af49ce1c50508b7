"""Grounding: for each part of a real response, whether a reader of the conversation could have known it.

In a toy world this is worked out from what the tools look up. Elsewhere a value counts as known if it occurs in the
conversation; what a function has computed from it is then `hidden`, though a careful reader may compute it, too.
"""

from __future__ import annotations

import json
import re

from envace_lite.fidelity.pairs import ProbePair
from envace_lite.world import ToyDomain, get_domain
from envace_lite.world.result import JSON
from envace_lite.world.tools import FACTS, UNKNOWN, records

INITIAL, HISTORY, HIDDEN = GROUNDINGS = ("initial", "history", "hidden")
"""Where a leaf of a response can be known from: the prompt, an earlier response, or nowhere in the conversation."""


def groundings(pair: ProbePair) -> dict[str, str]:
    """For each leaf of the real response, where it can be known from: slot -> `initial`, `history` or `hidden`."""
    domain = get_domain(pair.task.domain)
    return _of_records(pair, domain) if isinstance(domain, ToyDomain) else _of_json(pair)


def _of_records(pair: ProbePair, domain: ToyDomain) -> dict[str, str]:
    """Groundings in a toy world.

    A record that was looked up is grounded in the earlier response that changed it (`history`), or in the prompt
    (`initial`): its state, the tool's documentation, and also the absence of a record that does not exist. A record
    that the prompt does not show starts as documented, unless it is a secret. Otherwise it is `hidden` (the length of a
    month). What the tool works out, the verdict and what changed follow from what was looked up, so they are as hidden
    as the least known of these.
    """
    schemas = [tool["function"] for tool in pair.task.tools]
    texts = [message["content"] for message in pair.task.messages]
    texts += [schema["description"] for schema in schemas if schema["name"] == pair.call.name]
    prompt = {word for text in texts for word in text.split()}
    told = {key for _, response in pair.history for key in response.changed}
    found = {}
    for key, value in pair.real.seen.items():
        if key in FACTS:
            continue
        (word,) = records({key: value})
        absent = value == UNKNOWN and key not in pair.task.state
        starts = key in domain.hidden - domain.secret
        known = word in prompt or absent or starts
        found[f"seen {key}"] = HISTORY if key in told else INITIAL if known else HIDDEN
    weakest = max(found.values(), key=GROUNDINGS.index, default=INITIAL)
    return {slot: found.get(slot, weakest) for slot in pair.real.parts()}


def _of_json(pair: ProbePair) -> dict[str, str]:
    """Groundings of the leaves of a JSON value: the call and the prompt come before earlier responses.

    Whether a call is refused, and by which error, is taken as known: the state stands in the prompt.
    """
    called = json.dumps([m for m in pair.messages if m["role"] != "tool"], ensure_ascii=False)
    prompt = called + json.dumps(list(pair.task.tools), ensure_ascii=False)
    told = " ".join(str(m["content"]) for m in pair.messages if m["role"] == "tool")

    def place(value: JSON) -> str:
        return INITIAL if _occurs(value, prompt) else HISTORY if _occurs(value, told) else HIDDEN

    return {slot: INITIAL if slot == "error" else place(value) for slot, value in pair.real.parts().items()}


def _occurs(value: JSON, text: str) -> bool:
    """Whether a leaf stands in a text as a whole word or number; nothing and empty need not be said."""
    if value in (None, "", [], {}):
        return True
    if isinstance(value, bool):
        return json.dumps(value) in text
    words = str(value).strip()
    return re.search(rf"(?<![\w.]){re.escape(words)}(?![\w])", text) is not None
