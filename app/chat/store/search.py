"""Full-text search over all titles, messages, names of attachments, and calls of tools.

Owns the FTS5 expression of what the user types (every word quoted, so that nothing is an operator), the filter by model
and time, the queries, and the snippets.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, takewhile

from app.chat.conversation import Chat
from app.chat.store.database import CHAT_COLUMNS, MATCH_BEGIN, MATCH_END, chat_of, storable
from app.common.database import Database

MAX_QUERY_CHARACTERS = 500
_PHRASE_OR_WORD = re.compile(r'"([^"]*)"?|([^\s"]+)')
_SNIPPET_TOKENS = 16


def match_expression(typed: str) -> str:
    """Return the FTS5 expression for texts with all words of `typed`; empty without a word. "Words in quotes" match as
    a phrase. The last word, while it is being typed, matches as a prefix. Only the first 500 characters count."""
    typed = storable(typed)[:MAX_QUERY_CHARACTERS]
    parts = [match.group(1) or match.group(2) or "" for match in _PHRASE_OR_WORD.finditer(typed)]
    terms = ['"' + part.replace('"', '""') + '"' for part in parts if _has_words(part)]
    if terms and typed[-1] not in ' \t\n"' and _has_words(parts[-1]):
        terms[-1] += "*"
    return " ".join(terms)


def _has_words(part: str) -> bool:
    return any(character.isalnum() for character in part)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFilter:
    """A filter by model and time; None is no restriction. `model` is the last one that answered in a chat. Times are
    milliseconds since 1970, UTC; `until_ms` is exclusive. A chat and its title have the time of the last message."""

    model: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def conditions(self, moment: str) -> tuple[str, dict[str, object]]:
        """Return SQL conditions for undeleted chats, with times in the column `moment`, and their values by name."""
        wanted = {
            "chats.model = :model": ("model", self.model),
            f"{moment} >= :since_ms": ("since_ms", self.since_ms),
            f"{moment} < :until_ms": ("until_ms", self.until_ms),
        }
        given = {condition: pair for condition, pair in wanted.items() if pair[1] is not None}
        return " AND ".join(["chats.deleted_ms IS NULL", *given]), dict(given.values())


ANYTHING = ChatFilter()


@dataclass(frozen=True, slots=True)
class Snippet:
    """A part of a text, and the matches in it as pairs of offsets, begin and end, in characters."""

    text: str
    matches: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ChatMatch:
    """A chat that matches: in its title (`message_id` None), else in the newest message that does, or has such an
    attachment or call."""

    chat: Chat
    message_id: int | None
    snippet: Snippet


class Search:
    """The full-text search of a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(
        self,
        typed: str,
        chat_filter: ChatFilter = ANYTHING,
        *,
        limit: int = 50,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> list[ChatMatch]:
        """Return up to `limit` chats with all words of `typed`: in titles, then messages, then names of attachments,
        then calls of tools; of each the newest first. Once `is_wanted` returns False, it returns what was found by
        then."""
        expression = match_expression(typed)
        if not expression:
            return []
        values = {"expression": expression, "tokens": _SNIPPET_TOKENS, "begin": MATCH_BEGIN, "end": MATCH_END}
        with self._database.reading() as connection:
            hits = takewhile(lambda _: is_wanted(), _hits(connection, chat_filter, values))
            return list(islice(hits, limit))


# Where words are looked for, in this order: the table with an index of words, what joins the chat to a row of it, the
# id of the message, and the time that a filter compares.
_OF_MESSAGE = "JOIN chats ON chats.id = messages.chat_id"
_OF_ROW = "JOIN messages ON messages.id = message_id " + _OF_MESSAGE
_SOURCES = (
    ("chats", "", "NULL", "chats.updated_ms"),
    ("messages", _OF_MESSAGE, "messages.id", "messages.created_ms"),
    ("attachment_names", _OF_ROW, "messages.id", "messages.created_ms"),
    ("call_texts", _OF_ROW, "messages.id", "messages.created_ms"),
)


def _hits(connection: sqlite3.Connection, chat_filter: ChatFilter, values: Mapping[str, object]) -> Iterator[ChatMatch]:
    """Yield one match per chat. Rows come in the order of the index, so that the first need no sorting."""
    seen = set()
    for table, joined, message_id, moment in _SOURCES:
        conditions, limits = chat_filter.conditions(moment)
        words = f"{table}_words"
        statement = f"""SELECT {CHAT_COLUMNS}, {message_id} AS message_id,
                snippet({words}, 0, :begin, :end, '…', :tokens) AS snippet
            FROM {words} JOIN {table} ON {table}.id = {words}.rowid {joined}
            WHERE {words} MATCH :expression AND {conditions}
            ORDER BY {words}.rowid DESC"""  # noqa: S608  (all of it is ours)
        for row in connection.execute(statement, {**values, **limits}):
            if row["id"] not in seen:
                seen.add(row["id"])
                yield ChatMatch(chat_of(row), row["message_id"], snippet_of(row["snippet"]))


def snippet_of(marked: str) -> Snippet:
    """Parse the snippet that SQLite marked."""
    text, matches, begin = "", [], 0
    for piece in marked.replace(MATCH_END, MATCH_BEGIN).split(MATCH_BEGIN):
        matches.append((begin, begin + len(piece)))
        text += piece
        begin = len(text)
    return Snippet(text, tuple(matches[1::2]))
