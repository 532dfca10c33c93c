"""The door of an engine: who is inside, who waits outside because somebody else has the turn, and who is told of it.

Owns the count of uses and when the last one ended. Knows nothing of what is behind the door, nor how it gets ready.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Door", "Watcher"]


@dataclass(frozen=True, slots=True)
class Watcher:
    """Who is told when an engine gets something to do, when it has nothing more to do, and when its model is let go."""

    work: Callable[[], object] = lambda: None
    rest: Callable[[], object] = lambda: None
    gone: Callable[[], object] = lambda: None


class Door:
    """Open at first. Whoever is inside when it closes stays for as long as they like."""

    def __init__(self) -> None:
        self.n_inside = 0
        self.last_used_s = time.monotonic()
        self._watchers: list[Watcher] = []
        self._open = asyncio.Event()
        self._open.set()

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    def close(self) -> None:
        """Let whoever asks for something wait from now on, as somebody else has the turn; what has begun goes on."""
        self._open.clear()

    def reopen(self) -> None:
        """Let those in who wait."""
        self._open.set()

    async def enter(self) -> None:
        """Wait until the door is open and go in; watchers hear of work. Whoever went in calls `leave`."""
        await self._open.wait()
        self.n_inside += 1
        self.tell_work()

    def leave(self) -> None:
        """Be inside no more. Whether there is rest now is for others to know: the engine may still be loading."""
        self.n_inside -= 1

    def watch(self, watcher: Watcher) -> None:
        """Let `watcher` be told from now on."""
        self._watchers.append(watcher)

    def tell_work(self) -> None:
        """Tell that there is something to do."""
        for watcher in self._watchers:
            watcher.work()

    def tell_rest(self) -> None:
        """Tell that there is nothing more to do; the time of the last use is now."""
        self.last_used_s = time.monotonic()
        for watcher in self._watchers:
            watcher.rest()

    def tell_gone(self) -> None:
        """Tell that the model is let go, and loaded again when somebody asks."""
        for watcher in self._watchers:
            watcher.gone()
