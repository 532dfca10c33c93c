"""The chat store: all tables over one database, whole transcripts, drafts, and the thread for an event loop.

Owns the mapping between the ids of a transcript and those of the store, the tables of drafts, the purge of deleted
chats, the order of actions in the thread, and when an answer is saved while it is generated: a kill loses at most its
last second.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from app.chat.conversation import Chat, Message, MessageContent, MessageState, Transcript
from app.chat.store import writers
from app.chat.store.attachment_files import FOLDER_NAME, AttachmentFiles, use_in_draft
from app.chat.store.database import SCHEMA, attachments_json, attachments_of, chat_columns, insert, now_ms, storable
from app.chat.store.search import Search
from app.chat.store.tables import PURGE_AFTER_MS, Chats, Messages, Sessions, insert_message, touch
from app.chat.store.writers import Writers
from app.common.database import Database
from app.common.event_log import log_event
from app.tools import file_history
from app.tools.file_history import FileHistory
from quantizer.system.errors import StorageError

FILE_NAME = "chats.db"
_NO_CHAT = 0  # the row of the draft of a new chat: ids begin with 1
_NO_DRAFT = MessageContent()
_Result = TypeVar("_Result")


class Transcripts:
    """Reads and writes chats with all their messages."""

    def __init__(self, database: Database, chats: Chats, messages: Messages, writers: Writers) -> None:
        self._database = database
        self._chats = chats
        self._messages = messages
        self._writers = writers

    def read(self, chat_id: int) -> Transcript:
        """Return a chat and all its messages. Raises UnknownChatError."""
        chat = self._chats.get(chat_id)
        written = self._writers.of_chat(chat_id, with_own=True)  # first: what ends meanwhile is then seen as whole
        return Transcript(chat, self._messages.of(chat_id), written)

    def insert(self, transcript: Transcript) -> Chat:
        """Store a whole chat with new ids, all of it or nothing, and return it. Without a time it is of now."""
        chat = transcript.chat
        with self._database.writing() as connection:
            chat_id = insert(connection, "chats", chat_columns(chat, now_ms()))
            new_ids: dict[int | None, int | None] = {None: None}
            for message in transcript.messages:
                new_ids[message.id] = insert_message(connection, chat_id, new_ids[message.parent_id], message)
            leaf = (new_ids[chat.leaf_id], chat_id)
            connection.execute("UPDATE chats SET leaf_id = ? WHERE id = ?", leaf)
            return self._chats.get(chat_id)

    def duplicate(self, chat_id: int) -> Chat:
        """Copy a chat with all its branches; the copy is neither pinned nor archived. Raises UnknownChatError."""
        original = self.read(chat_id)
        copy = self.insert(Transcript(replace(original.chat, is_pinned=False, is_archived=False), original.messages))
        with self._database.writing() as connection:
            touch(connection, copy.id)
        return self._chats.get(copy.id)


class Drafts:
    """The drafts of chats; None is a new chat."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, chat_id: int | None) -> MessageContent:
        values = (chat_id or _NO_CHAT,)
        with self._database.reading() as connection:
            text = connection.execute("SELECT content FROM drafts WHERE chat_id = ?", values).fetchone()
            attachments = _attachments(connection, values[0])
        return MessageContent(
            content=str(text["content"]) if text else "", attachments=attachments_of(attachments) if attachments else ()
        )

    def save(self, chat_id: int | None, draft: MessageContent = _NO_DRAFT) -> None:
        """Store the draft of a chat, or delete it if it is empty. Attachments are written only if they changed."""
        row_id = chat_id or _NO_CHAT
        attachments = attachments_json(draft.attachments) if draft.attachments else ""
        with self._database.writing() as connection:
            connection.execute("DELETE FROM drafts WHERE chat_id = ?", (row_id,))
            if draft.content:
                values = (row_id, storable(draft.content))
                connection.execute("INSERT INTO drafts (chat_id, content) VALUES (?, ?)", values)
            if attachments != _attachments(connection, row_id):
                connection.execute("DELETE FROM draft_attachments WHERE chat_id = ?", (row_id,))
                use_in_draft(connection, row_id, draft.attachments)
                if attachments:
                    values = (row_id, attachments)
                    connection.execute("INSERT INTO draft_attachments (chat_id, attachments) VALUES (?, ?)", values)


