"""Where the chat on the screen is stored: in chats.db, or in memory only.

Owns which chat is open, and when unsent text is saved: a kill loses at most its last second. The tables of chats.db
belong to `app.chat`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, fields
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from app.chat.conversation import Draft, Message, MessageContent, MessageState, provisional_title
from quantizer.errors import StorageError
from tui.chat.conversation import UNSAVED_ID, Conversation, RemovedMessages

if TYPE_CHECKING:
    from app.chat.conversation import ChatSettings, Transcript
    from app.chat.store import AnswerRecorder, ChatStore, StoreThread

__all__ = [
    "SAVE_AFTER_S",
    "AnswerTarget",
    "AnswerWriter",
    "ChatRepository",
    "DraftAutosave",
    "InMemoryChatRepository",
    "SqliteChatRepository",
]

SAVE_AFTER_S = 0.4  # plus the disk's delay: under a second in total
_N_RECENT_QUESTIONS = 200


@dataclass(frozen=True, slots=True)
class AnswerTarget:
    """The message to answer and the model that answers; `continued` is the answer to continue, None for a new one."""

    parent_id: int | None
    model: str
    continued: Message | None = None


class AnswerWriter(Protocol):
    """A running answer; see `app.chat.store.AnswerRecorder`. `message` is the answer so far."""

    message: Message

    def update(self, message: Message) -> None:
        """Replace the answer so far. Never waits."""


class ChatRepository(Protocol):
    """Stores one open chat at a time. Methods that wait for a disk raise StorageError."""

    async def open(self, chat_id: int | None = None) -> Conversation:
        """Open a chat; without an id the one with the latest message, or an empty one. Raises UnknownChatError."""

    async def prepare(self, question: str, model: str, settings: ChatSettings) -> None:
        """Create the chat unless it exists, and store its model and settings."""

    async def add_question(self, parent_id: int | None, question: MessageContent) -> Message:
        """Store a question after the message `parent_id`, in the prepared chat."""

    def writing(self, target: AnswerTarget) -> AbstractAsyncContextManager[AnswerWriter]:
        """Store an answer until the block is left."""

    async def show(self, leaf_id: int | None) -> None:
        """Store which branch is shown."""

    async def remove(self, message_id: int, leaf_id: int | None) -> None:
        """Remove a message with its descendants, and show the branch that ends with `leaf_id`."""

    async def restore(self, removed: RemovedMessages) -> None:
        """Undo a removal."""

    def title_setter(self, question: str) -> Callable[[str], Awaitable[None]]:
        """Return a function that sets the open chat's title if it still has the provisional title of `question`."""

    def close(self) -> None:
        """Close the chat: the next question creates one."""

    async def draft(self) -> Draft:
        """Return the unsent text of the open chat."""

    async def save_draft(self, draft: Draft) -> None:
        """Replace the unsent text of the open chat."""

    async def recent_questions(self) -> Sequence[str]:
        """Return the latest questions of all chats, the newest last."""


class InMemoryChatRepository:
    """A repository without a disk, for a chat that leaves no trace."""

    def __init__(self) -> None:
        self._ids = count(UNSAVED_ID + 1)

    async def open(self, chat_id: int | None = None) -> Conversation:  # noqa: ARG002
        return Conversation()

    async def prepare(self, question: str, model: str, settings: ChatSettings) -> None: ...

    async def add_question(self, parent_id: int | None, question: MessageContent) -> Message:
        values = {field.name: getattr(question, field.name) for field in fields(MessageContent)}
        return Message(id=next(self._ids), parent_id=parent_id, **values)

    @asynccontextmanager
    async def writing(self, target: AnswerTarget) -> AsyncIterator[AnswerWriter]:
        answer = MessageContent(role="assistant", content="", model=target.model, state=MessageState.PARTIAL)
        yield _InMemoryWriter(target.continued or await self.add_question(target.parent_id, answer))

    async def show(self, leaf_id: int | None) -> None: ...

    async def remove(self, message_id: int, leaf_id: int | None) -> None: ...

    async def restore(self, removed: RemovedMessages) -> None: ...

    def title_setter(self, question: str) -> Callable[[str], Awaitable[None]]:  # noqa: ARG002
        return _discard_title

    def close(self) -> None: ...

    async def draft(self) -> Draft:
        return Draft()

    async def save_draft(self, draft: Draft) -> None: ...

    async def recent_questions(self) -> Sequence[str]:
        return ()


async def _discard_title(title: str) -> None: ...


@dataclass(slots=True)
class _InMemoryWriter:
    message: Message

    def update(self, message: Message) -> None:
        self.message = message


