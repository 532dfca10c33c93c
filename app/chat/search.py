"""Full-text search over every title and every message.

Owns the two queries, their order and the snippets. What a person types becomes an expression in `app.chat.query`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, takewhile

from app.chat.chat import Chat
from app.chat.database import Database
from app.chat.filter import ANYTHING, Filter
from app.chat.query import match_expression
from app.chat.rows import CHAT_COLUMNS, chat_of
from app.chat.text import MATCH_BEGIN, MATCH_END

__all__ = ["Hit", "Search", "Snippet"]

_SNIPPET_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Snippet:
    """A stretch of a text and where in it the words were found: pairs of offsets, begin and end, in characters."""

    text: str
    matches: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Hit:
    """A chat in which the words were found: in its title (`message_id` None), else in the newest message with them."""

    chat: Chat
    message_id: int | None
    snippet: Snippet


class Search:
    """Finds chats by words."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(
        self,
        typed: str,
        narrowed: Filter = ANYTHING,
        *,
        limit: int = 50,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> list[Hit]:
        """Return up to `limit` chats with all the words of `typed`: titles first, then messages, the newest first. Once
        it is no longer wanted, what was found by then."""
        expression = match_expression(typed)
        if not expression:
            return []
        values = {"expression": expression, "tokens": _SNIPPET_TOKENS, "begin": MATCH_BEGIN, "end": MATCH_END}
        with self._database.reading() as connection:
            hits = takewhile(lambda _: is_wanted(), _hits(connection, narrowed, values))
            return list(islice(hits, limit))


def _hits(connection: sqlite3.Connection, narrowed: Filter, values: Mapping[str, object]) -> Iterator[Hit]:
    """One hit a chat. Rows come in the order of the index, so the first ones are there without sorting all."""
    seen = set()
    for statement, moment in ((_titles, "chats.updated_ms"), (_contents, "messages.created_ms")):
        conditions, limits = narrowed.conditions(moment)
        for row in connection.execute(statement(conditions), {**values, **limits}):
            if row["id"] not in seen:
                seen.add(row["id"])
                yield Hit(chat_of(row), row["message_id"], snippet_of(row["snippet"]))


def _titles(conditions: str) -> str:
    return f"""SELECT {CHAT_COLUMNS}, NULL AS message_id,
            snippet(chats_words, 0, :begin, :end, '…', :tokens) AS snippet
        FROM chats_words JOIN chats ON chats.id = chats_words.rowid
        WHERE chats_words MATCH :expression AND {conditions}
        ORDER BY chats_words.rowid DESC"""  # noqa: S608  (all of it is ours)


def _contents(conditions: str) -> str:
    return f"""SELECT {CHAT_COLUMNS}, messages.id AS message_id,
            snippet(messages_words, 0, :begin, :end, '…', :tokens) AS snippet
        FROM messages_words
            JOIN messages ON messages.id = messages_words.rowid
            JOIN chats ON chats.id = messages.chat_id
        WHERE messages_words MATCH :expression AND {conditions}
        ORDER BY messages_words.rowid DESC"""  # noqa: S608  (all of it is ours)


def snippet_of(marked: str) -> Snippet:
    """Return the snippet that SQLite marked."""
    text, matches, begin = "", [], 0
    for piece in marked.replace(MATCH_END, MATCH_BEGIN).split(MATCH_BEGIN):
        matches.append((begin, begin + len(piece)))
        text += piece
        begin = len(text)
    return Snippet(text, tuple(matches[1::2]))
