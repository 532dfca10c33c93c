"""Drafts kept while they are typed."""

from __future__ import annotations

import asyncio

from app.chat.conversation import MessageContent
from app.chat.repository import SAVE_AFTER_S, DraftAutosave, InMemoryChat
from quantizer.system.errors import StorageError

NOTHING = MessageContent()
DISK_FULL = StorageError("The disk is full.", "Make room.")


class Shelf(InMemoryChat):
    """Keeps one draft in memory; the first `n_failures` attempts find the disk full."""

    def __init__(self, kept: MessageContent = NOTHING, n_failures: int = 0) -> None:
        super().__init__()
        self.kept = kept
        self.n_attempts = 0
        self._n_failures = n_failures
        self.is_saved = asyncio.Event()

    async def draft(self) -> MessageContent:
        return self.kept

    async def save_draft(self, draft: MessageContent) -> None:
        self.n_attempts += 1
        if self.n_attempts <= self._n_failures:
            raise DISK_FULL
        self.kept = draft
        self.is_saved.set()


async def _typed(pad: DraftAutosave, text: str) -> None:
    for end in range(1, len(text) + 1):
        pad.write(MessageContent(content=text[:end]))
        await asyncio.sleep(0)


async def test_a_draft_is_saved_within_a_second_and_once_for_many_letters():
    shelf = Shelf()
    pad = DraftAutosave(lambda error: None)
    await pad.open(shelf)
    await _typed(pad, "many letters")
    async with asyncio.timeout(60.0):
        await shelf.is_saved.wait()
    assert (shelf.kept, shelf.n_attempts) == (MessageContent(content="many letters"), 1)
    assert SAVE_AFTER_S < 1


async def test_leaving_a_chat_keeps_its_draft_at_once_and_what_is_typed_then_belongs_to_the_next():
    shelf = Shelf()
    pad = DraftAutosave(lambda error: None)
    await pad.open(shelf)
    await _typed(pad, "first")
    await pad.close()
    assert shelf.kept == MessageContent(content="first")
    pad.write(MessageContent(content="second"))
    await pad.close()
    assert (shelf.kept, shelf.n_attempts) == (MessageContent(content="first"), 1)


async def test_a_draft_that_was_not_read_yet_is_not_overwritten():
    shelf = Shelf(MessageContent(content="from yesterday"))
    pad = DraftAutosave(lambda error: None)
    await _typed(pad, "impatient")
    await pad.close()
    assert shelf.kept == MessageContent(content="from yesterday")


async def test_a_full_disk_is_reported_once_and_the_draft_is_saved_when_there_is_space():
    compose_prompt: list[StorageError] = []
    shelf = Shelf(n_failures=2)
    pad = DraftAutosave(compose_prompt.append)
    await pad.open(shelf)
    pad.write(MessageContent(content="kept in the end"))
    async with asyncio.timeout(60.0):
        await shelf.is_saved.wait()
    assert (compose_prompt, shelf.kept, shelf.n_attempts) == ([DISK_FULL], MessageContent(content="kept in the end"), 3)