class SqliteChatRepository:
    """The repository over chats.db. An async context manager; leaving it waits until every message is on the disk."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._opened: StoreThread | None = None
        self._chat_id: int | None = None
        self._write_lock = asyncio.Lock()
        self._prepare_lock = asyncio.Lock()  # no draft may be stored under "no chat" while a chat is created

    async def __aenter__(self) -> SqliteChatRepository:
        return self

    async def __aexit__(self, *_error: object) -> None:
        async with self._write_lock:
            if self._opened is not None:
                await self._opened.close()

    async def open(self, chat_id: int | None = None) -> Conversation:
        """Open a chat; without an id the one with the latest message. Raises UnknownChatError."""
        transcript = await self._thread.do(partial(_read, chat_id))
        self._chat_id = transcript.chat.id if transcript else None
        if transcript is None:
            return Conversation()
        chat, messages = transcript.chat, {message.id: message for message in transcript.messages}
        return Conversation(chat.settings, messages, chat.leaf_id)

    async def prepare(self, question: str, model: str, settings: ChatSettings) -> None:
        async with self._prepare_lock:
            self._chat_id = await self._thread.do(partial(_prepare, self._chat_id, question, model, settings))

    async def add_question(self, parent_id: int | None, question: MessageContent) -> Message:
        chat_id = self._open_chat_id
        return await self._thread.do(lambda store: store.messages.add(chat_id, parent_id, question))

    @asynccontextmanager
    async def writing(self, target: AnswerTarget) -> AsyncIterator[AnswerRecorder]:
        from app.chat.store import AnswerRecorder

        async with (
            self._write_lock,
            AnswerRecorder(
                self._thread, self._open_chat_id, target.parent_id, target.model, target.continued
            ) as recorder,
        ):
            yield recorder

    async def show(self, leaf_id: int | None) -> None:
        chat_id = self._open_chat_id
        await self._thread.do(lambda store: store.messages.show(chat_id, leaf_id))

    async def remove(self, message_id: int, leaf_id: int | None) -> None:
        await self._thread.do(partial(_remove, self._open_chat_id, message_id, leaf_id))

    async def restore(self, removed: RemovedMessages) -> None:
        chat_id = self._open_chat_id
        await self._thread.do(lambda store: store.messages.restore(chat_id, removed.messages, removed.leaf_id))

    def title_setter(self, question: str) -> Callable[[str], Awaitable[None]]:
        return partial(self._set_title, self._open_chat_id, provisional_title(question))

    async def _set_title(self, chat_id: int, former: str, title: str) -> None:
        await self._thread.do(lambda store: store.chats.set_title(chat_id, title, former=former))

    def close(self) -> None:
        self._chat_id = None

    async def draft(self) -> Draft:
        chat_id = self._chat_id
        return await self._thread.do(lambda store: store.drafts.get(chat_id))

    async def save_draft(self, draft: Draft) -> None:
        async with self._prepare_lock:
            chat_id = self._chat_id
            await self._thread.do(lambda store: store.drafts.save(chat_id, draft))

    async def recent_questions(self) -> Sequence[str]:
        return await self._thread.do(lambda store: store.messages.recent_prompts(_N_RECENT_QUESTIONS))

    @property
    def _open_chat_id(self) -> int:
        assert self._chat_id is not None, "a chat is prepared before anything is stored in it"
        return self._chat_id

    @property
    def _thread(self) -> StoreThread:
        from app.chat.store import StoreThread

        self._opened = self._opened or StoreThread(self._data_dir)
        return self._opened


def _read(chat_id: int | None, store: ChatStore) -> Transcript | None:
    store.purge_deleted()
    chat = store.chats.latest() if chat_id is None else store.chats.get(chat_id)
    return store.transcripts.read(chat.id) if chat else None


def _prepare(chat_id: int | None, question: str, model: str, settings: ChatSettings, store: ChatStore) -> int:
    """Return the chat's id, created if there was none, with the model and settings of this exchange."""
    if chat_id is None:
        store.drafts.save(None)  # the draft is the question now
        return store.chats.create(title=provisional_title(question), model=model, settings=settings).id
    chat = store.chats.get(chat_id)
    if chat.settings != settings:
        store.chats.configure(chat_id, settings)
    if chat.model != model:
        store.chats.use_model(chat_id, model)
    return chat_id


def _remove(chat_id: int, message_id: int, leaf_id: int | None, store: ChatStore) -> None:
    store.messages.remove(chat_id, message_id)
    store.messages.show(chat_id, leaf_id)


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
