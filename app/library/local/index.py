"""What a list says of a model: the few facts that are worth keeping, read from its header through the gate.

What was learnt of model files, kept so that it need not be read again: `<cache>/index.db`, which may go at any time.

Owns the database: facts or faults by path, good as long as the files' stamp is the same; by file its SHA-256, and what
told it from others where it came from. Several processes may use it. A damaged one is made anew. Knows nothing of
folders or of what the facts mean.

The models of this machine with what is known of each: from the index where the file is as it was, else read anew.

Owns the agreement between folder and index. Knows nothing of screens.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from app.library.local.model_files import ModelRef, ModelStat, stat_model
from quantizer.errors import ModelFileError, StorageError

__all__ = [
    "VERSION",
    "Facts",
    "Index",
    "IndexRecord",
    "LibraryEntry",
    "forget_missing",
    "full_model_info",
    "index_key",
    "list_entries",
    "read",
    "read_facts",
]

if TYPE_CHECKING:
    from quantizer.gguf.header import Header
    from quantizer.gguf.model_info import ModelInfo


VERSION = 2  # of what is kept and how it is worked out: facts of another version are read anew


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A selection of the model's card. Texts are data, not yet fit for a terminal."""

    name: str
    architecture: str
    n_parameters: int
    file_type: str
    n_ctx_train: int
    kv_bytes_per_token: int
    has_chat_template: bool
    has_tools: bool
    has_fim: bool
    licence: str
    template_sha256: str


def read_facts(path: Path) -> Facts:
    """Read the model at `path`, all its files. Raises ModelFileError when the gate does not let it through."""
    from quantizer.gguf.validation import validate_gguf

    card = full_model_info(validate_gguf(path))
    return Facts(**{item.name: getattr(card, item.name) for item in fields(Facts)})


def full_model_info(header: Header) -> ModelInfo:
    """Return the card of a model with all its files, of which the first or only one has `header`.

    Raises ModelFileError when another of them is unsound.
    """
    from quantizer.gguf.model_info import read_model_info
    from quantizer.gguf.validation import tensors_of

    card = read_model_info(replace(header, tensors=tensors_of(header)))
    return replace(card, file_bytes=stat_model(header.path).n_bytes)


_BUSY_TIMEOUT_S, _PAUSE_S = 30.0, 0.01
_SCHEMA = (
    "DROP TABLE IF EXISTS models",  # facts of another version
    """CREATE TABLE models (path BLOB PRIMARY KEY, stamp TEXT NOT NULL, facts TEXT NOT NULL, fault TEXT NOT NULL)
    WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS hashes (path BLOB PRIMARY KEY, n_bytes INTEGER NOT NULL, inode TEXT NOT NULL,
    sha256 TEXT NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS origins (path BLOB PRIMARY KEY, n_bytes INTEGER NOT NULL, inode TEXT NOT NULL,
    origin TEXT NOT NULL) WITHOUT ROWID""",
)


@dataclass(frozen=True, slots=True)
class IndexRecord:
    """What the gate said of a model whose files had `stamp`: its facts, or the fault for which it was refused."""

    stamp: str
    facts: Facts | None
    fault: str = ""


