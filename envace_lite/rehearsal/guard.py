"""The guard: while something is imagined, the real environment cannot be called.

There are two locks. The session's own `call` raises; and what got past it (a tool run on the session's world by hand)
is found when the imagining ends, is taken back, and raises too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from envace_lite.world import Session
from envace_lite.world.tools import ToolCall


class ImaginedCall(RuntimeError):
    """An imagined call reached for the real environment. The message names the call, or the task."""


@contextmanager
def imagining(*sessions: Session) -> Iterator[None]:
    """Within the block every call of these sessions raises; after it each session is as it was before.

    Raises:
        ImaginedCall: when a session is called, or when its records or its log were changed in another way. They are
            put back first.
    """

    def refuse(call: ToolCall) -> NoReturn:
        raise ImaginedCall(f"an imagined call reached for the real environment: {call.text}")

    kept = [(s, s.snapshot(), s.digest(), list(s.log), vars(s).get("call")) for s in sessions]
    for session in sessions:
        vars(session)["call"] = refuse
    touched = []
    try:
        yield
    finally:
        for session, state, digest, log, outer in kept:
            vars(session).pop("call", None)
            # A block within a block: the outer one still refuses every call.
            if outer is not None:
                vars(session)["call"] = outer
            # By the digest: two copies of an object need not be equal.
            if session.digest() != digest or session.log != log:
                session.restore(state)
                session.log[:] = log
                touched.append(session.task.id)
        if touched:
            raise ImaginedCall(
                f"the real environment was changed while imagining; put back: {', '.join(touched)}"
            )
