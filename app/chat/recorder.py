"""An answer kept while it is written: a kill costs at most its last second.

Owns the pace of saving. Where the text comes from and who shows it, it does not know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType

from app.chat.conversation import Message, MessageContent, MessageState, Scalar
from app.chat.store import ChatStore, StoreThread
from quantizer.errors import StorageError

__all__ = ["SAVED_AFTER_S", "AnswerRecorder"]

SAVED_AFTER_S = 0.5  # text waits for this long, and then for the disk: together under a second


class AnswerRecorder:
    """An async context manager that keeps the answer to one message; `message` is what is kept of it. Given
    `continued`, an answer that is kept already, it is written on.

    The answer is partial from the first moment on and stays so unless `finish` says otherwise: whatever ends the
    process leaves nothing to mend. Leaving the block saves all of it, and raises StorageError when that fails.
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
        self._content = [continued.content] if continued else []
        self._reasoning = [continued.reasoning] if continued else []
        self._has_news = asyncio.Event()
        self._outcome: tuple[MessageState, Mapping[str, Scalar]] = (MessageState.PARTIAL, {})

    async def __aenter__(self) -> AnswerRecorder:
        self.message: Message = await self._thread.do(self._begin) if self._continued is None else self._continued
        self._saving = asyncio.create_task(self._save_along())
        return self

    def write(self, content: str, reasoning: str = "") -> None:
        """Take in what the answer went on with. Never waits."""
        self._content.append(content)
        self._reasoning.append(reasoning)
        self._has_news.set()

    def finish(self, state: MessageState, stats: Mapping[str, Scalar]) -> None:
        """Say how the answer ended, before the block is left."""
        self._outcome = state, stats

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._saving.cancel()
        await asyncio.shield(self._thread.do(self._end))

    async def _save_along(self) -> None:
        while True:
            await self._has_news.wait()
            await asyncio.sleep(SAVED_AFTER_S)
            self._has_news.clear()
            try:
                await self._thread.do(self._save)
            except StorageError:  # tried again, and reported if the last save fails too
                self._has_news.set()

    def _begin(self, store: ChatStore) -> Message:
        return store.messages.add(*self._place)

    def _save(self, store: ChatStore) -> None:
        store.messages.write(self.message.id, *self._text())

    def _end(self, store: ChatStore) -> None:
        store.messages.finish(self.message.id, *self._text(), *self._outcome)

    def _text(self) -> tuple[str, str]:
        return "".join(self._content), "".join(self._reasoning)
