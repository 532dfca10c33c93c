"""Those who watch jobs: each is told how they stand, then what changes, no more often than it can take in.

Owns who watches. A watcher that is slow, or leaves, holds nobody up. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable

from app.protocol.job import Job

__all__ = ["Subscriptions"]

EVERY_S = 0.1  # between two looks at the same job


class _Subscriber:
    """What one watcher has not seen yet: the newest of each job."""

    def __init__(self, jobs: Iterable[Job], is_wanted: Callable[[Job], bool]) -> None:
        self.is_wanted = is_wanted
        self.unseen = {job.id: job for job in jobs if is_wanted(job)}
        self.is_woken = asyncio.Event()
        self.is_woken.set()

    def take(self) -> list[Job]:
        self.is_woken.clear()
        unseen, self.unseen = list(self.unseen.values()), {}
        return unseen


class Subscriptions:
    """All who watch. `on_empty` is called when the last one has left."""

    def __init__(self, on_empty: Callable[[], None]) -> None:
        self._watchers: set[_Subscriber] = set()
        self._on_empty = on_empty
        self._is_over = False

    def __len__(self) -> int:
        return len(self._watchers)

    def tell(self, job: Job) -> None:
        """Let all who watch `job` know how it stands now."""
        for watcher in self._watchers:
            if watcher.is_wanted(job):
                watcher.unseen[job.id] = job
                watcher.is_woken.set()

    async def watch(
        self, jobs: Iterable[Job], is_wanted: Callable[[Job], bool] = lambda _: True
    ) -> AsyncGenerator[Job, None]:
        """Yield those of `jobs` that are wanted and then each as it changes, until there is nothing more to come."""
        watcher = _Subscriber(jobs, is_wanted)
        self._watchers.add(watcher)
        try:
            while True:
                await watcher.is_woken.wait()
                for job in watcher.take():
                    yield job
                if self._is_over and not watcher.unseen:
                    return
                await asyncio.sleep(EVERY_S)
        finally:
            self._watchers.remove(watcher)
            if not self._watchers:
                self._on_empty()

    def end(self) -> None:
        """Let all watchers go: the service ends."""
        self._is_over = True
        for watcher in self._watchers:
            watcher.is_woken.set()
