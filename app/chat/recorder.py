"""Saving of an answer while it is written: a kill loses at most its last second.

Owns when to save. The caller appends the text.
"""

from __future__ import annotations

import asyncio

from app.chat.conversation import Message, MessageContent, MessageState
from app.chat.store import ChatStore, StoreThread
from quantizer.errors import StorageError

__all__ = ["SAVED_AFTER_S", "AnswerRecorder"]

SAVED_AFTER_S = 0.5  # with the time of the disk under a second


class AnswerRecorder:
    """An async context manager that saves the answer to one message, or continues the saved answer `continued`.

    `message` is the answer so far. It is partial unless its state says otherwise, so that a kill leaves nothing to
    repair. Leaving the block saves all of it, and raises StorageError if that fails.
    """

    def __init__(
        self,
        thread: StoreThread,
        chat_id: int,
        parent_id: int | None,
        model: str = "",
        continued: Message | None = None,
    ) -> None:
        self._thread = thread
        self._continued = continued
        self._place = (
            chat_id,
            parent_id,
            MessageContent(role="assistant", content="", model=model, state=MessageState.PARTIAL),
        )
        self._has_news = asyncio.Event()

    async def __aenter__(self) -> AnswerRecorder:
        self.message: Message = await self._thread.do(self._begin) if self._continued is None else self._continued
        self._saving = asyncio.create_task(self._save_along())
        return self

    def update(self, message: Message) -> None:
        """Replace the answer so far. Never waits."""
        self.message = message
        self._has_news.set()

    async def __aexit__(self, *_error: object) -> None:
        self._saving.cancel()
        await asyncio.shield(self._thread.do(self._end))

    async def _save_along(self) -> None:
        while True:
            await self._has_news.wait()
            await asyncio.sleep(SAVED_AFTER_S)
            self._has_news.clear()
            try:
                await self._thread.do(self._save)
            except StorageError:  # retried, and reported if the last save fails too
                self._has_news.set()

    def _begin(self, store: ChatStore) -> Message:
        return store.messages.add(*self._place)

    def _save(self, store: ChatStore) -> None:
        store.messages.write(self.message.id, self.message.content, self.message.reasoning)

    def _end(self, store: ChatStore) -> None:
        message = self.message
        store.messages.finish(message.id, message.content, message.reasoning, message.state, message.stats)
