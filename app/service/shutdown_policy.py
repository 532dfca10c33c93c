"""When an owned service ends: with its owner, or with the last client that attends it, or after its last job.

Apart from `server`, which imports the routes: those ask it, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Literal


class ShutdownPolicy:
    """`is_owned` is False for a service in the foreground, which ends when its user ends it. `end`, set later, ends the
    service; `is_idle` says whether its jobs have ended and nobody is subscribed to them. A service whose owner is gone
    goes on for the clients that attend it: each of them is an owner then."""

    def __init__(self, *, is_owned: bool) -> None:
        self.end: Callable[[], None] = lambda: None
        self.is_idle: Callable[[], bool] = lambda: True
        self.n_attending = 0
        self._is_owned = is_owned
        self._stays = False
        self._has_owner = True
        self._closed = asyncio.Event()

    @property
    def stays_until(self) -> Literal["", "jobs-end"]:
        """What the service outlives its owners for, empty for nothing."""
        return "jobs-end" if self._stays else ""

    def stay(self) -> None:
        self._stays = self._is_owned

    async def attend(self) -> AsyncGenerator[int, None]:
        """Count a client until it closes this generator or the service ends; yield the number of clients once."""
        self.n_attending += 1
        try:
            yield self.n_attending
            await self.closed()
        finally:
            self.n_attending -= 1
            self.end_if_due()

    def close(self) -> None:
        """Let go of the clients: the service ends."""
        self._closed.set()

    async def closed(self) -> None:
        await self._closed.wait()

    def lose_owner(self) -> None:
        """End now, or with the last client that attends, or after the last job."""
        self._has_owner = False
        self.end_if_due()

    def end_if_due(self) -> None:
        is_left = not (self._has_owner or self.n_attending)
        if self._is_owned and is_left and (not self._stays or self.is_idle()):
            self.end()
