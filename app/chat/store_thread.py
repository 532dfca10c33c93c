"""The store behind an event loop: one thread owns it, and nobody waits for the disk but who asked.

Owns the thread and the order of what is done in it. What is done it does not know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from app.chat.store import ChatStore

__all__ = ["StoreThread"]

_Result = TypeVar("_Result")


class StoreThread:
    """An async context manager around a ChatStore. What is asked of it is done in order, one at a time."""

    def __init__(self, data_dir: Path) -> None:
        self._store = ChatStore(data_dir)
        self._thread = ThreadPoolExecutor(1, "chats")

    async def do(self, action: Callable[[ChatStore], _Result]) -> _Result:
        """Return what `action` does with the store. Once begun it ends, even if nobody waits for it any more."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, action, self._store)

    async def close(self) -> None:
        """Finish what was asked, then close the file."""
        await self.do(ChatStore.close)
        self._thread.shutdown()

    async def __aenter__(self) -> StoreThread:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
