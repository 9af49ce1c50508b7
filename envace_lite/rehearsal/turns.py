"""Turns: one call of a gate at a time, whether it comes from a thread, from an event loop, or from within another call.

A rehearsal is worth something only if nothing is committed between it and its own commit. So whoever wants to call
draws a ticket and waits until it is served; tickets are served in the order in which they were drawn.

A tool may call the gate that it stands behind. Such a call does not wait for the call that it is part of: it waits
its turn among the calls made within that one. Which call the running code is part of, a context variable knows.

What is simplified: a thread that a tool starts itself does not inherit the context. If it calls the gate, and the tool
waits for it, both wait for ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from threading import Lock
from types import MappingProxyType


class Ticket(Future[None]):
    """A place in the queue: it has its result when it is served. An event loop may be waiting for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None):
        super().__init__()
        self.loop = loop


class Turns:
    """A queue of calls, of which the first is being served."""

    def __init__(self) -> None:
        self._mutex = Lock()
        self._queue: deque[Ticket] = deque()
        self._over = False

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait, blocking the thread, and keep the turn for the length of the block."""
        queue = self._place()
        ticket = queue._draw()
        try:
            queue._refuse_to_block(ticket)
            ticket.result()
            with self._within():
                yield
        finally:
            queue._leave(ticket)

    @asynccontextmanager
    async def aturn(self) -> AsyncIterator[None]:
        """Wait without blocking the event loop, and keep the turn for the length of the block."""
        queue = self._place()
        ticket = queue._draw(asyncio.get_running_loop())
        try:
            # Shielded: a caller that is cancelled while it waits must not cancel the ticket, which may be served now.
            await asyncio.shield(asyncio.wrap_future(ticket))
            with self._within():
                yield
        finally:
            queue._leave(ticket)

    def _place(self) -> Turns:
        """The queue to stand in: that of the call that this one is part of, if it is still being served."""
        inner = _INNER.get().get(self)
        return self if inner is None or inner._over else inner

    @contextmanager
    def _within(self) -> Iterator[None]:
        inner = Turns()
        outer = _INNER.set({**_INNER.get(), self: inner})
        try:
            yield
        finally:
            inner._over = True
            _INNER.reset(outer)

    def _draw(self, loop: asyncio.AbstractEventLoop | None = None) -> Ticket:
        ticket = Ticket(loop)
        with self._mutex:
            self._queue.append(ticket)
            if len(self._queue) == 1:
                ticket.set_result(None)
        return ticket

    def _refuse_to_block(self, ticket: Ticket) -> None:
        """Who blocks an event loop must not wait for a call that the loop itself has to serve."""
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            return
        with self._mutex:
            stuck = not ticket.done() and any(other.loop is here for other in self._queue)
        if stuck:
            raise RuntimeError(
                "this event loop has calls of the gate under way, and a call that blocks it would wait for them for "
                "ever; use `await gate.acall(...)`"
            )

    def _leave(self, ticket: Ticket) -> None:
        """Give the turn to the next; who has not been served just leaves the queue."""
        with self._mutex:
            self._queue.remove(ticket)
            if self._queue and not self._queue[0].done():
                self._queue[0].set_result(None)


_INNER: ContextVar[Mapping[Turns, Turns]] = ContextVar("inner", default=MappingProxyType({}))
"""For each gate's turns, the turn that the running code is part of, within which there is another queue."""
