"""Which chats are being answered, and by which window: a row for each, and a lock that ends with the window's process.

A partial message alone does not say whether its writer lives. A row names the message that an exchange wrote last; it
counts while the file of its window is locked, so a kill ends it at once, and no clock or process number is trusted.
"""

from __future__ import annotations

import sqlite3
import uuid
from pathlib import Path

from app.common.database import Database
from app.common.event_log import log_event
from quantizer.system.errors import StorageError
from quantizer.system.files import Lock, explained, private_folder, remove_lock, try_lock

FOLDER_NAME = "windows"
_REMEDY = "Check the disk, or set LOCALLLM_DATA_DIR to a folder of your own."


class Writers:
    """The rows in `database` and the locks below `folder`, as one window sees them. Raises StorageError if the disk
    fails."""

    def __init__(self, database: Database, folder: Path) -> None:
        self._database = database
        self._folder = folder
        self._window = ""  # while this one holds its lock
        self._lock: Lock | None = None

    @property
    def window(self) -> str:
        """The name of this window, which is locked from the first use on."""
        if self._lock is None:
            with explained(f"Chats cannot be marked in {self._folder}", _REMEDY):
                private_folder(self._folder)
                self._remove_dead()
                self._window = uuid.uuid4().hex
                self._lock = try_lock(self._path(self._window))
        return self._window

    def mark(self, chat_id: int, message_id: int | None) -> None:
        """Note that this window goes on after a message; None: that it answers no longer."""
        if message_id is None and self._lock is None:
            return
        window = self.window
        with self._database.writing() as connection:
            if message_id is None:
                connection.execute("DELETE FROM writers WHERE window = ? AND chat_id = ?", (window, chat_id))
            else:
                mark_writer(connection, window, chat_id, message_id)

    def of_chat(self, chat_id: int, *, with_own: bool = False) -> frozenset[int]:
        """Return the ids of the messages after which living windows go on; without this one's unless `with_own`."""
        with self._database.reading() as connection:
            rows = connection.execute("SELECT window, message_id FROM writers WHERE chat_id = ?", (chat_id,)).fetchall()
        return frozenset(int(row["message_id"]) for row in rows if self._counts(str(row["window"]), with_own=with_own))

    def chats(self) -> frozenset[int]:
        """Return the ids of the chats that other living windows answer."""
        with self._database.reading() as connection:
            rows = connection.execute("SELECT window, chat_id FROM writers").fetchall()
        living = {window for window in {str(row["window"]) for row in rows} if self._counts(window)}
        return frozenset(int(row["chat_id"]) for row in rows if row["window"] in living)

    def close(self) -> None:
        """End what this window marked, and its lock. Marks that cannot be removed end with the lock as well: nothing is
        lost, so that a full disk is no error of a window that closes."""
        lock, window = self._lock, self._window
        if lock is not None:
            self._lock, self._window = None, ""
            try:
                with self._database.writing() as connection:
                    connection.execute("DELETE FROM writers WHERE window = ?", (window,))
            except StorageError as error:
                log_event("app", str(error))
            finally:
                remove_lock(lock)

    def _counts(self, window: str, *, with_own: bool = False) -> bool:
        return with_own if window == self._window else self._is_alive(window)

    def _is_alive(self, window: str) -> bool:
        path = self._path(window)
        if not path.exists():  # trying the lock would make the file
            return False
        with explained(f"{path} cannot be tried", _REMEDY):
            lock = try_lock(path)
        if lock is not None:
            remove_lock(lock)
        return lock is None

    def _remove_dead(self) -> None:
        """Remove what killed windows left: files, and rows."""
        with self._database.reading() as connection:
            named = {str(row["window"]) for row in connection.execute("SELECT DISTINCT window FROM writers")}
        known = named | {path.stem for path in self._folder.glob("*.lock")}
        dead = [(window,) for window in known if not self._is_alive(window)]
        if dead:
            with self._database.writing() as connection:
                connection.executemany("DELETE FROM writers WHERE window = ?", dead)

    def _path(self, window: str) -> Path:
        return self._folder / f"{window}.lock"


def mark_writer(connection: sqlite3.Connection, window: str, chat_id: int, message_id: int) -> None:
    """Note, within the caller's transaction, that a window goes on after a message: with the message itself, so that
    nobody sees it as one that was stopped."""
    values = (window, chat_id, message_id)
    connection.execute("INSERT OR REPLACE INTO writers (window, chat_id, message_id) VALUES (?, ?, ?)", values)