def _attachments(connection: sqlite3.Connection, row_id: int) -> str:
    """Return the column of a draft's attachments; empty for none."""
    row = connection.execute("SELECT attachments FROM draft_attachments WHERE chat_id = ?", (row_id,)).fetchone()
    return str(row["attachments"]) if row else ""


class ChatStore:
    """A context manager over the chats of one data folder, for one thread. The file is opened on first use. `files`
    keeps pictures and sounds beside it, `file_history` what tools replaced in files. Any number of windows and
    processes may have one each. Every method of its parts raises StorageError if the file cannot be used."""

    def __init__(self, data_dir: Path) -> None:
        self._database = Database(data_dir / FILE_NAME, SCHEMA)  # which opens it on first use
        self.chats = Chats(self._database)
        self.writers = Writers(self._database, data_dir / writers.FOLDER_NAME)
        self.messages = Messages(self._database, self.writers)
        self.transcripts = Transcripts(self._database, self.chats, self.messages, self.writers)
        self.search = Search(self._database)
        self.drafts = Drafts(self._database)
        self.sessions = Sessions(self._database)
        self.files = AttachmentFiles(self._database, data_dir / FOLDER_NAME)
        self.file_history = FileHistory(data_dir / file_history.FOLDER_NAME)

    def __enter__(self) -> ChatStore:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def purge_deleted(self) -> int:
        """Purge chats that were deleted at least a week ago, with the files that only they use and the former contents
        that only they can restore; return how many."""
        n_purged = self.chats.purge_deleted(now_ms() - PURGE_AFTER_MS)
        try:
            self.files.remove_unused()
            if n_purged:
                self.file_history.remove_unused(self.messages.contents_of_changes())
        except StorageError as error:  # what is left of files keeps nobody from a chat; `localllm prune` removes it
            log_event("app", str(error))
        return n_purged

    def close(self) -> None:
        try:
            self.writers.close()
        finally:
            self._database.close()


class StoreThread:
    """An async context manager that runs actions on a ChatStore in its own thread, in order."""

    def __init__(self, data_dir: Path) -> None:
        self._store = ChatStore(data_dir)
        self._thread = ThreadPoolExecutor(1, "chats")

    async def do(self, action: Callable[[ChatStore], _Result]) -> _Result:
        """Run `action` with the store and return its result. A started action completes even if its caller leaves."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, action, self._store)

    async def close(self) -> None:
        """Finish pending actions, then close the file."""
        await self.do(ChatStore.close)
        self._thread.shutdown()

    async def __aenter__(self) -> StoreThread:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()


SAVED_AFTER_S = 0.5  # with the time of the disk under a second


class AnswerRecorder:
    """An async context manager that saves the answer to one message, or continues the saved answer `continued`.
    `message` is the answer so far. It is partial unless its state says otherwise, so that a kill leaves nothing to
    repair. A new one that `is_marked` is of this window (`app.chat.store.writers`) until somebody ends that. Leaving
    the block saves all of it, and raises StorageError if that fails."""

    def __init__(
        self,
        thread: StoreThread,
        chat_id: int,
        parent_id: int | None,
        model: str = "",
        continued: Message | None = None,
        *,
        is_marked: bool = False,
    ) -> None:
        self._thread = thread
        self._is_marked = is_marked
        self._continued = continued
        self._new = (chat_id, parent_id, MessageContent(role="assistant", model=model, state=MessageState.PARTIAL))
        self._has_news = asyncio.Event()

    async def __aenter__(self) -> AnswerRecorder:
        new, continued = self._new, self._continued
        if continued is None:
            is_marked = self._is_marked
            continued = await self._thread.do(
                lambda store: store.messages.add(*new, store.writers.window if is_marked else "")
            )
        self.message: Message = continued
        self._saving = asyncio.create_task(self._save_along())
        return self

    def update(self, message: Message) -> None:
        """Replace the answer so far. Never waits."""
        self.message = message
        self._has_news.set()

    async def __aexit__(self, *_error: object) -> None:
        self._saving.cancel()
        message = self.message
        await asyncio.shield(self._thread.do(lambda store: store.messages.finish(message.id, message)))

    async def _save_along(self) -> None:
        while True:
            await self._has_news.wait()
            await asyncio.sleep(SAVED_AFTER_S)
            self._has_news.clear()
            try:
                await self._thread.do(self._save)
            except StorageError:  # retried, and reported if the last save fails too
                self._has_news.set()

    def _save(self, store: ChatStore) -> None:
        message = self.message
        store.messages.write(message.id, message.content, message.reasoning, message.calls)
