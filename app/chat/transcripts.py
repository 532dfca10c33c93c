"""Whole chats as they are kept: read at once, copied, taken in from elsewhere.

Owns the way between the ids of a transcript and those of the store.
"""

from __future__ import annotations

import sqlite3
from dataclasses import replace

from app.chat.chat import Chat, Transcript
from app.chat.chats import Chats, now_ms
from app.chat.database import Database
from app.chat.messages import Messages, insert_message
from app.chat.rows import insert, settings_json
from app.chat.text import storable

__all__ = ["Transcripts"]


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
