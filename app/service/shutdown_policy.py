"""When an owned service ends: with its owner and the last client that attends it, or some time after, or after its last
job.

Apart from `server`, which imports the routes: those ask it, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from typing import Literal


class ShutdownPolicy:
    """`is_owned` is False for a service in the foreground, which ends when its user ends it. `end`, set later, ends the
    service; `is_idle` says whether its jobs have ended and nobody is subscribed to them. A service whose owner is gone
    goes on for the clients that attend it: each of them is an owner then. It stays for `keep_s` after its last use
    (None: for good), so that the next command finds it."""

    def __init__(self, *, is_owned: bool, keep_s: float | None = 0.0) -> None:
        self.end: Callable[[], None] = lambda: None
        self.is_idle: Callable[[], bool] = lambda: True
        self.n_attending = 0
        self._is_owned = is_owned
        self._keep_s = keep_s
        self._stays = False
        self._has_owner = True
        self._n_requests = 0
        self._ending: asyncio.TimerHandle | None = None
        self._closed = asyncio.Event()

    @property
    def stays_until(self) -> Literal["", "jobs-end"]:
        """What the service outlives its owners for, empty for nothing."""
        return "jobs-end" if self._stays else ""

    @property
    def is_unused(self) -> bool:
        """Whether the service only stays for the next command: nobody would notice its end."""
        return self._is_owned and not (self._has_owner or self.n_attending or self._n_requests) and self.is_idle()

    def stay(self) -> None:
        self._stays = self._is_owned

    async def attend(self) -> AsyncGenerator[int, None]:
        """Count a client until it closes this generator or the service ends; yield the number of clients once."""
        self.n_attending += 1
        self._cancel_timer()
        try:
            yield self.n_attending
            await self.closed()
        finally:
            self.n_attending -= 1
            self.end_if_due()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Count a request that uses the service."""
        self._n_requests += 1
        self._cancel_timer()
        try:
            yield
        finally:
            self._n_requests -= 1
            self.end_if_due()

    def close(self) -> None:
        """Let go of the clients: the service ends."""
        self._cancel_timer()
        self._closed.set()

    async def closed(self) -> None:
        await self._closed.wait()

    def lose_owner(self) -> None:
        """End now, or with the last client that attends, or after the last job; a kept service some time after that."""
        self._has_owner = False
        self.end_if_due()

    def end_if_due(self) -> None:
        self._cancel_timer()
        if not self._is_owned or self._has_owner or self.n_attending or self._closed.is_set():
            return
        if self._keep_s != 0:
            if self._keep_s is not None and self.is_unused:
                self._ending = asyncio.get_running_loop().call_later(self._keep_s, self.end)
        elif not self._stays or self.is_idle():
            self.end()

    def _cancel_timer(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
