"""The tables of chats.db, the conversion between their rows and values, and which characters cannot be stored.

The schema is a list of steps of `user_version`: a published step never changes, later changes are new steps.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict

from app.chat.conversation import Attachment, Chat, ChatSettings, MediaFile, Message, MessageContent, MessageState
from app.common.database import Schema
from app.protocol.chat import Source, ToolCall
from app.protocol.codec import decode, encode
from app.tools.approval import NO_TOOL_SETTINGS
from app.tools.tool import ToolResult

# Noncharacters of Unicode, for internal use: they mark matches, so no stored text contains them.
MATCH_BEGIN = "\ufdd0"
MATCH_END = "\ufdd1"
_REPLACEMENT = 0xFFFD
_UNSTORABLE = dict.fromkeys((0, ord(MATCH_BEGIN), ord(MATCH_END), *range(0xD800, 0xE000)), _REPLACEMENT)

# Long texts come last in a row, so that a search reads the rest of it without them.
# Parents are no ON DELETE CASCADE: SQLite goes one level deeper for each generation, and stops at 1,000.
_CHATS = (
    """CREATE TABLE chats (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        title TEXT NOT NULL,
        created_ms INTEGER NOT NULL,
        updated_ms INTEGER NOT NULL,
        is_pinned INTEGER NOT NULL DEFAULT 0,
        is_archived INTEGER NOT NULL DEFAULT 0,
        deleted_ms INTEGER,
        model TEXT NOT NULL DEFAULT '',
        settings TEXT NOT NULL DEFAULT '{}',
        leaf_id INTEGER,
        FOREIGN KEY (id, leaf_id) REFERENCES messages (chat_id, id) DEFERRABLE INITIALLY DEFERRED
    ) STRICT""",
    """CREATE TABLE messages (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        chat_id INTEGER NOT NULL REFERENCES chats (id) DEFERRABLE INITIALLY DEFERRED,
        parent_id INTEGER,
        created_ms INTEGER NOT NULL,
        role TEXT NOT NULL,
        state TEXT NOT NULL,
        model TEXT NOT NULL,
        stats TEXT NOT NULL,
        content TEXT NOT NULL,
        reasoning TEXT NOT NULL,
        attachments TEXT NOT NULL,
        UNIQUE (chat_id, id),
        FOREIGN KEY (chat_id, parent_id) REFERENCES messages (chat_id, id) DEFERRABLE INITIALLY DEFERRED
    ) STRICT""",
    "CREATE INDEX children ON messages (chat_id, parent_id)",
    "CREATE INDEX listed ON chats (is_archived, is_pinned, updated_ms, id) WHERE deleted_ms IS NULL",
)


def _word_index(table: str, column: str) -> tuple[str, ...]:
    """Return statements for a full-text index `<table>_words` with triggers and without a second copy of the text."""
    words = f"{table}_words"
    forget = f"INSERT INTO {words} ({words}, rowid, {column}) VALUES ('delete', old.id, old.{column})"  # noqa: S608
    learn = f"INSERT INTO {words} (rowid, {column}) VALUES (new.id, new.{column})"  # noqa: S608
    return (
        f"""CREATE VIRTUAL TABLE {words} USING fts5(
            {column}, content='{table}', content_rowid='id', prefix='1 2 3', tokenize='unicode61 remove_diacritics 2'
        )""",
        f"CREATE TRIGGER {words}_insert AFTER INSERT ON {table} BEGIN {learn}; END",
        f"CREATE TRIGGER {words}_delete AFTER DELETE ON {table} BEGIN {forget}; END",
        f"""CREATE TRIGGER {words}_update AFTER UPDATE OF {column} ON {table}
            WHEN old.{column} <> new.{column} BEGIN {forget}; {learn}; END""",
    )


_DRAFTS = (
    "CREATE TABLE drafts (chat_id INTEGER PRIMARY KEY, content TEXT NOT NULL) STRICT",
    """CREATE TRIGGER drafts_delete AFTER DELETE ON chats BEGIN
        DELETE FROM drafts WHERE chat_id = old.id;
    END""",
)

# A separate table: the text changes with every key, attachments may be megabytes and change rarely.
_DRAFT_ATTACHMENTS = (
    "CREATE TABLE draft_attachments (chat_id INTEGER PRIMARY KEY, attachments TEXT NOT NULL) STRICT",
    """CREATE TRIGGER draft_attachments_delete AFTER DELETE ON chats BEGIN
        DELETE FROM draft_attachments WHERE chat_id = old.id;
    END""",
)

# Names of attachments, to search for; and the files of pictures and sounds, with who uses them. A row of `used_files`
# or `drafted_files` keeps the one of its file: `app.chat.store.attachment_files`.
_MEDIA_FILES = (
    """CREATE TABLE attachment_names (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        message_id INTEGER NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
        name TEXT NOT NULL
    ) STRICT""",
    "CREATE INDEX names_of_message ON attachment_names (message_id)",
    *_word_index("attachment_names", "name"),
    """INSERT INTO attachment_names (message_id, name)
        SELECT messages.id, json_extract(attachment.value, '$.name')
        FROM messages, json_each(messages.attachments) AS attachment
        WHERE messages.attachments <> '[]' ORDER BY messages.id""",
    "CREATE TABLE media_files (sha256 TEXT PRIMARY KEY, free_from_ms INTEGER NOT NULL) STRICT",
    """CREATE TABLE used_files (
        sha256 TEXT NOT NULL REFERENCES media_files (sha256),
        message_id INTEGER NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
        PRIMARY KEY (sha256, message_id)
    ) STRICT, WITHOUT ROWID""",
    "CREATE INDEX files_of_message ON used_files (message_id)",
    """CREATE TABLE drafted_files (
        sha256 TEXT NOT NULL REFERENCES media_files (sha256),
        row_id INTEGER NOT NULL,
        PRIMARY KEY (sha256, row_id)
    ) STRICT, WITHOUT ROWID""",
    """CREATE TRIGGER drafted_files_delete AFTER DELETE ON chats BEGIN
        DELETE FROM drafted_files WHERE row_id = old.id;
    END""",
)

# Calls of tools, how they ended, and how many messages a summary leaves as they are. The words of calls, to search for:
# a row for each call of an answer that has ended.
_TOOL_CALLS = (
    "ALTER TABLE messages ADD COLUMN calls TEXT NOT NULL DEFAULT '[]'",
    "ALTER TABLE messages ADD COLUMN result TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE messages ADD COLUMN n_kept INTEGER NOT NULL DEFAULT 0",
    """CREATE TABLE call_texts (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        message_id INTEGER NOT NULL REFERENCES messages (id) ON DELETE CASCADE,
        text TEXT NOT NULL
    ) STRICT""",
    "CREATE INDEX calls_of_message ON call_texts (message_id)",
    *_word_index("call_texts", "text"),
)

# After which message a window goes on with a chat: `app.chat.store.writers`.
_WRITERS = (
    """CREATE TABLE writers (
        window TEXT NOT NULL,
        chat_id INTEGER NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
        message_id INTEGER NOT NULL,
        PRIMARY KEY (window, chat_id)
    ) STRICT, WITHOUT ROWID""",
)

# Passages of the person's documents that are sent with a question.
_SOURCES = ("ALTER TABLE messages ADD COLUMN sources TEXT NOT NULL DEFAULT '[]'",)

# The names by which editors know chats that they began: `app.acp`.
_SESSIONS = (
    """CREATE TABLE sessions (
        id TEXT PRIMARY KEY,
        chat_id INTEGER NOT NULL REFERENCES chats (id) ON DELETE CASCADE
    ) STRICT, WITHOUT ROWID""",
    "CREATE INDEX sessions_of_chat ON sessions (chat_id)",
)

STEPS: tuple[tuple[str, ...], ...] = (
    (*_CHATS, *_word_index("messages", "content"), *_word_index("chats", "title")),
    _DRAFTS,
    _DRAFT_ATTACHMENTS,
    _MEDIA_FILES,
    _TOOL_CALLS,
    _WRITERS,
    _SOURCES,
    _SESSIONS,
)


SCHEMA = Schema("chats", STEPS, gone="The chat or message no longer exists.", holder="window")


def storable(text: str) -> str:
    """Return `text` with U+FFFD for NUL, lone surrogates and our two marks: SQLite takes the rest as it is."""
    return text.translate(_UNSTORABLE)


CHAT_COLUMNS = (
    "chats.id, chats.title, chats.created_ms, chats.updated_ms, chats.is_pinned, chats.is_archived, chats.model,"
    " chats.settings, chats.leaf_id"
)


def insert(connection: sqlite3.Connection, table: str, columns: Mapping[str, object]) -> int:
    """Insert a row within the caller's transaction and return its id."""
    names, marks = ", ".join(columns), ", ".join(f":{name}" for name in columns)
    made = connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", columns)  # noqa: S608  (names of ours)
    assert made.lastrowid is not None
    return made.lastrowid


