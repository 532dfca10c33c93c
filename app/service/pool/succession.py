"""Lives one after another: each begins once all before it have ended.

Owns these tasks and their order. Knows nothing of what is lived: for an engine it is a worker's time, and two workers
at once would need the memory of two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeAlias

__all__ = ["Live", "Succession"]

Live: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class Succession:
    """Empty at first. One that is told to end while it waits for those before leaves them as they are."""

    def __init__(self) -> None:
        self._last: asyncio.Task[None] | None = None
        self._before: set[asyncio.Task[None]] = set()  # those that may still be ending

    @property
    def is_alive(self) -> bool:
        """Whether the one that was begun last goes on; it does while it waits or is ending, too."""
        return self._last is not None and not self._last.done()

    def begin(self, live: Live) -> None:
        """Run `live` as soon as all that was begun before has ended."""
        if self._last is not None:
            self._before = {task for task in (*self._before, self._last) if not task.done()}
        self._last = asyncio.create_task(_after(frozenset(self._before), live))

    def end(self) -> None:
        """Cancel the one that was begun last; its ending goes on after this."""
        if self._last is not None:
            self._last.cancel()

    async def ended(self, *, with_last: bool) -> None:
        """Wait until those before the last have ended, `with_last` that one too."""
        if waited_for := {*self._before, *([self._last] if with_last and self._last else [])}:
            await asyncio.wait(waited_for)


async def _after(before: Iterable[asyncio.Task[None]], live: Live) -> None:
    if waited_for := set(before):
        await asyncio.wait(waited_for)
    await live()
