"""Where open chats are stored: in chats.db, or in memory only.

Owns the places of the open chats, when unsent text is saved (a kill loses at most its last second), and the one way in
which the computed prefixes of a deleted chat are removed. The tables of chats.db belong to `app.chat.store`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from app.chat.branches import UNSAVED_ID, Conversation, RemovedMessages
from app.chat.conversation import MediaFile, Message, MessageContent, MessageState, placed, provisional_title
from app.chat.store.attachment_files import encode_media
from app.common.event_log import log_event
from app.protocol.chat import MediaPart, Source
from app.protocol.errors import ServiceError
from app.settings.private_files import remove_prefixes
from quantizer.system.errors import StorageError, UserError

if TYPE_CHECKING:
    from app.chat.conversation import Attachment, Chat, ChatSettings, Transcript
    from app.chat.store.chat_store import AnswerRecorder, ChatStore, StoreThread
    from app.protocol.status import AnswerRecord
    from app.tools.tool import ToolResult


SAVE_AFTER_S = 0.4  # plus the disk's delay: under a second in total
_N_RECENT_QUESTIONS = 200
_N_RECENT_ANSWERS = 50


@dataclass(frozen=True, slots=True)
class AnswerTarget:
    """The message to answer and the model that answers; `continued` is the answer to continue, None for a new one. A
    model that `is_other` answers only this time."""

    parent_id: int | None
    model: str
    continued: Message | None = None
    is_other: bool = False


class AnswerWriter(Protocol):
    """A running answer; see `app.chat.store.chat_store.AnswerRecorder`. `message` is the answer so far."""

    message: Message

    def update(self, message: Message) -> None:
        """Replace the answer so far. Never waits."""


class StoredChat(Protocol):
    """The place of one open chat. Methods that wait for a disk raise StorageError."""

    @property
    def id(self) -> int | None:
        """The id in the store; None before the first question, and always in memory."""

    @property
    def prompt_cache_key(self) -> str | None:
        """What requests call the chat (see `Chat`), by which the engine's cache of it is found and deleted; empty
        before the first question and for a chat that leaves nothing on the disk, None for one that has no chat."""

    async def prepare(self, question: str, model: str, settings: ChatSettings) -> None:
        """Create the chat unless it exists, and store its model and settings."""

    async def add_message(self, parent_id: int | None, message: MessageContent) -> Message:
        """Store a message after `parent_id`, in the prepared chat: a question, a whole summary, or a call before it
        runs."""

    async def write_sources(self, message_id: int, sources: Sequence[Source]) -> None:
        """Store the passages that are sent with a question."""

    async def write_result(self, message_id: int, result: ToolResult) -> None:
        """Store how a call is going, or that it was undone."""

    async def finish_call(
        self, message_id: int, content: str, result: ToolResult, attachments: Sequence[Attachment] = ()
    ) -> None:
        """Store the end of a call, the text that the model reads, and its pictures and sounds."""

    def writing(self, target: AnswerTarget) -> AbstractAsyncContextManager[AnswerWriter]:
        """Store an answer until the block is left."""

    def answering(self, message_id: int | None = None) -> AbstractAsyncContextManager[None]:
        """Let other windows know, until the block is left, that this one goes on: after a message, and after each that
        it adds. Raises nothing."""

    async def withdraw(self) -> None:
        """Take back what `answering` lets other windows know, until the next message is added."""

    async def written_elsewhere(self) -> frozenset[int]:
        """Return the ids of the messages after which other windows go on."""

    async def show(self, leaf_id: int | None) -> None:
        """Store which branch is shown."""

    async def remove(self, message_id: int, leaf_id: int | None) -> None:
        """Delete a message with its descendants, and show the branch to `leaf_id`."""

    async def restore(self, removed: RemovedMessages) -> None:
        """Restore removed messages and the branch shown before."""

    async def set_title(self, question: str, title: str) -> None:
        """Store a generated title, unless the title is no longer the one that `question` gave."""

    async def unknown(self, known: Collection[int]) -> Sequence[Message]:
        """Return the messages of this chat that another window stored: all but those with the `known` ids."""

    async def draft(self) -> MessageContent:
        """Return the unsent text of this chat."""

    async def save_draft(self, draft: MessageContent) -> None:
        """Store the unsent text of this chat."""

    async def keep_files(self, contents: Mapping[str, bytes]) -> None:
        """Store contents of attachments by their SHA-256, before a message names them."""

    async def media_parts(self, files: Sequence[MediaFile]) -> Mapping[str, MediaPart]:
        """Return pictures and sounds by their SHA-256. Raises StorageError for one that is missing."""


@dataclass(frozen=True, slots=True)
class OpenedChat:
    """A chat just opened: its place, its messages, and the model that answered last ("" for none)."""

    stored: StoredChat
    conversation: Conversation
    model: str = ""


class ChatRepository(Protocol):
    """Opens chats. Methods that wait for a disk raise StorageError."""

    async def open(self, chat_id: int | None = None) -> OpenedChat:
        """Open a chat; without an id the one with the latest message, or an empty one. Raises UnknownChatError."""

    def new(self) -> StoredChat:
        """Return the place of a new chat, which is created by its first question."""

    async def keep_files(self, contents: Mapping[str, bytes]) -> None:
        """Store contents of attachments by their SHA-256, before a draft or a question names them."""

    async def recent_questions(self) -> Sequence[str]:
        """Return the latest questions of all chats, the newest last."""

    async def recent_models(self) -> Mapping[str, int]:
        """Return the models of all chats and when each answered last (milliseconds since 1970), the latest first."""

    async def rename_model(self, formers: Collection[str], name: str) -> None:
        """Give a model that has one of the `formers` names another one in all chats."""

    async def recent_answers(self) -> Sequence[AnswerRecord]:
        """Return the figures of the latest answers in all chats, the newest first."""


class InMemoryChatRepository:
    """A repository without a disk, for chats that leave no trace; `prompt_cache_key` is that of its chats."""

    def __init__(self, prompt_cache_key: str | None = "") -> None:
        self._prompt_cache_key = prompt_cache_key
        self._ids = count(UNSAVED_ID + 1)
        self._contents: dict[str, bytes] = {}

    async def open(self, chat_id: int | None = None) -> OpenedChat:  # noqa: ARG002
        return OpenedChat(self.new(), Conversation())

    def new(self) -> InMemoryChat:
        return InMemoryChat(self._ids, self._contents, self._prompt_cache_key)

    async def keep_files(self, contents: Mapping[str, bytes]) -> None:
        self._contents.update(contents)

    async def recent_questions(self) -> Sequence[str]:
        return ()

    async def recent_models(self) -> Mapping[str, int]:
        return {}

    async def rename_model(self, formers: Collection[str], name: str) -> None:
        """Do nothing: no chat is kept."""

    async def recent_answers(self) -> Sequence[AnswerRecord]:
        return ()


class InMemoryChat:
    """The place of a chat without a disk; `ids` yields the ids of its messages, `contents` are those of attachments."""

    id = None

    def __init__(
        self,
        ids: Iterator[int] | None = None,
        contents: dict[str, bytes] | None = None,
        prompt_cache_key: str | None = "",
    ) -> None:
        self.prompt_cache_key = prompt_cache_key
        self._ids = ids or count(UNSAVED_ID + 1)
        self._contents = {} if contents is None else contents  # those of its repository

    async def add_message(self, parent_id: int | None, message: MessageContent) -> Message:
        return placed(message, next(self._ids), parent_id)

    @asynccontextmanager
    async def writing(self, target: AnswerTarget) -> AsyncIterator[AnswerWriter]:
        answer = MessageContent(role="assistant", content="", model=target.model, state=MessageState.PARTIAL)
        yield _InMemoryWriter(target.continued or await self.add_message(target.parent_id, answer))

    @asynccontextmanager
    async def answering(self, message_id: int | None = None) -> AsyncIterator[None]:  # noqa: ARG002
        yield

    async def written_elsewhere(self) -> frozenset[int]:
        return frozenset()

    async def _nothing_to_store(self, *_args: Any, **_named: Any) -> None: ...

    withdraw = prepare = write_sources = write_result = finish_call = show = remove = restore = _nothing_to_store
    set_title = save_draft = _nothing_to_store

    async def unknown(self, known: Collection[int]) -> Sequence[Message]:  # noqa: ARG002
        return ()

    async def draft(self) -> MessageContent:
        return MessageContent()

    async def keep_files(self, contents: Mapping[str, bytes]) -> None:
        self._contents.update(contents)

    async def media_parts(self, files: Sequence[MediaFile]) -> Mapping[str, MediaPart]:
        return {file.sha256: encode_media(file, self._contents[file.sha256]) for file in files}


@dataclass(slots=True)
class _InMemoryWriter:
    message: Message

    def update(self, message: Message) -> None:
        self.message = message


class SqliteChatRepository:
    """The repository over chats.db. An async context manager; leaving it waits until every message is on the disk.
    With a `cache_dir`, the first opening of a chat deletes what services saved there of chats after their deletion. A
    window that `has_drafts` stores unsent text: that of a new chat is its first question, once that is asked."""

    def __init__(self, data_dir: Path, cache_dir: Path | None = None, *, has_drafts: bool = True) -> None:
        self._data_dir = data_dir
        self.has_drafts = has_drafts
        self._untidy_cache_dir = cache_dir
        self._opened: StoreThread | None = None
        self._n_writers = 0
        self._is_written = asyncio.Event()
        self._is_written.set()
        # While a chat is created no draft may be stored under "no chat": that draft becomes the first question.
        self.prepare_lock = asyncio.Lock()

    async def __aenter__(self) -> SqliteChatRepository:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._is_written.wait()
        if self._opened is not None:
            await self._opened.close()

    async def open(self, chat_id: int | None = None) -> OpenedChat:
        """Open a chat; without an id the one with the latest message. Raises UnknownChatError."""
        cache_dir, self._untidy_cache_dir = self._untidy_cache_dir, None
        if cache_dir is not None:
            # before `_read` purges chats, after which nobody knows what their prefixes are called
            keys = await self.thread.do(lambda store: [chat.prompt_cache_key for chat in store.chats.deleted()])
            try:
                await delete_prefixes(keys, cache_dir)
            except StorageError as error:  # keeps nobody from a chat; the next start tries again
                log_event("app", str(error))
        found = await self.thread.do(partial(_read, chat_id))
        if found is None:
            return OpenedChat(self.new(), Conversation())
        transcript, elsewhere = found
        chat, messages = transcript.chat, {message.id: message for message in transcript.messages}
        conversation = Conversation(chat.settings, messages, chat.leaf_id, elsewhere=elsewhere)
        return OpenedChat(SqliteChat(self, chat), conversation, chat.model)

    def new(self) -> SqliteChat:
        return SqliteChat(self)

    async def keep_files(self, contents: Mapping[str, bytes]) -> None:
        if contents:
            await self.thread.do(lambda store: store.files.keep(contents))

    async def recent_questions(self) -> Sequence[str]:
        return await self.thread.do(lambda store: store.messages.recent_prompts(_N_RECENT_QUESTIONS))

    async def recent_models(self) -> Mapping[str, int]:
        return await self.thread.do(lambda store: store.chats.recent_models())

    async def rename_model(self, formers: Collection[str], name: str) -> None:
        await self.thread.do(lambda store: store.chats.rename_model(formers, name))

    async def recent_answers(self) -> Sequence[AnswerRecord]:
        return await self.thread.do(lambda store: store.messages.recent_answers(_N_RECENT_ANSWERS))

    @asynccontextmanager
    async def being_written(self) -> AsyncIterator[None]:
        """Keep the database open for the block, which writes an answer."""
        self._n_writers += 1
        self._is_written.clear()
        try:
            yield
        finally:
            self._n_writers -= 1
            if not self._n_writers:
                self._is_written.set()

    @property
    def thread(self) -> StoreThread:
        """The thread of the database, opened on first use."""
        from app.chat.store.chat_store import StoreThread

        self._opened = self._opened or StoreThread(self._data_dir)
        return self._opened


class SqliteChat:
    """The place of a chat in chats.db."""

    def __init__(self, repository: SqliteChatRepository, chat: Chat | None = None) -> None:
        self._repository = repository
        self._chat = chat
        self._is_answering = False

    @property
    def id(self) -> int | None:
        return None if self._chat is None else self._chat.id

    @property
    def prompt_cache_key(self) -> str:
        return "" if self._chat is None else self._chat.prompt_cache_key

    async def prepare(self, question: str, model: str, settings: ChatSettings) -> None:
        async with self._repository.prepare_lock:
            self._chat = await self._thread.do(
                partial(_prepare, self.id, question, model, settings, self._repository.has_drafts)
            )

    async def add_message(self, parent_id: int | None, message: MessageContent) -> Message:
        chat_id, is_marked = self._prepared_id, self._is_answering
        return await self._thread.do(
            lambda store: store.messages.add(chat_id, parent_id, message, store.writers.window if is_marked else "")
        )

    async def write_sources(self, message_id: int, sources: Sequence[Source]) -> None:
        await self._thread.do(lambda store: store.messages.write_sources(message_id, sources))

    async def write_result(self, message_id: int, result: ToolResult) -> None:
        await self._thread.do(lambda store: store.messages.write_result(message_id, result))

    async def finish_call(
        self, message_id: int, content: str, result: ToolResult, attachments: Sequence[Attachment] = ()
    ) -> None:
        async with self._repository.being_written():
            await self._thread.do(lambda store: store.messages.finish_call(message_id, content, result, attachments))

    @asynccontextmanager
    async def writing(self, target: AnswerTarget) -> AsyncIterator[AnswerRecorder]:
        from app.chat.store.chat_store import AnswerRecorder

        place = (self._prepared_id, target.parent_id, target.model, target.continued)
        recorder = AnswerRecorder(self._thread, *place, is_marked=self._is_answering)
        async with self._repository.being_written(), recorder:
            yield recorder

    @asynccontextmanager
    async def answering(self, message_id: int | None = None) -> AsyncIterator[None]:
        async with self._repository.being_written():
            self._is_answering = True
            try:
                if message_id is not None:
                    await self._mark(message_id)
                yield
            finally:
                self._is_answering = False
                await asyncio.shield(self._mark(None))

    async def withdraw(self) -> None:
        await self._mark(None)

    async def _mark(self, message_id: int | None) -> None:
        chat_id = self.id
        if chat_id is not None:
            try:
                await self._thread.do(lambda store: store.writers.mark(chat_id, message_id))
            except StorageError as error:  # an answer is worth more than its mark, and saving it reports a full disk
                log_event("app", str(error))

    async def written_elsewhere(self) -> frozenset[int]:
        chat_id = self.id
        return frozenset() if chat_id is None else await self._thread.do(lambda store: store.writers.of_chat(chat_id))

    async def show(self, leaf_id: int | None) -> None:
        chat_id = self._prepared_id
        await self._thread.do(lambda store: store.messages.show(chat_id, leaf_id))

    async def remove(self, message_id: int, leaf_id: int | None) -> None:
        await self._thread.do(partial(_remove, self._prepared_id, message_id, leaf_id))

    async def restore(self, removed: RemovedMessages) -> None:
        chat_id = self._prepared_id
        await self._thread.do(lambda store: store.messages.restore(chat_id, removed.messages, removed.leaf_id))

    async def set_title(self, question: str, title: str) -> None:
        chat_id, former = self._prepared_id, provisional_title(question)
        await self._thread.do(lambda store: store.chats.set_title(chat_id, title, former=former))

    async def unknown(self, known: Collection[int]) -> Sequence[Message]:
        chat_id = self.id
        return () if chat_id is None else await self._thread.do(lambda store: store.messages.unknown(chat_id, known))

    async def draft(self) -> MessageContent:
        chat_id = self.id
        return await self._thread.do(lambda store: store.drafts.get(chat_id))

    async def save_draft(self, draft: MessageContent) -> None:
        async with self._repository.prepare_lock:
            chat_id = self.id
            await self._thread.do(lambda store: store.drafts.save(chat_id, draft))

    async def keep_files(self, contents: Mapping[str, bytes]) -> None:
        await self._repository.keep_files(contents)

    async def media_parts(self, files: Sequence[MediaFile]) -> Mapping[str, MediaPart]:
        return await self._thread.do(lambda store: store.files.parts(files)) if files else {}

    @property
    def _prepared_id(self) -> int:
        assert self._chat is not None, "a chat is prepared before anything is stored in it"
        return self._chat.id

    @property
    def _thread(self) -> StoreThread:
        return self._repository.thread


def _read(chat_id: int | None, store: ChatStore) -> tuple[Transcript, frozenset[int]] | None:
    store.purge_deleted()
    chat = store.chats.latest() if chat_id is None else store.chats.get(chat_id)
    return (store.transcripts.read(chat.id), store.writers.of_chat(chat.id)) if chat else None


def _prepare(
    chat_id: int | None, question: str, model: str, settings: ChatSettings, has_drafts: bool, store: ChatStore
) -> Chat:
    """Return the chat, created if there was none, with the model and settings of this exchange."""
    if chat_id is None:
        if has_drafts:
            store.drafts.save(None)  # the draft is the question now
        return store.chats.create(title=provisional_title(question), model=model, settings=settings)
    chat = store.chats.get(chat_id)
    if chat.settings != settings:
        store.chats.configure(chat_id, settings)
    if chat.model != model:
        store.chats.use_model(chat_id, model)
    return chat


def _remove(chat_id: int, message_id: int, leaf_id: int | None, store: ChatStore) -> None:
    store.messages.remove(chat_id, message_id)
    store.messages.show(chat_id, leaf_id)


class DraftAutosave:
    """The draft of the chat on the screen. `on_error` receives the first error of a series of failed saves."""

    def __init__(self, on_error: Callable[[StorageError], None]) -> None:
        self._stored: StoredChat | None = None
        self._on_error = on_error
        self._draft = MessageContent()
        # None while no chat is open: nothing may take the place of an unread draft
        self._saved: MessageContent | None = None
        self._saving: asyncio.Task[None] | None = None
        self._has_failed = False

    async def open(self, stored: StoredChat) -> MessageContent:
        """Return the stored draft of the chat just opened. Raises StorageError."""
        self._stored = stored
        self._saved = await stored.draft()
        return self._saved

    def write(self, draft: MessageContent) -> None:
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
        draft, stored = self._draft, self._stored
        if stored is None or self._saved is None or draft == self._saved:
            return
        try:
            await stored.save_draft(draft)
        except StorageError as error:  # retried with the next change
            if not self._has_failed:
                self._on_error(error)
            self._has_failed = True
        else:
            self._saved, self._has_failed = draft, False


_TIMEOUT_S = 10.0  # a service that starts or computes a long step; what it saves later goes at the app's next start

Forget = Callable[[Sequence[str]], Awaitable[None]]
"""Lets a service delete what it computed of the chats with these keys, in memory and on its disk."""


async def delete_prefixes(
    keys: Sequence[str], cache_dir: Path, forget: Forget | None = None, *, is_own_service: bool = True
) -> UserError | None:
    """Delete the computed prefixes of chats by their `prompt_cache_key`; return what kept the service from it. A
    service of our own deletes its files, which are in `cache_dir`; they are deleted here only where it did not, or
    where `forget` goes to another machine. Raises StorageError."""
    failure: UserError | None = None
    if forget is not None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await forget(keys)
        except TimeoutError:
            failure = ServiceError("The service did not answer in time.", "Try again.")
        except UserError as error:
            failure = error
    if forget is None or failure is not None or not is_own_service:
        await asyncio.to_thread(remove_prefixes, cache_dir, keys)
    return failure
