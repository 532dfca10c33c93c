"""Whole chats as they are kept: read at once, copied, taken in from elsewhere.

Owns the way between the ids of a transcript and those of the store.

What was typed and not yet sent, and what was to go with it, chat by chat: there again after a kill.

Owns the tables of drafts. When one is worth keeping is decided by whoever shows the prompt.

Everything that is kept of chats, in one place: what a thread holds.

Owns how the parts share one database, and the sweeping of what was deleted.

The store behind an event loop: one thread owns it, and nobody waits for the disk but who asked.

Owns the thread and the order of what is done in it. What is done it does not know.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from app.chat.chats import PURGE_AFTER_MS, Chats, now_ms
from app.chat.conversation import Chat, Draft, Transcript
from app.chat.database import Database
from app.chat.messages import Messages, insert_message
from app.chat.rows import attachments_json, attachments_of, insert, settings_json
from app.chat.search import Search
from app.chat.text import storable

__all__ = ["ChatStore", "Drafts", "StoreThread", "Transcripts"]


class Transcripts:
    """Reads and writes chats with all their messages."""

    def __init__(self, database: Database, chats: Chats, messages: Messages) -> None:
        self._database = database
        self._chats = chats
        self._messages = messages

    def read(self, chat_id: int) -> Transcript:
        """Return a chat and all its messages. Raises UnknownChatError."""
        return Transcript(self._chats.get(chat_id), self._messages.of(chat_id))

    def insert(self, transcript: Transcript) -> Chat:
        """Keep a whole chat under new ids, all of it or nothing, and return it. One without a time is of now."""
        with self._database.writing() as connection:
            chat_id = _insert_chat(connection, transcript.chat)
            new_ids: dict[int | None, int | None] = {None: None}
            for message in transcript.messages:
                new_ids[message.id] = insert_message(connection, chat_id, new_ids[message.parent_id], message)
            leaf = (new_ids[transcript.chat.leaf_id], chat_id)
            connection.execute("UPDATE chats SET leaf_id = ? WHERE id = ?", leaf)
            return self._chats.get(chat_id)

    def duplicate(self, chat_id: int) -> Chat:
        """Copy a chat with all its branches; the copy is neither pinned nor archived. Raises UnknownChatError."""
        original = self.read(chat_id)
        copy = replace(original.chat, is_pinned=False, is_archived=False, updated_ms=now_ms())
        return self.insert(Transcript(copy, original.messages))


def _insert_chat(connection: sqlite3.Connection, chat: Chat) -> int:
    columns = {
        "title": storable(chat.title),
        "created_ms": chat.created_ms or now_ms(),
        "updated_ms": chat.updated_ms or now_ms(),
        "is_pinned": chat.is_pinned,
        "is_archived": chat.is_archived,
        "model": storable(chat.model),
        "settings": settings_json(chat.settings),
    }
    return insert(connection, "chats", columns)


_OF_NO_CHAT = 0  # ids begin with 1: this is the draft of a chat in which nothing was said yet
_NOTHING = Draft()


class Drafts:
    """The tables of drafts; None is the chat that has not begun."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, chat_id: int | None) -> Draft:
        """Return what is typed in a chat; an empty draft where there is nothing."""
        values = (chat_id or _OF_NO_CHAT,)
        with self._database.reading() as connection:
            text = connection.execute("SELECT content FROM drafts WHERE chat_id = ?", values).fetchone()
            attachments = _attachments(connection, values[0])
        return Draft(str(text["content"]) if text else "", attachments_of(attachments) if attachments else ())

    def keep(self, chat_id: int | None, draft: Draft = _NOTHING) -> None:
        """Keep what is typed in a chat, in place of what was; an empty draft forgets it. What goes with it is written
        only where that is another than before."""
        row_id = chat_id or _OF_NO_CHAT
        attachments = attachments_json(draft.attachments) if draft.attachments else ""
        with self._database.writing() as connection:
            connection.execute("DELETE FROM drafts WHERE chat_id = ?", (row_id,))
            if draft.text:
                values = (row_id, storable(draft.text))
                connection.execute("INSERT INTO drafts (chat_id, content) VALUES (?, ?)", values)
            if attachments != _attachments(connection, row_id):
                connection.execute("DELETE FROM draft_attachments WHERE chat_id = ?", (row_id,))
                if attachments:
                    values = (row_id, attachments)
                    connection.execute("INSERT INTO draft_attachments (chat_id, attachments) VALUES (?, ?)", values)


def _attachments(connection: sqlite3.Connection, row_id: int) -> str:
    """The column of a draft's attachments; an empty text where there are none."""
    row = connection.execute("SELECT attachments FROM draft_attachments WHERE chat_id = ?", (row_id,)).fetchone()
    return str(row["attachments"]) if row else ""


FILE_NAME = "chats.db"


class ChatStore:
    """A context manager over the chats of one data folder, for one thread. The file is opened at its first use.

    Any number of windows and processes may hold one each. Every method of its parts raises StorageError when the file
    cannot be used.
    """

    def __init__(self, data_dir: Path) -> None:
        self._database = Database(data_dir / FILE_NAME)
        self.chats = Chats(self._database)
        self.messages = Messages(self._database)
        self.transcripts = Transcripts(self._database, self.chats, self.messages)
        self.search = Search(self._database)
        self.drafts = Drafts(self._database)

    def __enter__(self) -> ChatStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def purge_deleted(self) -> int:
        """Forget for good what was deleted a week ago or earlier; return how many chats."""
        return self.chats.purge_deleted(now_ms() - PURGE_AFTER_MS)

    def close(self) -> None:
        """Close the file."""
        self._database.close()


_Result = TypeVar("_Result")


class StoreThread:
    """An async context manager around a ChatStore. What is asked of it is done in order, one at a time."""

    def __init__(self, data_dir: Path) -> None:
        self._store = ChatStore(data_dir)
        self._thread = ThreadPoolExecutor(1, "chats")

    async def do(self, action: Callable[[ChatStore], _Result]) -> _Result:
        """Return what `action` does with the store. Once begun it ends, even if nobody waits for it any more."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, action, self._store)

    async def close(self) -> None:
        """Finish what was asked, then close the file."""
        await self.do(ChatStore.close)
        self._thread.shutdown()

    async def __aenter__(self) -> StoreThread:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
