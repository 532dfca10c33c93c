"""An SQLite database that several processes share: opened on first use, every change a transaction.

Owns the connection and its pragmas, steps of `user_version`, waiting for other processes, and the meaning of SQLite's
errors. Independent of tables.
"""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import RLock

from app.common.event_log import log_event
from quantizer.system.errors import StorageError
from quantizer.system.faults import remedy_for
from quantizer.system.files import check_regular, has_record_locks, make_private, open_private, private_folder

_BUSY_TIMEOUT_S, _POLL_S = 10.0, 0.01
_JOURNALS = ("-wal", "-shm")  # SQLite makes them with the rights of the database
_NOTHING_DELETED = "Nothing was deleted. Try again; else restore a backup, or move the file away to start afresh."
_FAILING = "Nothing was deleted. Try again; else check the disk, its free space, and free memory."
_FAULTS = {
    sqlite3.SQLITE_FULL: ("The disk is full.", "Free some space and try again."),
    sqlite3.SQLITE_IOERR: ("The system reports an error of the disk, or of memory.", _FAILING),
    sqlite3.SQLITE_NOMEM: ("There is not enough memory.", "End other programs and try again."),
    sqlite3.SQLITE_READONLY: ("They are read-only.", "Check the permissions of the file and its folder."),
    sqlite3.SQLITE_CANTOPEN: ("They cannot be opened.", "Check the permissions of the file and its folder."),
    sqlite3.SQLITE_NOTADB: ("The file is not a database.", _NOTHING_DELETED),
    sqlite3.SQLITE_CORRUPT: ("The file is damaged.", _NOTHING_DELETED),
}


@dataclass(frozen=True, slots=True)
class Schema:
    """What a database holds: its `subject`, a plural, its tables as `steps` of `user_version`, its pragmas. `gone` is
    the cause where a row refers to one that is no more; `holder` is what else uses the database."""

    subject: str
    steps: tuple[tuple[str, ...], ...]
    gone: str
    holder: str = "process"
    # Without secure_delete, which only some builds of SQLite have on, what is deleted stays in the file.
    pragmas: tuple[str, ...] = (
        "journal_mode = WAL",
        "synchronous = FULL",
        "foreign_keys = ON",
        "secure_delete = ON",
    )

    @property
    def title(self) -> str:
        return self.subject[:1].upper() + self.subject[1:]

    def fault(self, error: sqlite3.DatabaseError) -> tuple[str, str]:
        """Return the cause and the remedy of SQLite's `error`."""
        code = _primary_code(error)
        if code == sqlite3.SQLITE_BUSY:
            return f"Another {self.holder} has locked them for too long.", "Try again."
        if code == sqlite3.SQLITE_CONSTRAINT:
            return self.gone, f"Another {self.holder} removed it."
        return _FAULTS.get(code, (f"SQLite reports: {error}.", _FAILING))


def migrate_to(connection: sqlite3.Connection, schema: Schema) -> None:
    """Bring the tables up to date in one transaction; another process may do so at the same time. Raises StorageError
    for the database of a newer localllm."""
    if _version(connection) == len(schema.steps):
        return
    with _transaction(connection):
        version = _version(connection)
        for statement in itertools.chain(*schema.steps[version:]):
            connection.execute(statement)
        if version <= len(schema.steps):
            connection.execute(f"PRAGMA user_version = {len(schema.steps)}")
    if version > len(schema.steps):
        raise StorageError(f"The {schema.subject} were stored by a newer version of localllm.", "Update localllm.")


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit what the block does; after an error nothing of it stays, and that error is raised. A full disk, say, has
    ended the transaction already."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            with suppress(sqlite3.Error):  # closing the file does it too
                connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


class Database:
    """A connection for one thread, which must `close` it. Raises StorageError if the file cannot be used. Without a
    `path` it is in memory, gone when it is closed, and for any number of threads, which take turns."""

    def __init__(self, path: Path | None, schema: Schema) -> None:
        self._path = path
        self._schema = schema
        self._opened: sqlite3.Connection | None = None
        self._turn: AbstractContextManager[object] = nullcontext() if path else RLock()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection for read-only statements."""
        with self._turn, self._explained():
            yield self._connection()

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection for read-only statements that see one state, whatever others write meanwhile."""
        with self.reading() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.execute("ROLLBACK")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection for one transaction, which is committed when the block ends without an error."""
        with self._turn, self._explained():
            connection = self._connection()
            with _transaction(connection):
                yield connection

    def close(self) -> None:
        """Close the connection; the next use opens it again."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _connection(self) -> sqlite3.Connection:
        if self._opened is None:
            if self._path is None:
                opened = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
                self._opened = _prepared(opened, self._schema)
            else:
                self._opened = _open(self._path, self._schema)
        return self._opened

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            cause = f"{self._schema.title} cannot be stored in {self._path}: {error.strerror}."
            remedy = "Check its permissions and its disk, or set LOCALLLM_DATA_DIR to your own folder."
            raise StorageError(cause, remedy_for(error, remedy)) from error
        except sqlite3.DatabaseError as error:
            cause, remedy = self._schema.fault(error)
            place = self._path or "memory"
            raise StorageError(f"The {self._schema.subject} in {place} cannot be used. {cause}", remedy) from error


def _open(path: Path, schema: Schema) -> sqlite3.Connection:
    private_folder(path.parent)
    if not has_record_locks(path.parent):  # SQLite would call it busy, after 10 s
        cause = f"The {schema.subject} cannot be stored in {path}."
        raise StorageError(
            f"{cause} Its file system cannot lock files, as some network mounts cannot.",
            "Set LOCALLLM_DATA_DIR to a folder on a local disk.",
        )
    _make(path)
    return _prepared(sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None), schema)


def _prepared(connection: sqlite3.Connection, schema: Schema) -> sqlite3.Connection:
    connection.row_factory = sqlite3.Row
    try:
        for pragma in schema.pragmas:
            _set(connection, pragma)
        migrate_to(connection, schema)
    except BaseException:
        connection.close()
        raise
    return connection


def _set(connection: sqlite3.Connection, pragma: str) -> None:
    """Set `pragma`, also while others use the file: for its journal mode SQLite waits for no lock by itself."""
    give_up_s = time.monotonic() + _BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute(f"PRAGMA {pragma}")
        except sqlite3.OperationalError as error:
            if _primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() >= give_up_s:
                raise
            time.sleep(_POLL_S)
        else:
            return


def _make(path: Path) -> None:
    """Create the file, readable only by its owner, or make it and its journals so. An existing one is not opened:
    closing it would release the locks of every other connection of this process, and another process could remove its
    journal."""
    try:
        open_private(path, is_new=True).close()
    except FileExistsError:
        check_regular(path)
        for suffix in ("", *_JOURNALS):
            if make_private(file := path.with_name(path.name + suffix)):
                log_event("service", f"{file} was readable by others; now only its owner can read it.")


def _primary_code(error: sqlite3.DatabaseError) -> int:
    """Return SQLite's primary error code; 0 for an error of Python's module itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
