"""The seam behind which a chat is kept, and the keeper that keeps nothing.

Owns what a session needs of a store. `tui.chat.repository` is the one with a disk.

The chat on the screen as it is kept in chats.db: there again tomorrow, and after a kill.

Owns which chat that is. How messages are kept belongs to `app.chat`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, fields
from functools import partial
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from app.chat.conversation import ChatSettings, Draft, Message, MessageContent, MessageState, Scalar
from app.chat.text import provisional_title
from tui.chat.conversation import UNSAVED_ID, Conversation, RemovedMessages

if TYPE_CHECKING:
    from app.chat.conversation import ChatSettings, Transcript
    from app.chat.recorder import AnswerRecorder
    from app.chat.store import ChatStore, StoreThread

__all__ = ["AnswerTarget", "AnswerWriter", "ChatRepository", "InMemoryChatRepository", "SqliteChatRepository"]


@dataclass(frozen=True, slots=True)
class AnswerTarget:
    """Which message is answered by which model; `continued` is the answer that is written on, None for a new one."""

    parent_id: int | None
    model: str
    continued: Message | None = None


class AnswerWriter(Protocol):
    """An answer that is being kept; see `app.chat.recorder.AnswerRecorder`."""

    message: Message

    def write(self, content: str, reasoning: str = "") -> None: ...

    def finish(self, state: MessageState, stats: Mapping[str, Scalar]) -> None: ...


class ChatRepository(Protocol):
    """Keeps one chat at a time. What waits for a disk raises StorageError."""

    async def reopen(self, chat_id: int | None = None) -> Conversation:
        """Go on with a chat; without an id with that in which something was said last, an empty one where there is
        none."""

    async def prepare(self, question: str, model: str, settings: ChatSettings) -> None:
        """Begin the chat, if it has not begun, and keep who answers in it, and how."""

    async def say(self, parent_id: int | None, said: MessageContent) -> Message:
        """Keep a question after the message `parent_id`, in the chat that was prepared."""

    def answering(self, place: AnswerTarget) -> AbstractAsyncContextManager[AnswerWriter]:
        """Keep an answer until the block is left."""

    async def show(self, leaf_id: int | None) -> None:
        """Remember which branch is shown."""

    async def remove(self, message_id: int, leaf_id: int | None) -> None:
        """Forget a message and what follows, and show the branch that ends with `leaf_id`."""

    async def put_back(self, removed: RemovedMessages) -> None:
        """Undo a removal."""

    def title_setter(self, question: str) -> Callable[[str], Awaitable[None]]:
        """Return what gives the present chat a title, if it is still called after `question` then."""

    def start_over(self) -> None:
        """Begin another chat with the next question."""

    async def draft(self) -> Draft:
        """Return what was typed in this chat and not sent."""

    async def save_draft(self, draft: Draft) -> None:
        """Keep what is typed in this chat, in place of what was."""

    async def asked(self) -> Sequence[str]:
        """Return what was asked lately in any chat, the latest last."""


class InMemoryChatRepository:
    """Keeps nothing: for a chat that nobody should find later."""

    def __init__(self) -> None:
        self._ids = count(UNSAVED_ID + 1)

    async def reopen(self, chat_id: int | None = None) -> Conversation:  # noqa: ARG002
        return Conversation()

    async def prepare(self, question: str, model: str, settings: ChatSettings) -> None: ...

    async def say(self, parent_id: int | None, said: MessageContent) -> Message:
        known = {field.name: getattr(said, field.name) for field in fields(MessageContent)}
        return Message(id=next(self._ids), parent_id=parent_id, **known)

    @asynccontextmanager
    async def answering(self, place: AnswerTarget) -> AsyncIterator[AnswerWriter]:
        said = MessageContent(role="assistant", content="", model=place.model, state=MessageState.PARTIAL)
        yield _Unrecorded(place.continued or await self.say(place.parent_id, said))

    async def show(self, leaf_id: int | None) -> None: ...

    async def remove(self, message_id: int, leaf_id: int | None) -> None: ...

    async def put_back(self, removed: RemovedMessages) -> None: ...

    def title_setter(self, question: str) -> Callable[[str], Awaitable[None]]:  # noqa: ARG002
        return _forget_title

    def start_over(self) -> None: ...

    async def draft(self) -> Draft:
        return Draft()

    async def save_draft(self, draft: Draft) -> None: ...

    async def asked(self) -> Sequence[str]:
        return ()


async def _forget_title(title: str) -> None: ...


@dataclass(slots=True)
class _Unrecorded:
    message: Message

    def write(self, content: str, reasoning: str = "") -> None: ...

    def finish(self, state: MessageState, stats: Mapping[str, Scalar]) -> None: ...


_N_RECALLED = 200


class SqliteChatRepository:
    """The repository over chats.db. An async context manager; leaving it waits until every message is on the disk."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._opened: StoreThread | None = None
        self._chat_id: int | None = None
        self._one_at_a_time = asyncio.Lock()
        self._beginning = asyncio.Lock()  # so that no draft stays with "no chat" when that has just begun

    async def __aenter__(self) -> SqliteChatRepository:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async with self._one_at_a_time:
            if self._opened is not None:
                await self._opened.close()

    async def reopen(self, chat_id: int | None = None) -> Conversation:
        """Go on with a chat, without an id with that in which something was said last.

        Raises StorageError, and UnknownChatError for one that is not there.
        """
        transcript = await self._thread.do(partial(_read, chat_id))
        self._chat_id = transcript.chat.id if transcript else None
        if transcript is None:
            return Conversation()
        return Conversation.of(transcript.chat.settings, transcript.messages, transcript.chat.leaf_id)

    async def prepare(self, question: str, model: str, settings: ChatSettings) -> None:
        """Begin the chat, if it has not begun, and keep who answers in it, and how. Raises StorageError."""
        async with self._beginning:
            self._chat_id = await self._thread.do(partial(_prepare, self._chat_id, question, model, settings))

    async def say(self, parent_id: int | None, said: MessageContent) -> Message:
        """Keep a question. Raises StorageError."""
        chat_id = self._known_chat_id
        return await self._thread.do(lambda store: store.messages.add(chat_id, parent_id, said))

    @asynccontextmanager
    async def answering(self, place: AnswerTarget) -> AsyncIterator[AnswerRecorder]:
        """Keep an answer until the block is left. Raises StorageError."""
        from app.chat.recorder import AnswerRecorder

        async with (
            self._one_at_a_time,
            AnswerRecorder(
                self._thread, self._known_chat_id, place.parent_id, place.model, place.continued
            ) as recorder,
        ):
            yield recorder

    async def show(self, leaf_id: int | None) -> None:
        """Remember which branch is shown. Raises StorageError."""
        chat_id = self._known_chat_id
        await self._thread.do(lambda store: store.messages.show(chat_id, leaf_id))

    async def remove(self, message_id: int, leaf_id: int | None) -> None:
        """Forget a message and what follows, and show the branch that ends with `leaf_id`. Raises StorageError."""
        await self._thread.do(partial(_remove, self._known_chat_id, message_id, leaf_id))

    async def put_back(self, removed: RemovedMessages) -> None:
        """Undo a removal. Raises StorageError."""
        chat_id = self._known_chat_id
        await self._thread.do(lambda store: store.messages.put_back(chat_id, removed.messages, removed.leaf_id))

    def title_setter(self, question: str) -> Callable[[str], Awaitable[None]]:
        """Return what gives the present chat a title, if it is still called after `question` then; it raises
        StorageError."""
        return partial(self._entitle, self._known_chat_id, provisional_title(question))

    async def _entitle(self, chat_id: int, former: str, title: str) -> None:
        await self._thread.do(lambda store: store.chats.set_title(chat_id, title, former=former))

    def start_over(self) -> None:
        """Begin another chat with the next question."""
        self._chat_id = None

    async def draft(self) -> Draft:
        """Return what was typed in this chat and not sent. Raises StorageError."""
        chat_id = self._chat_id
        return await self._thread.do(lambda store: store.drafts.get(chat_id))

    async def save_draft(self, draft: Draft) -> None:
        """Keep what is typed in this chat, in place of what was. Raises StorageError."""
        async with self._beginning:
            chat_id = self._chat_id
            await self._thread.do(lambda store: store.drafts.keep(chat_id, draft))

    async def asked(self) -> Sequence[str]:
        """Return the last 200 questions of all chats, the latest last. Raises StorageError."""
        return await self._thread.do(lambda store: store.messages.recent_prompts(_N_RECALLED))

    @property
    def _known_chat_id(self) -> int:
        assert self._chat_id is not None, "a chat is prepared before anything is kept in it"
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
    """Return the chat's id, begun if there was none, with the model and the settings of this exchange."""
    if chat_id is None:
        store.drafts.keep(None)  # it is the question now
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
