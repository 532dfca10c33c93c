"""Saving of unsent text while it is typed: a kill loses at most its last second.

Owns when a draft is saved. The repository stores it with the open chat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from app.chat.conversation import Draft
from quantizer.errors import StorageError
from tui.chat.repository import ChatRepository

__all__ = ["SAVE_AFTER_S", "DraftAutosave"]

SAVE_AFTER_S = 0.4  # what is typed waits for this long, and then for the disk: together under a second


class DraftAutosave:
    """The draft of the open chat. `tell` receives the first error of a series of failed saves."""

    def __init__(self, repository: ChatRepository, tell: Callable[[StorageError], None]) -> None:
        self._repository = repository
        self._tell = tell
        self._draft = Draft()
        self._kept: Draft | None = None  # None while no chat is open: nothing may take the place of an unread draft
        self._keeping: asyncio.Task[None] | None = None
        self._has_failed = False

    async def open(self) -> Draft:
        """Return the stored draft of the chat just opened. Raises StorageError."""
        self._kept = await self._repository.draft()
        return self._kept

    def write(self, draft: Draft) -> None:
        """Replace the draft. Never waits."""
        self._draft = draft
        if self._keeping is None or self._keeping.done():
            self._keeping = asyncio.create_task(self._keep_soon())

    async def close(self) -> None:
        """Save the draft before another chat is opened or the app quits."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        await self._keep()
        self._kept = None

    async def _keep_soon(self) -> None:
        while self._kept is not None and self._draft != self._kept:
            await asyncio.sleep(SAVE_AFTER_S)
            await self._keep()

    async def _keep(self) -> None:
        draft = self._draft
        if self._kept is None or draft == self._kept:
            return
        try:
            await self._repository.save_draft(draft)
        except StorageError as error:  # tried again while there is something to keep
            if not self._has_failed:
                self._tell(error)
            self._has_failed = True
        else:
            self._kept, self._has_failed = draft, False
