"""What was typed and not yet sent, and what was to go with it, chat by chat: there again after a kill.

Owns the tables of drafts. When one is worth keeping is decided by whoever shows the prompt.
"""

from __future__ import annotations

import sqlite3

from app.chat.database import Database
from app.chat.message import Draft
from app.chat.rows import attachments_json, attachments_of
from app.chat.text import storable

__all__ = ["Drafts"]

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
