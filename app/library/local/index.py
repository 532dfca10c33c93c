"""The index of model files, `<cache>/index.db`: facts, hashes and origins, so that no header is read twice.

Owns the database, the library's entries, which join it with the disk, and which hash of a file is trusted. A record is
valid while the stamp of its files is unchanged. Several processes may use the database; a damaged one is recreated, and
one that cannot be written is copied into memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from app.library.local.model_files import ModelRef, ModelStat, parts_of, stat_model
from app.library.local.projectors import Look, find_projector, look_into, own_projectors, projector_stamp
from app.protocol.codec import decode_checked
from app.protocol.library import LocalModel, ModelFacts, ModelFit
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.errors import StorageError, UserError
from quantizer.system.files import (
    check_regular,
    explained,
    has_record_locks,
    is_file,
    is_folder,
    open_regular,
    private_folder,
)

if TYPE_CHECKING:
    from quantizer.gguf.header import Header
    from quantizer.gguf.model_info import ModelInfo


LIBRARY = "library"  # `where` of a model in the models folder
VERSION = 4  # of the facts and how they are computed: facts of another version are read again
MISMATCH_REMEDY = "Download or copy it again; `localllm verify --record` takes it as it is."
_MAGIC = b"GGUF"
_FACT_NAMES = {item.name for item in fields(ModelFacts)}
_BUSY_TIMEOUT_S, _PAUSE_S = 30.0, 0.01
_SCHEMA = (
    "DROP TABLE IF EXISTS models",  # facts of another version
    """CREATE TABLE models (path BLOB PRIMARY KEY, stamp TEXT NOT NULL, facts TEXT NOT NULL, fault TEXT NOT NULL)
    WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS hashes (path BLOB PRIMARY KEY, n_bytes INTEGER NOT NULL, inode TEXT NOT NULL,
    sha256 TEXT NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS origins (path BLOB PRIMARY KEY, n_bytes INTEGER NOT NULL, inode TEXT NOT NULL,
    origin TEXT NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS mismatches (path BLOB PRIMARY KEY, n_bytes INTEGER NOT NULL, inode TEXT NOT NULL,
    reason TEXT NOT NULL) WITHOUT ROWID""",
)
_BLOB = re.compile(r"(?:sha256-)?([0-9a-f]{64})")
_READ_BYTES = 4 << 20


def read_facts(path: Path) -> ModelFacts:
    """Read the model at `path`, all its files. Raises ModelFileError when validation rejects it."""
    from quantizer.gguf.validation import validate_gguf

    header = validate_gguf(path)
    info, found = full_model_info(header), find_projector(header)
    names = _FACT_NAMES - {"sees", "hears"}
    return ModelFacts(sees=found.sees, hears=found.hears, **{name: getattr(info, name) for name in names})


def full_model_info(header: Header) -> ModelInfo:
    """Return the info of a model over all its files; `header` is that of the first. Raises ModelFileError for another
    that is invalid."""
    from quantizer.gguf.model_info import read_model_info
    from quantizer.gguf.validation import tensors_of

    info = read_model_info(replace(header, tensors=tensors_of(header)))
    return replace(info, file_bytes=stat_model(header.path).n_bytes)


@dataclass(frozen=True, slots=True)
class IndexRecord:
    """The outcome of reading a model whose files had `stamp`: its facts, or the `fault` that validation found."""

    stamp: str
    facts: ModelFacts | None
    fault: str = ""


class Index:
    """The open index of a cache folder, a context manager. `was_damaged` is True once it was recreated. `problem` is
    why its file cannot be used, "" where it can: then it is in memory, with what the file had where that could be
    read, and nothing is remembered."""

    def __init__(self, cache_dir: Path) -> None:
        self.was_damaged = False
        self.problem = ""
        self._path = cache_dir / "index.db"
        try:
            private_folder(cache_dir)
            self._connection = _connect(self._path)
        except (OSError, sqlite3.Error) as error:
            self._connection = self._recovered(error)

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_error: object) -> None:
        self._connection.close()

    def records(self) -> dict[bytes, IndexRecord]:
        rows = self._run("SELECT path, stamp, facts, fault FROM models")
        return {path: IndexRecord(stamp, _facts(facts), fault) for path, stamp, facts, fault in rows}

    def store(self, path: Path, record: IndexRecord) -> None:
        facts = json.dumps(asdict(record.facts)) if record.facts else ""
        row = (index_key(path), record.stamp, facts, record.fault.encode(errors="replace").decode())
        self._run("INSERT OR REPLACE INTO models VALUES (?, ?, ?, ?)", [row])

    def forget(self, paths: Iterable[bytes | str | Path]) -> None:
        keys = [(index_key(path),) for path in paths]
        for table in ("models", "hashes", "origins", "mismatches") if keys else ():
            self._run(f"DELETE FROM {table} WHERE path = ?", keys)  # noqa: S608  (one of these names)

    def sha256(self, path: Path) -> str:
        """Return the recorded SHA-256 of a file; empty without one, or if another file replaced it."""
        return self._text_of("SELECT n_bytes, inode, sha256 FROM hashes WHERE path = ?", path)

    def record_sha256(self, path: Path, sha256: str) -> None:
        """Record the SHA-256 of a file whose bytes are right: a mismatch that was found before is no more."""
        row = (index_key(path), *_identity(path), sha256)
        self._run("INSERT OR REPLACE INTO hashes VALUES (?, ?, ?, ?)", [row])
        self._run("DELETE FROM mismatches WHERE path = ?", [(row[0],)])

    def mismatch(self, model: Path) -> str:
        """Return why a hash of a model's files is not the recorded one, as `verify` found it last; "" where it did not,
        and for a file that another one replaced."""
        known = {path for (path,) in self._run("SELECT path FROM mismatches")}
        statement = "SELECT n_bytes, inode, reason FROM mismatches WHERE path = ?"
        files = verified_files(model) if known else ()  # which looks into the folder: hardly ever
        found = (self._text_of(statement, path) for path in files if index_key(path) in known and is_file(path))
        return next(filter(None, found), "")

    def record_mismatch(self, path: Path, reason: str) -> None:
        row = (index_key(path), *_identity(path), reason.encode(errors="replace").decode())
        self._run("INSERT OR REPLACE INTO mismatches VALUES (?, ?, ?, ?)", [row])

    def origin(self, path: Path) -> str:
        """Return the fingerprint of the file at its source; empty as for `sha256`."""
        return self._text_of("SELECT n_bytes, inode, origin FROM origins WHERE path = ?", path)

    def record_origin(self, path: Path, fingerprint: str) -> None:
        row = (index_key(path), *_identity(path), fingerprint)
        self._run("INSERT OR REPLACE INTO origins VALUES (?, ?, ?, ?)", [row])

    def paths(self) -> set[bytes]:
        tables = ("models", "hashes", "origins", "mismatches")
        rows = self._run(" UNION ".join(f"SELECT path FROM {table}" for table in tables))  # noqa: S608  (these names)
        return {path for (path,) in rows}

    def _text_of(self, statement: str, path: Path) -> str:
        rows = self._run(statement, [(index_key(path),)])
        return next((text for *identity, text in rows if identity == _identity(path)), "")

    def _run(self, statement: str, rows: Sequence[tuple[object, ...]] = ((),)) -> list[tuple[Any, ...]]:
        """Run a statement for each of `rows` in one transaction; where that fails, once more on a recovered index."""

        def run() -> list[tuple[Any, ...]]:
            with self._connection:
                return [found for row in rows for found in self._connection.execute(statement, row)]

        try:
            return run()
        except sqlite3.Error as error:
            self._connection = self._recovered(error, self._connection)
            return run()

    def _recovered(self, error: OSError | sqlite3.Error, old: sqlite3.Connection | None = None) -> sqlite3.Connection:
        """Return a new index in the place of a damaged one; after any other error one in memory."""
        if type(error) is sqlite3.DatabaseError:  # the base class itself reports damage
            if old is not None:
                old.close()
                old = None
            self.was_damaged = True
            try:
                for suffix in ("", "-wal", "-shm"):
                    self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
                return _connect(self._path)
            except (OSError, sqlite3.Error) as failure:
                error = failure
        self.problem = str(getattr(error, "strerror", "") or error)
        memory = sqlite3.connect(":memory:")
        with suppress(sqlite3.Error, OSError):
            if old is None:  # of a folder that can only be read, the journal cannot be opened, and is not needed
                if not is_file(self._path):
                    raise error  # SQLite would wait for the writer of a pipe
                old = sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
            old.backup(memory)
        if old is not None:
            old.close()
        return _prepared(memory)


def _connect(path: Path) -> sqlite3.Connection:
    if not has_record_locks(path.parent):  # SQLite would call it busy, after 10 s
        raise sqlite3.OperationalError("its file system cannot lock files")
    if path.exists():
        check_regular(path)
    return _prepared(sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S))


def _prepared(connection: sqlite3.Connection) -> sqlite3.Connection:
    """Return the connection with current tables; close it on an error."""
    connection.text_factory = lambda data: data.decode(errors="replace")  # damaged text must not raise
    try:
        connection.execute("PRAGMA synchronous = NORMAL")
        if not _is_current(connection):
            _enable_wal(connection)
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                statements = (*_SCHEMA, f"PRAGMA user_version = {VERSION}")
                # another process may just have created the tables
                for statement in () if _is_current(connection) else statements:
                    connection.execute(statement)
    except BaseException:
        connection.close()
        raise
    return connection


def _enable_wal(connection: sqlite3.Connection) -> None:
    """Switch to write-ahead logging. SQLite's own timeout does not cover two processes that do that at once."""
    give_up_s = time.monotonic() + _BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= give_up_s:
                raise
            time.sleep(_PAUSE_S)
        else:
            return


def _is_current(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute("PRAGMA user_version").fetchone()[0] == VERSION)


def _facts(text: str) -> ModelFacts | None:
    """Parse what `store` wrote; None for anything else."""
    try:
        values = json.loads(text) if text else None
        is_whole = isinstance(values, dict) and values.keys() == _FACT_NAMES
        return decode_checked(ModelFacts, values) if is_whole else None
    except (ValueError, RecursionError):
        return None


def index_key(path: bytes | str | Path) -> bytes:
    """Return the key of a path: names on disk may be any bytes."""
    return os.fsencode(path)


def _identity(path: Path) -> list[object]:
    """Return size and inode: they tell a replaced file, but not one whose bytes changed in place."""
    with explained(f"{path} cannot be read", "Check the path."):
        status = path.stat()
    return [status.st_size, str(status.st_ino)]  # inodes of some file systems do not fit SQLite's integers


@dataclass(frozen=True, slots=True)
class LibraryEntry:
    """A model on this machine: its file status, and its facts or the `fault` of validation; neither before it is read,
    nor while it `is_arriving`: its files have just changed, so that somebody may still be copying them. `mismatch` is
    what `verify` found last: the hash of a file that is not the recorded one."""

    ref: ModelRef
    disk: ModelStat
    facts: ModelFacts | None = None
    fault: str = ""
    is_arriving: bool = False
    mismatch: str = ""

    @property
    def is_read(self) -> bool:
        return self.facts is not None or bool(self.fault)

    def describe(self, fit: ModelFit | None = None) -> LocalModel:
        """Return the model as it crosses processes; its facts are empty if the file is damaged or not read yet."""
        return LocalModel(
            id=self.ref.id,
            where=self.ref.place or LIBRARY,
            path=str(self.ref.path),
            n_bytes=self.disk.n_bytes,
            modified_s=round(self.disk.modified_s),
            damaged=self.fault,
            is_arriving=self.is_arriving,
            mismatch=self.mismatch,
            fit=fit,
            **(asdict(self.facts) if self.facts else {}),
        )


def list_entries(refs: Iterable[ModelRef], index: Index) -> list[LibraryEntry]:
    """Return an entry for each of `refs` from the disk and `index`, reading no model file."""
    records, look = index.records(), cache(look_into)
    entries = []
    for ref in refs:
        disk, record = _stat_with_projectors(ref.path, look), records.get(index_key(ref.path))
        facts, fault = (record.facts, record.fault) if record and record.stamp == disk.stamp else (None, "")
        mismatch = index.mismatch(ref.path)
        entries.append(LibraryEntry(ref, disk, facts, fault, mismatch=mismatch))
    return entries


def _stat_with_projectors(path: Path, look: Look = look_into) -> ModelStat:
    """Return the status of a model, with a stamp that differs after a change of what may be its projector, too."""
    disk, beside = stat_model(path), projector_stamp(path, look)
    return replace(disk, stamp=f"{disk.stamp} {beside}") if beside else disk


def read_entry(entry: LibraryEntry, index: Index, now_s: float | None = None) -> LibraryEntry:
    """Read the model of `entry`, store the result in `index`, and return the new entry. A file
    that validation rejects while somebody may be copying it is not damaged, and nothing is stored. `now_s` counts from
    1970; None reads the clock."""
    disk = _stat_with_projectors(entry.ref.path)  # before reading: a change in between is detected next time
    try:
        found = replace(entry, disk=disk, facts=read_facts(entry.ref.path), fault="", is_arriving=False)
    except ModelFileError as error:
        if disk.is_changing(time.time() if now_s is None else now_s) and _may_grow(entry.ref.path):
            return replace(entry, disk=disk, facts=None, fault="", is_arriving=True)
        found = replace(entry, disk=disk, facts=None, fault=str(error), is_arriving=False)
    index.store(entry.ref.path, IndexRecord(disk.stamp, found.facts, found.fault))
    return found


def _may_grow(path: Path) -> bool:
    """Return whether the file begins like a GGUF, or has no content yet: it is empty, or zeros reserve its space."""
    try:
        with open_regular(path) as file:
            return file.read(len(_MAGIC)) in (_MAGIC, b"", bytes(len(_MAGIC)))
    except OSError:
        return False


def forget_missing(models_dir: Path, index: Index) -> int:
    """Delete missing files from `index` and return how many there were. While `models_dir` is
    missing, its files stay in the index: its disk may be unmounted."""
    root = index_key(models_dir / "_")[:-1]
    is_unmounted = not is_folder(models_dir)
    gone = [path for path in index.paths() if not (os.path.lexists(path) or (is_unmounted and path.startswith(root)))]
    index.forget(gone)
    return len(gone)


def expected_sha256(path: Path, index: Index) -> str:
    """Return the recorded SHA-256 of a file, or the one in its name; empty without one."""
    if known := index.sha256(path):
        return known
    match = _BLOB.fullmatch(path.resolve().name)
    return match[1] if match else ""


def sha256_of(path: Path, on_bytes: Callable[[int], object]) -> str:
    """Hash a whole file, calling `on_bytes` with the size of each piece read. Raises StorageError."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_READ_BYTES))
    with explained(f"{path} cannot be read", "Check the disk."), open_regular(path, 0) as file:
        while n_bytes := file.readinto(buffer):
            digest.update(buffer[:n_bytes])
            on_bytes(n_bytes)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class VerificationResult:
    """The outcome for one model: `sound` (hashes match), `recorded` (none was on record before), `unrecorded` (nor can
    one be stored) or `damaged`. `sha256` has one hash for each file that was read. `reason` is empty unless the model
    is damaged."""

    ref: ModelRef
    state: Literal["sound", "recorded", "unrecorded", "damaged"]
    sha256: tuple[str, ...]
    reason: str = ""


def verified_files(model: Path) -> tuple[Path, ...]:
    """Return the files that are verified with a model: its own, and the projectors in its folder that are its."""
    return (*parts_of(model), *own_projectors(model))


def verify(
    ref: ModelRef, index: Index, on_bytes: Callable[[int], object], *, is_recording: bool = False
) -> VerificationResult:
    """Validate a model's header, hash its files and its projector's, compare with the recorded hashes, and record those
    that are new. `is_recording` accepts the current bytes as correct: then StorageError is raised where `index` cannot
    be written."""
    from quantizer.gguf.validation import validate_gguf

    files = verified_files(ref.path)
    found: list[str] = []
    is_known = True
    try:
        validate_gguf(ref.path)
        for part in files:
            expected = "" if is_recording else expected_sha256(part, index)
            found.append(sha256_of(part, on_bytes))
            is_known = is_known and bool(expected)
            if expected not in ("", found[-1]):
                reason = f"{part.name} has the SHA-256 {found[-1]} and should have {expected}."
                index.record_mismatch(part, reason)
                return VerificationResult(ref, "damaged", tuple(found), reason)
    except UserError as error:
        return VerificationResult(ref, "damaged", tuple(found), str(error))
    for part, sha256 in zip(files, found, strict=True):
        index.record_sha256(part, sha256)
    if index.problem and is_recording:
        raise StorageError(f"The hashes cannot be recorded: {index.problem}.", "See `localllm doctor`.")
    state: Literal["recorded", "unrecorded"] = "unrecorded" if index.problem else "recorded"
    return VerificationResult(ref, "sound" if is_known else state, tuple(found))
