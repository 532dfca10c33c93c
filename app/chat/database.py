"""The connection to chats.db and its tables: opened on first use, every change a synced transaction.

Owns the schema as steps of `user_version` (a published step never changes, later changes are new steps), waiting for
other windows, the meaning of SQLite's errors, and which characters cannot be stored.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from quantizer.errors import StorageError

__all__ = ["MATCH_BEGIN", "MATCH_END", "STEPS", "Database", "migrate", "storable"]

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

STEPS: tuple[tuple[str, ...], ...] = (
    (*_CHATS, *_word_index("messages", "content"), *_word_index("chats", "title")),
    _DRAFTS,
    _DRAFT_ATTACHMENTS,
)


def storable(text: str) -> str:
    """Return `text` with U+FFFD for NUL, lone surrogates and our two marks: SQLite takes the rest as it is."""
    return text.translate(_UNSTORABLE)


def migrate(connection: sqlite3.Connection, steps: tuple[tuple[str, ...], ...] = STEPS) -> None:
    """Bring the tables up to date in one transaction; another process may do so at the same time.

    Raises StorageError for the database of a newer localllm.
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
        raise StorageError("The chats were stored by a newer version of localllm.", "Update localllm.")
    for step in steps[version:]:
        for statement in step:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {len(steps)}")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


_BUSY_TIMEOUT_S = 10.0
_PRAGMAS = ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON")
_NOTHING_DELETED = "Nothing was deleted: move the file away to start afresh, or restore a backup of it."
_FAULTS = {
    sqlite3.SQLITE_FULL: ("The disk is full.", "Free some space and try again."),
    sqlite3.SQLITE_BUSY: ("Another window has locked them for too long.", "Try again."),
    sqlite3.SQLITE_READONLY: ("They are read-only.", "Check the permissions of the file and its folder."),
    sqlite3.SQLITE_CANTOPEN: ("They cannot be opened.", "Check the permissions of the file and its folder."),
    sqlite3.SQLITE_CONSTRAINT: ("The chat or message no longer exists.", "Another window removed it."),
    sqlite3.SQLITE_NOTADB: ("The file is not a database.", _NOTHING_DELETED),
    sqlite3.SQLITE_CORRUPT: ("The file is damaged.", _NOTHING_DELETED),
}


class Database:
    """A connection for one thread, which must `close` it. Raises StorageError if the file cannot be used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: sqlite3.Connection | None = None

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection for read-only statements."""
        with self._explained():
            yield self._connection()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection for one transaction, which is on the disk when the block ends without an error."""
        with self._explained():
            connection = self._connection()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # some errors have ended it already
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the connection; the next use opens it again."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _connection(self) -> sqlite3.Connection:
        if self._opened is None:
            self._opened = _open(self._path)
        return self._opened

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            cause = f"Chats cannot be stored in {self._path}: {error.strerror}."
            remedy = "Check its permissions and its disk, or set LOCALLLM_DATA_DIR to your own folder."
            raise StorageError(cause, remedy) from error
        except sqlite3.DatabaseError as error:
            cause, remedy = _FAULTS.get(_primary_code(error), (f"SQLite reports: {error}.", ""))
            raise StorageError(f"The chats in {self._path} cannot be used. {cause}", remedy) from error


def _open(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    _make(path)
    connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None)
    connection.row_factory = sqlite3.Row
    try:
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
        migrate(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _make(path: Path) -> None:
    """Create the file, readable only by its owner. An existing one is not opened: closing it would release the locks
    of every other connection of this process, and another process could remove its journal."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def _primary_code(error: sqlite3.DatabaseError) -> int:
    """Return SQLite's primary error code; 0 for an error of Python's module itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
