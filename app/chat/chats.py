"""The table of chats: creating, listing, renaming, pinning, archiving, deleting and restoring them.

Messages are in `app.chat.messages`.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping

from app.chat.conversation import Chat, ChatSettings
from app.chat.database import storable
from app.chat.rows import CHAT_COLUMNS, chat_columns, chat_of, insert, settings_json
from app.chat.search import ANYTHING, ChatFilter
from app.common.database import Database
from quantizer.system.errors import UserError

PAGE_SIZE = 50
PURGE_AFTER_MS = 7 * 24 * 3600 * 1000  # for a week a deleted chat can be restored
_PLACE = ("pinned", "updated", "id")
_BEFORE_ALL = (2, 0, 0)  # a position in the order below, before every chat
_ORDER = "is_pinned DESC, updated_ms DESC, id DESC"


class UnknownChatError(UserError):
    """An id without a chat, or of a deleted one."""

    def __init__(self, chat_id: int) -> None:
        super().__init__(f"There is no chat {chat_id}.", "`localllm chats list` shows all chats.")


def now_ms() -> int:
    """Return the time in milliseconds since 1970, UTC."""
    return time.time_ns() // 1_000_000


def touch(connection: sqlite3.Connection, chat_id: int) -> None:
    """Make a chat the one that was used last, of now: or just after the others, where the clock was put back."""
    statement = """UPDATE chats SET updated_ms = max(:now, updated_ms,
        (SELECT coalesce(max(updated_ms), 0) + 1 FROM chats WHERE id <> :id)) WHERE id = :id"""
    connection.execute(statement, {"now": now_ms(), "id": chat_id})


class Chats:
    """The table of chats. Methods that take the id of a chat raise UnknownChatError for an unknown one."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, *, title: str = "", model: str = "", settings: ChatSettings | None = None) -> Chat:
        """Create a chat."""
        chat = Chat(id=0, title=title, model=model, settings=settings or ChatSettings())
        with self._database.writing() as connection:
            chat_id = insert(connection, "chats", chat_columns(chat, now_ms()))
            touch(connection, chat_id)
            return self.get(chat_id)

    def get(self, chat_id: int) -> Chat:
        """Return a chat."""
        found = self._select("deleted_ms IS NULL AND id = :id", {"id": chat_id})
        if not found:
            raise UnknownChatError(chat_id)
        return found[0]

    def page(
        self,
        *,
        after: Chat | None = None,
        archived: bool = False,
        chat_filter: ChatFilter = ANYTHING,
        limit: int = PAGE_SIZE,
    ) -> list[Chat]:
        """Return up to `limit` chats that follow `after` in the list: pinned ones first, then the newest."""
        place = (after.is_pinned, after.updated_ms, after.id) if after else _BEFORE_ALL
        conditions, values = chat_filter.conditions("chats.updated_ms")
        values |= {"archived": archived, "limit": limit} | dict(zip(_PLACE, place, strict=True))
        return self._select(
            f"{conditions} AND is_archived = :archived AND (is_pinned, updated_ms, id) < (:pinned, :updated, :id)"
            f" ORDER BY {_ORDER} LIMIT :limit",
            values,
        )

    def models(self) -> list[str]:
        """Return the models that answered last in a chat, by name."""
        statement = "SELECT DISTINCT model FROM chats WHERE deleted_ms IS NULL AND model <> '' ORDER BY model"
        with self._database.reading() as connection:
            return [str(row["model"]) for row in connection.execute(statement)]

    def latest(self) -> Chat | None:
        """Return the chat with the latest message, None without any."""
        newest = "deleted_ms IS NULL AND is_archived = 0 ORDER BY updated_ms DESC, id DESC LIMIT 1"
        return next(iter(self._select(newest, {})), None)

    def rename(self, chat_id: int, title: str) -> None:
        """Change the title of a chat."""
        self._set(chat_id, "title", storable(title))

    def set_title(self, chat_id: int, title: str, *, former: str) -> None:
        """Change the title of a chat if it is still `former`: the user's own title is kept."""
        statement = "UPDATE chats SET title = ? WHERE id = ? AND title = ? AND deleted_ms IS NULL"
        with self._database.writing() as connection:
            connection.execute(statement, (storable(title), chat_id, storable(former)))

    def pin(self, chat_id: int, is_pinned: bool) -> None:
        """Pin a chat to the top of the list, or unpin it."""
        self._set(chat_id, "is_pinned", is_pinned)

    def archive(self, chat_id: int, is_archived: bool) -> None:
        """Move a chat to the archive, or back."""
        self._set(chat_id, "is_archived", is_archived)

    def use_model(self, chat_id: int, model: str) -> None:
        """Store which model answers in a chat."""
        self._set(chat_id, "model", storable(model))

    def configure(self, chat_id: int, settings: ChatSettings) -> None:
        """Change the settings of a chat."""
        self._set(chat_id, "settings", settings_json(settings))

    def delete(self, chat_id: int) -> None:
        """Remove a chat from every list and search; `restore` brings it back until it is purged."""
        self._set(chat_id, "deleted_ms", now_ms())

    def restore(self, chat_id: int) -> Chat:
        """Restore a deleted chat; another stays unchanged."""
        with self._database.writing() as connection:
            connection.execute("UPDATE chats SET deleted_ms = NULL WHERE id = ?", (chat_id,))
            return self.get(chat_id)

    def deleted(self) -> list[Chat]:
        """Return the chats that can be restored."""
        return self._select("deleted_ms IS NOT NULL", {})

    def purge_deleted(self, deleted_before_ms: int) -> int:
        """Purge chats that were deleted before a time, in milliseconds since 1970; return how many."""
        doomed = "SELECT id FROM chats WHERE deleted_ms < ?"
        with self._database.writing() as connection:
            connection.execute(f"UPDATE chats SET leaf_id = NULL WHERE id IN ({doomed})", (deleted_before_ms,))  # noqa: S608
            connection.execute(f"DELETE FROM messages WHERE chat_id IN ({doomed})", (deleted_before_ms,))  # noqa: S608
            return connection.execute("DELETE FROM chats WHERE deleted_ms < ?", (deleted_before_ms,)).rowcount

    def _select(self, rest: str, values: Mapping[str, object]) -> list[Chat]:
        statement = f"SELECT {CHAT_COLUMNS} FROM chats WHERE {rest}"  # noqa: S608  (columns of ours)
        with self._database.reading() as connection:
            return [chat_of(row) for row in connection.execute(statement, values)]

    def _set(self, chat_id: int, column: str, value: object) -> None:
        """Set only one column, so that two windows with one chat do not overwrite each other's changes."""
        statement = f"UPDATE chats SET {column} = ? WHERE id = ? AND deleted_ms IS NULL"  # noqa: S608  (a name of ours)
        with self._database.writing() as connection:
            if not connection.execute(statement, (value, chat_id)).rowcount:
                raise UnknownChatError(chat_id)
