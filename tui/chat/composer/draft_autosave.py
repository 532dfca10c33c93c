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

SAVE_AFTER_S = 0.4  # plus the disk's delay: under a second in total


class DraftAutosave:
    """The draft of the open chat. `on_error` receives the first error of a series of failed saves."""

    def __init__(self, repository: ChatRepository, on_error: Callable[[StorageError], None]) -> None:
        self._repository = repository
        self._on_error = on_error
        self._draft = Draft()
        self._saved: Draft | None = None  # None while no chat is open: nothing may take the place of an unread draft
        self._saving: asyncio.Task[None] | None = None
        self._has_failed = False

    async def open(self) -> Draft:
        """Return the stored draft of the chat just opened. Raises StorageError."""
        self._saved = await self._repository.draft()
        return self._saved

    def write(self, draft: Draft) -> None:
        """Replace the draft. Never waits."""
        self._draft = draft
        if self._saving is None or self._saving.done():
            self._saving = asyncio.create_task(self._save_later())

    async def close(self) -> None:
        """Save the draft before another chat is opened or the app quits."""
        if self._saving is not None:
            self._saving.cancel()
            await asyncio.gather(self._saving, return_exceptions=True)
        await self._save()
        self._saved = None

    async def _save_later(self) -> None:
        while self._saved is not None and self._draft != self._saved:
            await asyncio.sleep(SAVE_AFTER_S)
            await self._save()

    async def _save(self) -> None:
        draft = self._draft
        if self._saved is None or draft == self._saved:
            return
        try:
            await self._repository.save_draft(draft)
        except StorageError as error:  # retried with the next change
            if not self._has_failed:
                self._on_error(error)
            self._has_failed = True
        else:
            self._saved, self._has_failed = draft, False