def chat_of(row: sqlite3.Row) -> Chat:
    """Return the chat of a row that has at least CHAT_COLUMNS."""
    return Chat(
        id=row["id"],
        title=row["title"],
        created_ms=row["created_ms"],
        updated_ms=row["updated_ms"],
        is_pinned=bool(row["is_pinned"]),
        is_archived=bool(row["is_archived"]),
        model=row["model"],
        settings=decode(ChatSettings, json.loads(row["settings"])),
        leaf_id=row["leaf_id"],
    )


def message_of(row: sqlite3.Row) -> Message:
    return Message(
        id=row["id"],
        parent_id=row["parent_id"],
        role=row["role"],
        content=row["content"],
        reasoning=row["reasoning"],
        attachments=attachments_of(row["attachments"]),
        model=row["model"],
        stats=json.loads(row["stats"]),
        state=MessageState(row["state"]),
        created_ms=row["created_ms"],
        calls=tuple(decode(ToolCall, call) for call in json.loads(row["calls"])),
        result=decode(ToolResult, json.loads(row["result"])) if row["result"] else None,
        n_kept=row["n_kept"],
        sources=tuple(decode(Source, source) for source in json.loads(row["sources"])),
    )


def attachments_of(text: str) -> tuple[Attachment, ...]:
    stored = json.loads(text)
    for fields in stored:
        fields["media"] = tuple(MediaFile(**file) for file in fields.get("media", ()))  # older rows have none
    return tuple(Attachment(**fields) for fields in stored)