class Index:
    """The open index of a cache folder, a context manager. `was_damaged` tells that it was made anew.

    Every method raises StorageError when the disk refuses.
    """

    def __init__(self, cache_dir: Path) -> None:
        self.was_damaged = False
        self._path = cache_dir / "index.db"
        try:
            cache_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _refused(self._path, error) from error
        self._connection = self._opened()

    def __enter__(self) -> Index:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def known(self) -> dict[bytes, IndexRecord]:
        """Return key of the path → what is known, of every model that was read and not forgotten."""
        rows = self._run("SELECT path, stamp, facts, fault FROM models")
        return {path: IndexRecord(stamp, _facts(facts), fault) for path, stamp, facts, fault in rows}

    def keep(self, path: Path, known: IndexRecord) -> None:
        """Keep what the model at `path` was found to be, in place of what was known of it."""
        facts = json.dumps(asdict(known.facts)) if known.facts else ""
        row = (index_key(path), known.stamp, facts, known.fault.encode(errors="replace").decode())
        self._run("INSERT OR REPLACE INTO models VALUES (?, ?, ?, ?)", [row])

    def forget(self, paths: Iterable[bytes | Path]) -> None:
        """Drop all that is known of `paths`."""
        keys = [(index_key(path),) for path in paths]
        for table in ("models", "hashes", "origins") if keys else ():
            self._run(f"DELETE FROM {table} WHERE path = ?", keys)  # noqa: S608  (one of these names)

    def sha256(self, path: Path) -> str:
        """Return the hash recorded of a file, empty where there is none: another file at its place has none."""
        return self._told("SELECT n_bytes, inode, sha256 FROM hashes WHERE path = ?", path)

    def record(self, path: Path, sha256: str) -> None:
        """Record what the bytes of the file at `path` hash to, from now on."""
        row = (index_key(path), *_identity(path), sha256)
        self._run("INSERT OR REPLACE INTO hashes VALUES (?, ?, ?, ?)", [row])

    def origin(self, path: Path) -> str:
        """Return the fingerprint that the file had where it came from, empty as for `sha256`."""
        return self._told("SELECT n_bytes, inode, origin FROM origins WHERE path = ?", path)

    def record_origin(self, path: Path, fingerprint: str) -> None:
        """Record what told the content of the file at `path` from others where it was fetched."""
        row = (index_key(path), *_identity(path), fingerprint)
        self._run("INSERT OR REPLACE INTO origins VALUES (?, ?, ?, ?)", [row])

    def paths(self) -> set[bytes]:
        """Return the keys of all paths that anything is known of."""
        return {
            path
            for (path,) in self._run(
                "SELECT path FROM models UNION SELECT path FROM hashes UNION SELECT path FROM origins"
            )
        }

    def _told(self, statement: str, path: Path) -> str:
        rows = self._run(statement, [(index_key(path),)])
        return next((text for *identity, text in rows if identity == _identity(path)), "")

    def _run(self, statement: str, rows: Sequence[tuple[object, ...]] = ((),)) -> list[tuple[Any, ...]]:
        """Run a statement for each of `rows`, in one transaction; once more on a new index if this one is damaged."""
        try:
            return self._run_once(statement, rows)
        except sqlite3.DatabaseError as error:
            self._check_damaged(error)
            self._connection.close()
            self._connection = self._made_anew()
            return self._run_once(statement, rows)

    def _run_once(self, statement: str, rows: Sequence[tuple[object, ...]]) -> list[tuple[Any, ...]]:
        with self._connection:
            return [found for row in rows for found in self._connection.execute(statement, row)]

    def _opened(self) -> sqlite3.Connection:
        try:
            return _connected(self._path)
        except sqlite3.DatabaseError as error:
            self._check_damaged(error)
            return self._made_anew()

    def _check_damaged(self, error: sqlite3.DatabaseError) -> None:
        """Raise StorageError for what is no damage: SQLite's module has no class of its own for that."""
        if type(error) is not sqlite3.DatabaseError:
            raise _refused(self._path, error) from error

    def _made_anew(self) -> sqlite3.Connection:
        self.was_damaged = True
        try:
            for suffix in ("", "-wal", "-shm"):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
            return _connected(self._path)
        except (OSError, sqlite3.Error) as error:
            raise _refused(self._path, error) from error


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S)
    connection.text_factory = lambda data: data.decode(errors="replace")  # what is damaged is no fact, and no error
    try:
        connection.execute("PRAGMA synchronous = NORMAL")
        if not _is_current(connection):
            _write_ahead(connection)
            _bring_up_to_date(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Write ahead from now on; SQLite itself does not wait where two processes change that at once."""
    give_up_s = time.monotonic() + _BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if time.monotonic() >= give_up_s:
                raise
            time.sleep(_PAUSE_S)
        else:
            return


def _is_current(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute("PRAGMA user_version").fetchone()[0] == VERSION)


def _bring_up_to_date(connection: sqlite3.Connection) -> None:
    """Make the tables, unless another process has done so meanwhile."""
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        if not _is_current(connection):
            for statement in _SCHEMA:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {VERSION}")


def _facts(text: str) -> Facts | None:
    """What `keep` wrote, None for what somebody else wrote there."""
    try:
        return Facts(**json.loads(text)) if text else None
    except (ValueError, TypeError):
        return None


def index_key(path: bytes | Path) -> bytes:
    """Return a path as the index has it: names on disk may be any bytes."""
    return os.fsencode(path)


def _identity(path: Path) -> list[object]:
    """What stays the same while bytes go bad: a file that was put in its place has another one."""
    try:
        status = path.stat()
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}.", "Check the path.") from error
    return [status.st_size, str(status.st_ino)]  # inodes of some file systems do not fit SQLite's integers


def _refused(path: Path, error: OSError | sqlite3.Error) -> StorageError:
    return StorageError(f"The index {path} cannot be used: {error}.", "Remove it, or set LOCALLLM_CACHE_DIR.")


@dataclass(frozen=True, slots=True)
class LibraryEntry:
    """A model: what the disk says, and its facts or the `fault` for which the gate refused it; neither before it was
    read."""

    ref: ModelRef
    disk: ModelStat
    facts: Facts | None = None
    fault: str = ""

    @property
    def is_read(self) -> bool:
        return self.facts is not None or bool(self.fault)


def list_entries(refs: Iterable[ModelRef], index: Index) -> list[LibraryEntry]:
    """Return an entry for each of `refs` from the disk and `index`, reading no model file. Raises StorageError."""
    known = index.known()
    entries = []
    for ref in refs:
        disk, what = stat_model(ref.path), known.get(index_key(ref.path))
        is_current = what is not None and what.stamp == disk.stamp
        entries.append(
            LibraryEntry(ref, disk, what.facts, what.fault) if what and is_current else LibraryEntry(ref, disk)
        )
    return entries


def read(entry: LibraryEntry, index: Index) -> LibraryEntry:
    """Return `entry` as its file is now, and keep what was learnt in `index`. Raises StorageError."""
    disk = stat_model(entry.ref.path)  # before it is read: a change in between is seen next time
    try:
        found = replace(entry, disk=disk, facts=read_facts(entry.ref.path), fault="")
    except ModelFileError as error:
        found = replace(entry, disk=disk, facts=None, fault=str(error))
    index.keep(entry.ref.path, IndexRecord(disk.stamp, found.facts, found.fault))
    return found


def forget_missing(models_dir: Path, index: Index) -> int:
    """Drop from `index` the files that are gone, and return how many those were. Raises StorageError.

    While there is no `models_dir`, what lay in it stays known: its disk may be away.
    """
    root = index_key(models_dir / "_")[:-1]
    is_away = not models_dir.is_dir()
    gone = [path for path in index.paths() if not (os.path.lexists(path) or (is_away and path.startswith(root)))]
    index.forget(gone)
    return len(gone)
