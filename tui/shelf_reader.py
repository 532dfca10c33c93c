"""Reading the list of chats behind the event loop: nobody waits for a search that nobody wants any more.

Owns the end of such a search. What is read is decided in `tui.shelf`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import datetime
from functools import partial

from app.chat.store_thread import StoreThread
from tui.shelf import Row, Wanted, read_rows

__all__ = ["ShelfReader"]


class ShelfReader:
    """Reads from the store of `thread`, in which one thing is done at a time. Methods raise StorageError."""

    def __init__(self, thread: StoreThread) -> None:
        self._thread = thread

    async def rows(self, wanted: Wanted, n_rows: int, shown: Sequence[Row] = ()) -> list[Row]:
        """Return up to `n_rows` rows that follow those that are `shown`. Cancelled, it lets go of the thread soon."""
        is_over = threading.Event()
        read = partial(
            read_rows,
            wanted,
            datetime.now().astimezone(),
            shown,
            n_rows=n_rows,
            is_wanted=lambda: not is_over.is_set(),
        )
        try:
            return await self._thread.do(read)
        finally:
            is_over.set()

    async def models(self) -> list[str]:
        """Return the models that answered last in a chat, by name."""
        return await self._thread.do(lambda store: store.chats.models())