def attachments_json(attachments: Iterable[Attachment]) -> str:
    return _json([asdict(attachment) for attachment in attachments])


def calls_json(calls: Iterable[ToolCall]) -> str:
    return _json(encode(list(calls)))


def sources_json(sources: Iterable[Source]) -> str:
    return _json(encode(list(sources)))


def result_json(result: ToolResult | None) -> str:
    """Return the result of a call as a column stores it, empty for none."""
    return "" if result is None else _json(encode(result))


def chat_columns(chat: Chat, now_ms: int) -> Mapping[str, str | int]:
    """Return the columns of a chat but its leaf, which needs its messages. Unknown times are `now_ms`."""
    return {
        "title": storable(chat.title),
        "created_ms": chat.created_ms or now_ms,
        "updated_ms": chat.updated_ms or now_ms,
        "is_pinned": chat.is_pinned,
        "is_archived": chat.is_archived,
        "model": storable(chat.model),
        "settings": settings_json(chat.settings),
    }


def settings_json(settings: ChatSettings) -> str:
    tools = {} if settings.tools == NO_TOOL_SETTINGS else {"tools": encode(settings.tools)}
    return _json({"system": settings.system, "options": dict(settings.options), **tools})


def message_columns(message: MessageContent) -> Mapping[str, str | int]:
    return {
        "role": message.role,
        "content": storable(message.content),
        "reasoning": storable(message.reasoning),
        "attachments": attachments_json(message.attachments),
        "model": storable(message.model),
        "stats": _json(dict(message.stats)),
        "state": message.state.value,
        "created_ms": message.created_ms,
        "calls": calls_json(message.calls),
        "result": result_json(message.result),
        "n_kept": message.n_kept,
        "sources": sources_json(message.sources),
    }


def _json(value: object) -> str:
    return storable(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def now_ms() -> int:
    """Return the time in milliseconds since 1970, UTC."""
    return time.time_ns() // 1_000_000
