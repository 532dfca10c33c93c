"""The tables of chats.db, as steps from nothing to today's.

Owns the SQL that makes them and the version in `user_version`. A step that was published is never changed: what comes
later is a step of its own.
"""

from __future__ import annotations

import sqlite3

from quantizer.errors import StorageError

__all__ = ["STEPS", "migrate"]

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
    """Statements for a full-text index `<table>_words` that keeps itself up to date and holds no second copy."""
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

# A table of its own: what is typed changes with every key, what goes with it may be megabytes and does not.
_DRAFT_ATTACHMENTS = (
    "CREATE TABLE draft_attachments (chat_id INTEGER PRIMARY KEY, attachments TEXT NOT NULL) STRICT",
    """CREATE TRIGGER draft_attachments_delete AFTER DELETE ON chats BEGIN
        DELETE FROM draft_attachments WHERE chat_id = old.id;
    END""",
)

STEPS: tuple[tuple[str, ...], ...] = (
    (*_CHATS, *_word_index("messages", "content"), *_word_index("chats", "title")),
    _DRAFTS,
    _DRAFT_ATTACHMENTS,
)


def migrate(connection: sqlite3.Connection, steps: tuple[tuple[str, ...], ...] = STEPS) -> None:
    """Bring the tables up to date, in one transaction; another process may do the same at the same time.

    Raises StorageError for a database that a newer localllm made.
    """
    if _version(connection) == len(steps):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        _take(connection, steps)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _take(connection: sqlite3.Connection, steps: tuple[tuple[str, ...], ...]) -> None:
    version = _version(connection)
    if version > len(steps):
        raise StorageError("The chats were kept by a newer localllm, which this one cannot read.", "Update it.")
    for step in steps[version:]:
        for statement in step:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {len(steps)}")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
