"""Who uses an engine at the moment, and whether new uses may begin.

Owns the count of uses, the time of the last one, and the listeners. Knows nothing of workers or of loading.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["EngineListener", "UsageGate"]


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class EngineListener:
    """Callbacks for the state of one engine: it gets work, it is idle, it is unloaded, it is about to be evicted."""

    on_work: Callable[[], object] = _nothing
    on_idle: Callable[[], object] = _nothing
    on_unloaded: Callable[[], object] = _nothing
    on_eviction: Callable[[], object] = _nothing


class UsageGate:
    """Open at first. Closing blocks new uses only."""

    def __init__(self) -> None:
        self.n_users = 0
        self.last_used_s = time.monotonic()
        self._listeners: list[EngineListener] = []
        self._open = asyncio.Event()
        self._open.set()

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    def add_listener(self, listener: EngineListener) -> None:
        self._listeners.append(listener)

    def close(self) -> None:
        """Block new uses, because the engine is to be evicted; uses that have begun go on."""
        self._open.clear()
        for listener in self._listeners:
            listener.on_eviction()

    def reopen(self) -> None:
        """Admit the uses that wait."""
        self._open.set()

    async def enter(self) -> None:
        """Wait until the gate is open and count one more use. Every `enter` needs a `leave`."""
        await self._open.wait()
        self.n_users += 1
        self.notify_work()

    def leave(self) -> None:
        """Count one use less. Whether the engine is idle now is for the engine to decide: it may be loading."""
        self.n_users -= 1

    def notify_work(self) -> None:
        for listener in self._listeners:
            listener.on_work()

    def notify_idle(self) -> None:
        """Call the listeners, and set the time of the last use to now."""
        self.last_used_s = time.monotonic()
        for listener in self._listeners:
            listener.on_idle()

    def notify_unloaded(self) -> None:
        for listener in self._listeners:
            listener.on_unloaded()
