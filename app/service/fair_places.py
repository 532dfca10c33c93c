"""Places for work that takes a while, so that no client keeps others waiting for longer than one piece of its work."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class FairPlaces:
    """`n_places` at once, of which one client has all but one at most. Who waits gets the next free one in turn of
    clients: the second piece of work of one waits for the first of every other."""

    def __init__(self, n_places: int) -> None:
        assert n_places > 1
        self._n_free = n_places
        self._n_most = n_places - 1
        self._n_held: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # whose turn is next comes first

    @asynccontextmanager
    async def place_of(self, client: str) -> AsyncGenerator[None, None]:
        """Wait for a place and hold it. Cancelling it while it waits gives up the turn."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(granted)
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():  # it was granted just before
                self._release(client)
            raise
        try:
            yield
        finally:
            self._release(client)

    def _release(self, client: str) -> None:
        self._n_free += 1
        self._n_held[client] -= 1
        if not self._n_held[client]:
            del self._n_held[client]
        self._grant()

    def _grant(self) -> None:
        for client in [*self._waiting]:
            queue = self._waiting[client]
            while queue and queue[0].cancelled():
                queue.popleft()
            if queue and self._n_free and self._n_held[client] < self._n_most:
                self._n_free -= 1
                self._n_held[client] += 1
                queue.popleft().set_result(None)
                self._waiting.move_to_end(client)
            if not queue:
                del self._waiting[client]
