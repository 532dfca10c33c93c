from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from app.common import database
from app.common.database import Database, Schema, migrate_to
from quantizer.system.errors import StorageError

SCHEMA = Schema("things", (("CREATE TABLE things (name TEXT)",),), "It is gone.")
N_WINDOWS = 4


class Busy:
    """A connection that finds the file locked `n_times`."""

    def __init__(self, n_times: int, code: int = sqlite3.SQLITE_BUSY) -> None:
        self.n_times = n_times
        self.code = code
        self.executed: list[str] = []

    def execute(self, statement: str) -> None:
        self.executed.append(statement)
        if len(self.executed) <= self.n_times:
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = self.code
            raise error


@pytest.mark.parametrize(
    "code", [sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_FULL, sqlite3.SQLITE_INTERNAL]
)
def test_every_error_of_the_database_has_a_remedy(code: int) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code
    assert all(SCHEMA.fault(error))


class Full(sqlite3.Connection):
    """A connection whose disk is full when the table is made, for which SQLite ends the transaction by itself."""

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if statement.startswith("CREATE"):
            super().execute("ROLLBACK")
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return super().execute(statement, *values)


def test_a_disk_that_is_full_while_tables_are_made_is_the_error_and_not_the_rollback() -> None:
    with closing(sqlite3.connect(":memory:", factory=Full, isolation_level=None)) as connection:
        with pytest.raises(sqlite3.OperationalError, match="disk is full"):
            migrate_to(connection, SCHEMA)
        assert not connection.in_transaction


def test_a_pragma_waits_for_those_who_use_the_file() -> None:
    connection = Busy(2)
    database._set(connection, "journal_mode = WAL")  # type: ignore[arg-type]
    assert connection.executed == ["PRAGMA journal_mode = WAL"] * 3


@pytest.mark.parametrize("code", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_IOERR])
def test_a_pragma_waits_no_longer_than_other_statements_and_for_nothing_else(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    if code == sqlite3.SQLITE_BUSY:
        monkeypatch.setattr(database, "_BUSY_TIMEOUT_S", 0.0)
    connection = Busy(1, code)
    with pytest.raises(sqlite3.OperationalError):
        database._set(connection, "journal_mode = WAL")  # type: ignore[arg-type]
    assert len(connection.executed) == 1


def test_windows_that_make_a_file_at_the_same_moment_all_have_it(tmp_path: Path) -> None:
    together, errors = threading.Barrier(N_WINDOWS), list[Exception]()

    def make(number: int) -> None:
        for index in range(20):
            window = Database(tmp_path / str(index) / "things.db", SCHEMA)
            together.wait()
            try:
                with window.writing() as connection:
                    connection.execute("INSERT INTO things VALUES (?)", (str(number),))
                window.close()
            except Exception as error:
                errors.append(error)

    windows = [threading.Thread(target=make, args=(number,)) for number in range(N_WINDOWS)]
    for window in windows:
        window.start()
    for window in windows:
        window.join()
    assert errors == []


def test_a_file_system_without_locks_is_named_as_the_cause_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite takes it for a lock of another process, and waits for that."""
    monkeypatch.setattr(database, "has_record_locks", lambda folder: folder != tmp_path)
    with (
        pytest.raises(StorageError, match=r"cannot lock files.*Set LOCALLLM_DATA_DIR"),
        Database(tmp_path / "things.db", SCHEMA).reading(),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_what_is_deleted_is_not_in_the_file_any_more(tmp_path: Path) -> None:
    """Builds of SQLite differ in whether they overwrite what they delete."""
    path = tmp_path / "a.db"
    database = Database(path, Schema("notes", (("CREATE TABLE note (text TEXT)",),), "It is gone."))
    with database.writing() as connection:
        connection.execute("INSERT INTO note VALUES (?)", ("a very private sentence " * 50,))
    with database.writing() as connection:
        connection.execute("DELETE FROM note")
    with database.reading() as connection:
        assert connection.execute("PRAGMA secure_delete").fetchone()[0] == 1
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    database.close()

    assert b"very private" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())


def test_one_in_memory_is_for_any_thread_and_gone_when_closed() -> None:
    database = Database(None, Schema("notes", (("CREATE TABLE note (text TEXT)",),), "It is gone."))

    def add(number: int) -> None:
        for _ in range(20):
            with database.writing() as connection:
                connection.execute("INSERT INTO note VALUES (?)", (str(number),))
            with database.snapshot() as connection:
                assert connection.execute("SELECT COUNT(*) FROM note").fetchone()[0] > 0

    with ThreadPoolExecutor(N_WINDOWS) as threads:
        list(threads.map(add, range(N_WINDOWS)))
    with database.reading() as connection:
        assert connection.execute("SELECT COUNT(*) FROM note").fetchone()[0] == 20 * N_WINDOWS
    database.close()
    with database.reading() as connection:
        assert connection.execute("SELECT COUNT(*) FROM note").fetchone()[0] == 0
    database.close()
