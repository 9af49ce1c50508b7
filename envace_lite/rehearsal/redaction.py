"""Redaction: values that neither a rehearser, a person who is asked, nor a journal gets to see.

What is simplified: values are known by the name that they stand under. A secret that a tool puts under another name, or
in words of its own, is not found, unless the call itself carried it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from envace_lite.world.result import JSON, Result
from envace_lite.world.tools import ToolCall

HIDDEN = "[hidden]"
SHORTEST = 4
"""A shorter secret is not looked for within texts: `7` stands in too many of them."""


class Redaction:
    """What is hidden of one call and its response.

    Args:
        names: of arguments, and of keys at any depth of arguments and responses.
        call: with the values that are to be hidden. A tool may repeat them in its response, so they are looked for in
            its texts, too.
    """

    def __init__(self, names: Collection[str], call: ToolCall):
        self.names = frozenset(names)
        self._secrets = sorted(_secrets(dict(call.arguments), self.names), key=len, reverse=True)
        self.call = ToolCall(call.name, self._hide(dict(call.arguments)))

    def result(self, result: Result) -> Result:
        """A response without what is to be hidden."""
        if not self.names:
            return result  # as it is, to the last type
        value, changed = self._hide(result.value), self._hide(dict(result.changed))
        return replace(result, value=value, changed=changed, message=self.text(result.message))

    def text(self, text: str) -> str:
        """A text without the secrets of the call."""
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text

    def _hide(self, value: JSON) -> JSON:
        if isinstance(value, Mapping):
            return {
                key: HIDDEN if self.names.intersection(str(key).split("/")) else self._hide(inner)
                for key, inner in value.items()
            }
        if isinstance(value, list):
            return [self._hide(inner) for inner in value]
        return self.text(value) if isinstance(value, str) else value


def _secrets(value: JSON, names: frozenset[str], hidden: bool = False) -> set[str]:
    """The texts and numbers that stand under one of the names."""
    if isinstance(value, Mapping):
        parts = [(inner, hidden or key in names) for key, inner in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(inner, hidden) for inner in value]
    else:
        return {str(value)} if hidden and len(str(value)) >= SHORTEST else set()
    return {secret for inner, inside in parts for secret in _secrets(inner, names, inside)}
