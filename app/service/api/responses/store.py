"""Responses and conversations on disk, in `<data>/responses.db`.

Owns the tables, and the limits of size and age, by which the least recently used leave first, of the owner who fills
most of the file: one key cannot push out what others have stored. A response keeps the whole context that it answered,
so that it outlives the responses before it; equal items are stored once. A record belongs to the key that made it.
Several services may use the file, which only the user who runs them can read. Independent of what an item means.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from app.common.database import Database, Schema
from app.service.http.guard import SERVICE, Caller
from app.settings.parsing import parse_byte_size
from app.settings.settings import Settings
from quantizer.system.errors import StorageError
from quantizer.system.files import is_file

FILE_NAME = "responses.db"
Item: TypeAlias = dict[str, Any]
Result = TypeVar("Result")

_DAY_S = 24 * 60 * 60
_MOST_AT_ONCE = 32  # records that leave before the size is looked at again
_MOST_FREE_PAGES = 256  # 1 MiB
_SHARED, _INPUT, _OUTPUT = -1, 0, 1  # of `part`; what is shared is no item, but stored like one
_REPEATED = ("tools", "instructions", "text")  # fields that are alike, and large, in each response of an agent

_TABLES = (
    """CREATE TABLE records (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL UNIQUE,
        kind TEXT NOT NULL,
        used_s REAL NOT NULL,
        process INTEGER NOT NULL,
        object TEXT NOT NULL
    ) STRICT""",
    "CREATE INDEX records_used ON records (used_s, id)",
    """CREATE TABLE contents (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        item_id TEXT NOT NULL,
        digest BLOB NOT NULL UNIQUE,
        item TEXT NOT NULL
    ) STRICT""",
    "CREATE INDEX contents_item ON contents (item_id, id)",
    """CREATE TABLE items (
        record_id INTEGER NOT NULL REFERENCES records (id) ON DELETE CASCADE,
        position INTEGER NOT NULL,
        part INTEGER NOT NULL,
        content_id INTEGER NOT NULL REFERENCES contents (id),
        PRIMARY KEY (record_id, position)
    ) STRICT, WITHOUT ROWID""",
    "CREATE INDEX items_content ON items (content_id)",
    """CREATE TRIGGER items_delete AFTER DELETE ON items
        WHEN NOT EXISTS (SELECT 1 FROM items WHERE content_id = old.content_id) BEGIN
        DELETE FROM contents WHERE id = old.content_id;
    END""",
)
# What was stored before is seen by keys that see all.
_OWNERS = ("ALTER TABLE records ADD COLUMN owner TEXT NOT NULL DEFAULT ''",)
# The bytes of a record, those of an item that several have in each of them: what its owner would fill alone.
_SIZES = (
    "ALTER TABLE records ADD COLUMN n_bytes INTEGER NOT NULL DEFAULT 0",
    """UPDATE records SET n_bytes = length(object) + coalesce((SELECT sum(length(item))
        FROM items JOIN contents ON contents.id = items.content_id WHERE record_id = records.id), 0)""",
    "CREATE INDEX records_owner ON records (owner, used_s, id, n_bytes)",
    """CREATE TRIGGER items_added AFTER INSERT ON items BEGIN
        UPDATE records SET n_bytes = n_bytes + (SELECT length(item) FROM contents WHERE id = new.content_id)
        WHERE id = new.record_id;
    END""",
    """CREATE TRIGGER items_removed BEFORE DELETE ON items BEGIN
        UPDATE records SET n_bytes = n_bytes - (SELECT length(item) FROM contents WHERE id = old.content_id)
        WHERE id = old.record_id;
    END""",
)
_SCHEMA = Schema(
    "responses",
    (_TABLES, _OWNERS, _SIZES),
    gone="The response or conversation no longer exists.",
    # A crash of the machine may cost the last responses; what is deleted is overwritten.
    pragmas=(
        "auto_vacuum = INCREMENTAL",
        "journal_mode = WAL",
        "synchronous = NORMAL",
        "foreign_keys = ON",
        "secure_delete = ON",
        f"journal_size_limit = {8 << 20}",
    ),
)


class Kind(StrEnum):
    RESPONSE = "response"
    CONVERSATION = "conversation"
    THREAD = "thread"  # of Anthropic's dialect


@dataclass(frozen=True, slots=True)
class Record:
    """A stored response or conversation: its object, its output, and the process that answers it in the background."""

    object: dict[str, Any]
    outputs: list[Item]
    process: int


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """The bytes of the file, 0 for no file, and the days that an unused record stays, 0 for ever."""

    max_bytes: int
    max_days: int

    @classmethod
    def of(cls, settings: Settings) -> StoreLimits:
        size = settings.responses_size.strip() or Settings().responses_size
        return cls(0 if size == "0" else parse_byte_size(size), settings.responses_days)


class RemovedError(Exception):
    """What was to be stored again is not there any more."""


class ResponseStore:
    """The records of a data folder, as `caller` sees them: all of them, or those that it made. Every method raises
    StorageError where the file cannot be used."""

    def __init__(
        self,
        data_dir: Path,
        limits: StoreLimits,
        now_s: Callable[[], float] = time.time,
        elapsed_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = Database(data_dir / FILE_NAME, _SCHEMA)
        self._path = data_dir / FILE_NAME
        self._limits = limits
        self._now_s = now_s
        self._elapsed_s = elapsed_s
        self._begun_s = now_s() - elapsed_s()  # when `elapsed_s` was 0, by the clock as it was then
        self._thread = ThreadPoolExecutor(1, "response-store")  # SQLite's connection is its own
        self.caller = SERVICE

    @property
    def is_enabled(self) -> bool:
        return self._limits.max_bytes > 0

    def seen_by(self, caller: Caller) -> ResponseStore:
        """Return the same records as `caller` sees them; what it adds is its own."""
        seen = copy(self)
        seen.caller = caller
        return seen

    async def add(
        self,
        kind: Kind,
        value: dict[str, Any],
        items: Sequence[Item],
        outputs: Sequence[Item] = (),
        process: int = 0,
        *,
        is_again: bool = False,
    ) -> bool:
        """Store `value` under its id, or replace it. Return whether it stays: one larger than the file does not. Raises
        RemovedError where it `is_again` stored, and somebody, such as a client of another service, has removed it
        meanwhile."""

        def run() -> bool:
            with self._database.writing() as connection:
                if is_again and self._row(connection, kind, value["id"]) is None:
                    raise RemovedError
                row_id = _put(connection, kind, value, self._used_s(), process, self.caller.owner)
                shared = {name: value[name] for name in _REPEATED if name in value}
                _add_items(connection, row_id, [{"id": "", **shared}], _SHARED)  # no reference has this id
                _add_items(connection, row_id, items, _INPUT)
                _add_items(connection, row_id, outputs, _OUTPUT)
                self._shrink(connection)
                stays = self._row(connection, kind, value["id"]) is not None
            self._give_back()
            return stays

        return await self._run(run)

    async def extend(self, name: str, items: Sequence[Item]) -> bool:
        """Add `items` to a conversation. Return whether there is one of that name."""

        def run() -> bool:
            with self._database.writing() as connection:
                row_id = self._used_row(connection, Kind.CONVERSATION, name)
                if row_id is not None:
                    _add_items(connection, row_id, items, _INPUT)
                self._shrink(connection)
            self._give_back()
            return row_id is not None

        return await self._run(run)

    async def replace(self, kind: Kind, value: dict[str, Any]) -> bool:
        """Replace an object, but for its items and what many have alike. Return whether there is one of that id."""

        def run() -> bool:
            with self._database.writing() as connection:
                row_id = self._used_row(connection, kind, value["id"])
                if row_id is not None:
                    connection.execute("UPDATE records SET object = ? WHERE id = ?", (_json(value), row_id))
                return row_id is not None

        return await self._run(run)

    async def record(self, kind: Kind, name: str) -> Record | None:
        """Return the record of that name, which counts as a use, None if it is not stored."""

        def run() -> Record | None:
            self._note_use(kind, name)
            with self._database.snapshot() as connection:
                row_id = self._row(connection, kind, name)
                if row_id is None:
                    return None
                row = connection.execute("SELECT object, process FROM records WHERE id = ?", (row_id,)).fetchone()
                (shared,) = _items(connection, row_id, _SHARED, _SHARED)
                outputs = _items(connection, row_id, _OUTPUT, _OUTPUT)
                return Record({**shared, **json.loads(row["object"])}, outputs, row["process"])

        return await self._run(run) if self._exists else None

    async def items(self, kind: Kind, name: str, *, with_outputs: bool = True) -> list[Item] | None:
        """Return the items of a record in their order, which counts as a use, None if it is not stored. Those of a
        response are the whole conversation before it, and its output."""

        def run() -> list[Item] | None:
            self._note_use(kind, name)
            with self._database.snapshot() as connection:
                row_id = self._row(connection, kind, name)
                last = _OUTPUT if with_outputs else _INPUT
                return None if row_id is None else _items(connection, row_id, _INPUT, last)

        return await self._run(run) if self._exists else None

    async def referenced(self, item_ids: Iterable[str]) -> dict[str, Item]:
        """Return those of the items that are stored, by id; of several with one id one that `caller` stored itself."""
        names = list(dict.fromkeys(filter(None, item_ids)))

        def run() -> dict[str, Item]:
            owner, sees_all = self.caller.owner, self.caller.sees_all
            sql = """SELECT item, max(owner = :owner) AS is_own FROM contents
                JOIN items ON items.content_id = contents.id JOIN records ON records.id = items.record_id
                WHERE item_id = :name AND (:sees_all OR owner = :owner)
                GROUP BY contents.id ORDER BY is_own DESC, contents.id DESC LIMIT 1"""
            with self._database.reading() as connection:
                asked = [(name, {"name": name, "owner": owner, "sees_all": sees_all}) for name in names]
                rows = [(name, connection.execute(sql, values).fetchone()) for name, values in asked]
            return {name: json.loads(row["item"]) for name, row in rows if row is not None}

        return await self._run(run) if names and self._exists else {}

    async def remove(self, kind: Kind, name: str) -> bool:
        """Remove a record and the items that no other has. Return whether there was one."""
        return await self._delete("DELETE FROM records WHERE id = ?", kind, name)

    async def remove_item(self, name: str, item_id: str) -> bool:
        """Remove an item from a conversation. Return whether it had one."""
        sql = "DELETE FROM items WHERE record_id = ? AND content_id IN (SELECT id FROM contents WHERE item_id = ?)"
        return await self._delete(sql, Kind.CONVERSATION, name, item_id)

    async def _delete(self, sql: str, kind: Kind, name: str, *values: str) -> bool:
        """Run `sql` with the row of a record and `values`. Return whether it removed something."""

        def run() -> bool:
            with self._database.writing() as connection:
                row_id = self._row(connection, kind, name)
                is_removed = row_id is not None and bool(connection.execute(sql, (row_id, *values)).rowcount)
            self._overwrite()
            return is_removed

        return await self._run(run) if self._exists else False

    async def prune(self) -> None:
        """Remove what is beyond the limits, which may have changed; all of it where nothing is to be stored."""

        def run() -> None:
            with self._database.writing() as connection:
                self._shrink(connection)
            self._give_back(0)
            self._overwrite()

        if self._exists:
            await self._run(run)

    async def close(self) -> None:
        await self._run(self._database.close)
        self._thread.shutdown()

    @property
    def _exists(self) -> bool:
        return is_file(self._path)  # reading makes no file

    async def _run(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _note_use(self, kind: Kind, name: str) -> None:
        """Make a record the one that was used last; where the disk is full, it can still be read."""
        with suppress(StorageError), self._database.writing() as connection:
            self._used_row(connection, kind, name)

    def _row(self, connection: sqlite3.Connection, kind: Kind, name: str) -> int | None:
        """Return the row of a record, None for one that is not stored or that `caller` does not see."""
        sql = "SELECT id, owner FROM records WHERE name = ? AND kind = ?"
        row = connection.execute(sql, (name, kind)).fetchone()
        return None if row is None or not self.caller.sees(row["owner"]) else int(row["id"])

    def _used_row(self, connection: sqlite3.Connection, kind: Kind, name: str) -> int | None:
        """Return the row of a record, which is the one that was used last from now on; None if there is none."""
        row_id = self._row(connection, kind, name)
        if row_id is not None:
            _use(connection, row_id, self._used_s())
        return row_id

    def _used_s(self) -> float:
        """Return when a record is used now: once a clock that was put back is right again, that is not long ago."""
        return max(self._now_s(), self._begun_s + self._elapsed_s())

    def _shrink(self, connection: sqlite3.Connection) -> None:
        """Remove what is too old, then, down to the limit of size, the least recently used of who has the most."""
        if self._limits.max_days:
            # a clock that is put forward makes nothing old; one that was is found in the time that went by
            now_s = min(self._now_s(), self._begun_s + self._elapsed_s())
            oldest_s = now_s - self._limits.max_days * _DAY_S
            connection.execute("DELETE FROM records WHERE used_s < ?", (oldest_s,))
        n_removed = 1
        while n_removed and _n_bytes(connection) > self._limits.max_bytes:
            sql = "SELECT owner, count(*) FROM records GROUP BY owner ORDER BY sum(n_bytes) DESC LIMIT 1"
            owner, n_records = connection.execute(sql).fetchone() or ("", 0)
            n_most = max(1, min(_MOST_AT_ONCE, n_records // 20))  # one of few at once, more of many
            sql = "SELECT id FROM records WHERE owner = ? ORDER BY used_s, id LIMIT ?"
            n_removed = connection.execute(f"DELETE FROM records WHERE id IN ({sql})", (owner, n_most)).rowcount  # noqa: S608

    def _overwrite(self) -> None:
        """Let nothing of what was removed stay in the journal beside the file."""
        with self._database.reading() as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _give_back(self, most: int = _MOST_FREE_PAGES) -> None:
        """Return free pages to the disk, where there are more than `most`."""
        with self._database.reading() as connection:
            if connection.execute("PRAGMA freelist_count").fetchone()[0] > most:
                connection.executescript("PRAGMA incremental_vacuum")  # `execute` stops after one page


def _put(
    connection: sqlite3.Connection, kind: Kind, value: dict[str, Any], now_s: float, process: int, owner: str
) -> int:
    """Insert a record of `owner` without items, or in place of one of the same id, which stays whose it is. Return its
    row."""
    replaced = connection.execute("DELETE FROM records WHERE name = ? RETURNING owner", (value["id"],)).fetchall()
    sql = "INSERT INTO records (name, kind, used_s, process, object, owner, n_bytes) VALUES (?, ?, ?, ?, ?, ?, ?)"
    text = _json({name: item for name, item in value.items() if name not in _REPEATED})
    owner = replaced[0]["owner"] if replaced else owner
    row_id = connection.execute(sql, (value["id"], kind, now_s, process, text, owner, len(text))).lastrowid
    assert row_id is not None
    _use(connection, row_id, now_s)
    return row_id


def _add_items(connection: sqlite3.Connection, row_id: int, items: Sequence[Item], part: int) -> None:
    sql = "SELECT coalesce(max(position), -1) + 1 FROM items WHERE record_id = ?"
    (first,) = connection.execute(sql, (row_id,)).fetchone()
    rows = [(row_id, first + index, part, _content_id(connection, item)) for index, item in enumerate(items)]
    connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?)", rows)


def _content_id(connection: sqlite3.Connection, item: Item) -> int:
    """Return the row of an item's text, which is inserted unless there is one that equals it."""
    text = _json(item)
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    found = connection.execute("SELECT id FROM contents WHERE digest = ?", (digest,)).fetchone()
    if found is not None:
        return int(found["id"])
    sql = "INSERT INTO contents (item_id, digest, item) VALUES (?, ?, ?)"
    row_id = connection.execute(sql, (item["id"], digest, text)).lastrowid
    assert row_id is not None
    return row_id


def _use(connection: sqlite3.Connection, row_id: int, now_s: float) -> None:
    """Make a record the one that was used last, at `now_s`: or with the others, where the clock was put back."""
    sql = "UPDATE records SET used_s = max(?, (SELECT max(used_s) FROM records)) WHERE id = ?"
    connection.execute(sql, (now_s, row_id))


def _items(connection: sqlite3.Connection, row_id: int, first: int, last: int) -> list[Item]:
    sql = """SELECT item FROM items JOIN contents ON contents.id = items.content_id
        WHERE record_id = ? AND part BETWEEN ? AND ? ORDER BY position"""
    return [json.loads(row["item"]) for row in connection.execute(sql, (row_id, first, last))]


def _n_bytes(connection: sqlite3.Connection) -> int:
    sql = """SELECT (page_count - freelist_count) * page_size
        FROM pragma_page_count, pragma_freelist_count, pragma_page_size"""
    return int(connection.execute(sql).fetchone()[0])


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))  # ASCII: SQLite stores it whatever characters a client sends
