"""The guard: while something is imagined, the real environment cannot be called.

There are two locks. The session's own `call` raises, in every thread, and for code that imagines past its time also
afterwards; and what got past it (a tool run on the session's state by hand) is found when the imagining ends, is taken
back, and raises too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from envace_lite.world.domain import IMAGINED, ImaginedCall, Session


@contextmanager
def imagining(*sessions: Session) -> Iterator[None]:
    """Within the block every call of these sessions raises; after it each session is as it was before.

    Raises:
        ImaginedCall: when a session is called, or when its records or its log were changed in another way. They are
            put back first.
    """
    kept = [(s, s.snapshot(), s.digest(), list(s.log), s.rehearsals) for s in sessions]
    here = IMAGINED.set((*IMAGINED.get(), *sessions))
    for session in sessions:
        session.rehearsals += 1
    touched = []
    try:
        yield
    finally:
        IMAGINED.reset(here)
        for session, state, digest, log, rehearsals in kept:
            session.rehearsals = rehearsals
            # By the digest: two copies of an object need not be equal.
            if session.digest() != digest or session.log != log:
                session.restore(state)
                session.log[:] = log
                touched.append(session.task.id)
        if touched:
            raise ImaginedCall(
                f"the real environment was changed while imagining; put back: {', '.join(touched)}"
            )
