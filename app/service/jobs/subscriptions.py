"""The subscribers of the job list: each receives every job, then changes, no faster than it can take them.

Owns who is subscribed. A slow subscriber, or one that leaves, delays nobody. Independent of HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable

from app.protocol.job import Job

__all__ = ["Subscriptions"]

INTERVAL_S = 0.1  # between two updates


class _Subscriber:
    """The newest version of each job that one subscriber has not received yet."""

    def __init__(self, jobs: Iterable[Job], is_wanted: Callable[[Job], bool]) -> None:
        self.is_wanted = is_wanted
        self.unsent = {job.id: job for job in jobs if is_wanted(job)}
        self.has_news = asyncio.Event()
        self.has_news.set()

    def take(self) -> list[Job]:
        self.has_news.clear()
        jobs, self.unsent = list(self.unsent.values()), {}
        return jobs


class Subscriptions:
    """All subscribers. `on_empty` is called when the last one has left."""

    def __init__(self, on_empty: Callable[[], None]) -> None:
        self._subscribers: set[_Subscriber] = set()
        self._on_empty = on_empty
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._subscribers)

    def publish(self, job: Job) -> None:
        """Send `job` to all who want it."""
        for subscriber in self._subscribers:
            if subscriber.is_wanted(job):
                subscriber.unsent[job.id] = job
                subscriber.has_news.set()

    async def subscribe(
        self, jobs: Iterable[Job], is_wanted: Callable[[Job], bool] = lambda _: True
    ) -> AsyncGenerator[Job, None]:
        """Yield the wanted ones of `jobs`, then each as it changes, until the subscriptions are closed."""
        subscriber = _Subscriber(jobs, is_wanted)
        self._subscribers.add(subscriber)
        try:
            while True:
                await subscriber.has_news.wait()
                for job in subscriber.take():
                    yield job
                if self._is_closed and not subscriber.unsent:
                    return
                await asyncio.sleep(INTERVAL_S)
        finally:
            self._subscribers.remove(subscriber)
            if not self._subscribers:
                self._on_empty()

    def close(self) -> None:
        """End all subscriptions: the service ends."""
        self._is_closed = True
        for subscriber in self._subscribers:
            subscriber.has_news.set()
