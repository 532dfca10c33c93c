"""What was typed and not yet sent, chat by chat: there again after a kill.

Owns the table of drafts. When one is worth keeping is decided by whoever shows the prompt.
"""

from __future__ import annotations

from app.chat.database import Database
from app.chat.text import storable

__all__ = ["Drafts"]

_OF_NO_CHAT = 0  # ids begin with 1: this is the draft of a chat in which nothing was said yet


class Drafts:
    """The table of drafts; None is the chat that has not begun."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, chat_id: int | None) -> str:
        """Return what is typed in a chat; an empty text where there is nothing."""
        with self._database.reading() as connection:
            row = connection.execute(
                "SELECT content FROM drafts WHERE chat_id = ?", (chat_id or _OF_NO_CHAT,)
            ).fetchone()
        return str(row["content"]) if row else ""

    def keep(self, chat_id: int | None, content: str) -> None:
        """Keep what is typed in a chat, in place of what was; an empty text forgets it."""
        with self._database.writing() as connection:
            connection.execute("DELETE FROM drafts WHERE chat_id = ?", (chat_id or _OF_NO_CHAT,))
            if content:
                values = (chat_id or _OF_NO_CHAT, storable(content))
                connection.execute("INSERT INTO drafts (chat_id, content) VALUES (?, ?)", values)
