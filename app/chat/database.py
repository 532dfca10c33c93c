"""A connection to chats.db: opened when it is first needed, every change a transaction.

Owns durability, waiting for other windows, and what SQLite's errors mean to a person. Knows no table.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from app.chat.schema import migrate
from quantizer.errors import StorageError

__all__ = ["Database"]

_BUSY_TIMEOUT_S = 10.0
_PRAGMAS = ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON")
_KEPT_APART = "Nothing was deleted: move it away to start anew, or restore a copy of it."
_FAULTS = {
    sqlite3.SQLITE_FULL: ("The disk is full.", "Free some space and try again."),
    sqlite3.SQLITE_BUSY: ("Another window holds them for too long.", "Try again."),
    sqlite3.SQLITE_READONLY: ("They may not be written to.", "Check the permissions of the file and its folder."),
    sqlite3.SQLITE_CANTOPEN: ("They cannot be opened.", "Check the permissions of the file and its folder."),
    sqlite3.SQLITE_CONSTRAINT: ("What this belongs to is no longer there.", "Another window removed it."),
    sqlite3.SQLITE_NOTADB: ("The file is no database.", _KEPT_APART),
    sqlite3.SQLITE_CORRUPT: ("The file is damaged.", _KEPT_APART),
}


class Database:
    """Belongs to the thread that first uses it, which must `close` it. Raises StorageError when the file cannot be
    used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: sqlite3.Connection | None = None

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Give the connection for statements that change nothing."""
        with self._explained():
            yield self._connection()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Give the connection for one transaction: when the block has ended well, what it did is on the disk."""
        with self._explained():
            connection = self._connection()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # some faults have ended it already
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the connection, if there is one; the next use opens it again."""
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
            cause = f"The chats cannot be kept in {self._path}: {error.strerror}."
            remedy = "Check its permissions and its disk, or set LOCALLLM_DATA_DIR to a folder of yours."
            raise StorageError(cause, remedy) from error
        except sqlite3.DatabaseError as error:
            cause, remedy = _FAULTS.get(_primary_code(error), (f"SQLite says: {error}.", ""))
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
    """Make the file, which is nobody else's to read. One that is there is not opened: closing it would give up the
    locks of every other connection of this process, and another process would take its journal away."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def _primary_code(error: sqlite3.DatabaseError) -> int:
    """SQLite's error without what it adds in the higher bytes; 0 where Python's module itself complains."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
