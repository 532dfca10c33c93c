"""`<data>/knowledge.db`: the folders that were added, their files as they were read or left out, passages with an index
of words, and vectors.

Owns the tables and what is committed together: a file's passages replace its old ones in one transaction, so that a
kill leaves the file as it was or as it is. What derives from a passage (its words, its vector) goes with it.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from app.common.database import Database, Schema
from app.knowledge.models import EmbedderIdentity
from app.knowledge.passages import Passage
from quantizer.system.errors import StorageError, UsageError
from quantizer.system.files import changing_alone, is_file

FILE_NAME = "knowledge.db"
_LOCK_TIMEOUT_S = 2.0  # a folder that is added or removed takes less; an update is not waited for
READER_VERSION = 1  # of how files are read and split: what an older one read is read again
_SURROGATES = dict.fromkeys(range(0xD800, 0xE000), 0xFFFD)  # which SQLite cannot store
_ROWS_AT_ONCE = 4_096  # of vectors: 6 MiB of 384 dimensions

_COLUMNS = "name, heading, text"
_NEW, _OLD = "new.name, new.heading, new.text", "old.name, old.heading, old.text"
_TABLES = (
    """CREATE TABLE folders (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        path BLOB NOT NULL UNIQUE,
        updated_ms INTEGER NOT NULL DEFAULT 0
    ) STRICT""",
    """CREATE TABLE files (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        folder_id INTEGER NOT NULL REFERENCES folders (id) ON DELETE CASCADE,
        path BLOB NOT NULL,
        n_bytes INTEGER NOT NULL,
        mtime_ns INTEGER NOT NULL,
        sha256 TEXT NOT NULL,
        reader INTEGER NOT NULL,
        reason TEXT NOT NULL,
        UNIQUE (folder_id, path)
    ) STRICT""",
    """CREATE TABLE passages (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        file_id INTEGER NOT NULL REFERENCES files (id) ON DELETE CASCADE,
        begin INTEGER NOT NULL,
        end INTEGER NOT NULL,
        page INTEGER,
        name TEXT NOT NULL,
        heading TEXT NOT NULL,
        text TEXT NOT NULL
    ) STRICT""",
    "CREATE INDEX passages_of_file ON passages (file_id)",
    # Without a second copy of the text. Of English the stems count ("files", "filed"), of other languages the words.
    f"""CREATE VIRTUAL TABLE passage_words USING fts5(
        {_COLUMNS}, content='passages', content_rowid='id', tokenize='porter unicode61 remove_diacritics 2'
    )""",
    f"""CREATE TRIGGER passage_words_insert AFTER INSERT ON passages BEGIN
        INSERT INTO passage_words (rowid, {_COLUMNS}) VALUES (new.id, {_NEW});
    END""",  # noqa: S608 - all of it is ours
    f"""CREATE TRIGGER passage_words_delete AFTER DELETE ON passages BEGIN
        INSERT INTO passage_words (passage_words, rowid, {_COLUMNS}) VALUES ('delete', old.id, {_OLD});
    END""",  # noqa: S608
    """CREATE TABLE vectors (
        passage_id INTEGER PRIMARY KEY REFERENCES passages (id) ON DELETE CASCADE,
        vector BLOB NOT NULL
    ) STRICT""",
    """CREATE TABLE embedder (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        model TEXT NOT NULL,
        n_bytes INTEGER NOT NULL
    ) STRICT""",
)
_SCHEMA = Schema(
    subject="folders of knowledge", steps=(_TABLES,), gone="A folder or file of it is no longer part of the knowledge."
)


_KNOWN_FILES = "SELECT path, id, n_bytes, mtime_ns, sha256, reader, reason FROM files WHERE folder_id = ?"


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that was added. `updated_ms` is when all of it was read, in milliseconds since 1970; 0 for never."""

    id: int
    path: Path
    updated_ms: int = 0


@dataclass(frozen=True, slots=True)
class FolderSummary:
    """What is known of a folder: files that were read, what was left out, passages, and those with a vector."""

    path: str
    updated_ms: int
    n_files: int
    n_left_out: int
    n_passages: int
    n_embedded: int


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A file as it was when it was read. A `sha256` of "" is that of one that was left out unread."""

    id: int
    n_bytes: int
    mtime_ns: int
    sha256: str
    reader: int
    reason: str


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What is to be stored of a file: `passages` None keeps those that are there."""

    path: bytes
    n_bytes: int
    mtime_ns: int
    sha256: str = ""
    reason: str = ""
    passages: tuple[Passage, ...] | None = ()


@dataclass(frozen=True, slots=True)
class StoredPassage:
    """A passage with its file, as it was when the file was read."""

    id: int
    folder: Path
    path: Path
    n_bytes: int
    mtime_ns: int
    passage: Passage


class KnowledgeStore:
    """A context manager over the knowledge of one data folder, for one thread; opened on first use. Any number of
    processes may have one; only the holder of `writing_alone` changes it. Without a `data_dir` it is in memory, for
    any thread. Methods raise StorageError."""

    def __init__(self, data_dir: Path | None) -> None:
        self._path = data_dir and data_dir / FILE_NAME
        self._database = Database(self._path, _SCHEMA)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._database.close()

    @property
    def exists(self) -> bool:
        """Whether anything was ever stored; asking makes no file."""
        return self._path is None or is_file(self._path)

    @contextmanager
    def writing_alone(self, timeout_s: float = _LOCK_TIMEOUT_S) -> Iterator[None]:
        """Be the only process that changes the knowledge on the disk, inside the context. Raises StorageError where
        another is for `timeout_s`."""
        assert self._path is not None, "no other process sees what is in memory"
        busy, refused = (
            "Another process is changing the folders of knowledge.",
            f"The {_SCHEMA.subject} cannot be changed",
        )
        with changing_alone(self._path, timeout_s, busy, refused):
            yield

    def folders(self) -> tuple[Folder, ...]:
        if not self.exists:
            return ()
        with self._database.reading() as connection:
            rows = connection.execute("SELECT id, path, updated_ms FROM folders ORDER BY path").fetchall()
        return tuple(Folder(row["id"], Path(os.fsdecode(row["path"])), row["updated_ms"]) for row in rows)

    def add_folder(self, path: Path) -> Folder:
        """Add the folder at `path`, which is resolved, or return it if it was added before. Raises UsageError for one
        inside another or around one: its files would be found twice."""
        for folder in self.folders():
            if folder.path == path:
                return folder
            if path.is_relative_to(folder.path):
                raise UsageError(f"{path} is part of {folder.path}, which was added.", "`localllm knowledge update`.")
            if folder.path.is_relative_to(path):
                remedy = f"Remove that first: localllm knowledge rm {folder.path}"
                raise UsageError(f"{path} contains {folder.path}, which was added.", remedy)
        with self._database.writing() as connection:
            cursor = connection.execute("INSERT INTO folders (path) VALUES (?)", (os.fsencode(path),))
        return Folder(int(cursor.lastrowid or 0), path)

    def remove_folder(self, folder: Folder) -> None:
        """Remove a folder and all that derives from it; its words do not stay in the index either."""
        with self._database.writing() as connection:
            connection.execute("DELETE FROM folders WHERE id = ?", (folder.id,))
            connection.execute("INSERT INTO passage_words (passage_words) VALUES ('optimize')")

    def mark_updated(self, folder: Folder) -> None:
        with self._database.writing() as connection:
            values = (time.time_ns() // 1_000_000, folder.id)
            connection.execute("UPDATE folders SET updated_ms = ? WHERE id = ?", values)

    def known_files(self, folder: Folder) -> dict[bytes, KnownFile]:
        """Return the files of a folder by their paths; of 100,000 about 50 MB."""
        with self._database.reading() as connection:
            return {row[0]: KnownFile(*row[1:]) for row in connection.execute(_KNOWN_FILES, (folder.id,))}

    def put(self, folder: Folder, records: Sequence[FileRecord], gone: Iterable[int] = ()) -> None:
        """Store files, in place of what was stored of them, and remove the files with the ids `gone`, in one
        transaction. A passage that stays as it was keeps its vector."""
        with self._database.writing() as connection:
            connection.executemany("DELETE FROM files WHERE id = ?", [(file_id,) for file_id in gone])
            for record in records:
                row = connection.execute(
                    """INSERT INTO files (folder_id, path, n_bytes, mtime_ns, sha256, reader, reason)
                    VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (folder_id, path) DO UPDATE SET
                    n_bytes = excluded.n_bytes, mtime_ns = excluded.mtime_ns, sha256 = excluded.sha256,
                    reader = excluded.reader, reason = excluded.reason RETURNING id""",
                    (
                        *(folder.id, record.path, record.n_bytes, record.mtime_ns, record.sha256),
                        *(READER_VERSION, record.reason),
                    ),
                ).fetchone()
                if record.passages is not None:
                    _replace_passages(connection, row["id"], _name_of(record.path), record.passages)

    def use_embedder(self, embedder: EmbedderIdentity) -> int:
        """Take `embedder` for all passages, and return how many vectors of another one were removed for it."""
        if self.embedder() == embedder:
            return 0
        with self._database.writing() as connection:
            n_removed = connection.execute("DELETE FROM vectors").rowcount
            connection.execute("INSERT OR REPLACE INTO embedder VALUES (1, ?, ?)", (embedder.model, embedder.n_bytes))
        return n_removed

    def embedder(self) -> EmbedderIdentity | None:
        """Return the model that made the vectors, None where none ever did."""
        with self._database.reading() as connection:
            row = connection.execute("SELECT model, n_bytes FROM embedder").fetchone()
        return EmbedderIdentity(row["model"], row["n_bytes"]) if row else None

    def n_without_vector(self) -> int:
        with self._database.reading() as connection:
            counts = connection.execute("SELECT (SELECT COUNT(*) FROM passages) - (SELECT COUNT(*) FROM vectors)")
            return int(counts.fetchone()[0])

    def without_vector(self, after_id: int, limit: int) -> list[tuple[int, str]]:
        """Return the ids and texts to embed of up to `limit` passages after `after_id` that have no vector: the name of
        the file and the headings say what a passage is about."""
        statement = """SELECT id, name, heading, text FROM passages
            WHERE id > ? AND NOT EXISTS (SELECT 1 FROM vectors WHERE passage_id = id) ORDER BY id LIMIT ?"""
        with self._database.reading() as connection:
            rows = connection.execute(statement, (after_id, limit)).fetchall()
        return [(row["id"], "\n".join(filter(None, (row["name"], row["heading"], row["text"])))) for row in rows]

    def put_vectors(self, embedder: EmbedderIdentity, vectors: Iterable[tuple[int, bytes]]) -> None:
        """Store the vectors of passages by their ids; one whose passage was replaced meanwhile is left out. Raises
        StorageError where another embedder was taken meanwhile."""
        with self._database.writing() as connection:
            row = connection.execute("SELECT model, n_bytes FROM embedder").fetchone()
            if row is None or (row["model"], row["n_bytes"]) != (embedder.model, embedder.n_bytes):
                raise StorageError("Another embedding model was chosen meanwhile.", "Run the update again.")
            connection.executemany(
                "INSERT OR REPLACE INTO vectors SELECT id, ?2 FROM passages WHERE id = ?1", list(vectors)
            )

    def vectors(self) -> Iterator[tuple[list[int], bytes]]:
        """Yield all vectors in pieces: the ids of passages, and their vectors one after the other."""
        with self._database.snapshot() as connection:
            cursor = connection.execute("SELECT passage_id, vector FROM vectors")
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                yield [row[0] for row in rows], b"".join(row[1] for row in rows)

    def with_words(self, expression: str, weights: tuple[float, float, float], limit: int) -> list[int]:
        """Return the ids of passages that match an FTS5 `expression`, best first by bm25 (FTS5's: k1 = 1.2, b = 0.75)
        with `weights` of name, headings and text."""
        statement = f"""SELECT rowid FROM passage_words WHERE passage_words MATCH ?
            ORDER BY bm25(passage_words, {", ".join(map(str, weights))}) LIMIT ?"""  # noqa: S608 - numbers
        with self._database.reading() as connection:
            return [row[0] for row in connection.execute(statement, (expression, limit))]

    def passages(self, ids: Iterable[int]) -> dict[int, StoredPassage]:
        """Return the passages that still exist of `ids`, by their id."""
        statement = """SELECT passages.*, files.path AS file_path, files.n_bytes, files.mtime_ns, folders.path AS folder
            FROM passages JOIN files ON files.id = file_id JOIN folders ON folders.id = folder_id
            WHERE passages.id = ?"""
        found = {}
        with self._database.reading() as connection:
            for passage_id in ids:
                for row in connection.execute(statement, (passage_id,)):
                    folder = Path(os.fsdecode(row["folder"]))
                    passage = Passage(row["text"], row["begin"], row["end"], row["heading"], row["page"])
                    path = folder / os.fsdecode(row["file_path"])
                    found[passage_id] = StoredPassage(
                        passage_id, folder, path, row["n_bytes"], row["mtime_ns"], passage
                    )
        return found

    def file_at(self, path: Path) -> KnownFile | None:
        """Return the file at an absolute path as it was read, None where no folder has it."""
        for folder in self.folders():
            if path.is_relative_to(folder.path):
                values = (folder.id, os.fsencode(path.relative_to(folder.path)))
                with self._database.reading() as connection:
                    row = connection.execute(f"{_KNOWN_FILES} AND path = ?", values).fetchone()
                return KnownFile(*row[1:]) if row else None
        return None

    def passages_between(self, file: KnownFile, begin: int, end: int) -> list[Passage]:
        """Return the passages of a file that have characters from `begin` to `end` of its text, in order."""
        statement = "SELECT * FROM passages WHERE file_id = ? AND end > ? AND begin < ? ORDER BY begin"
        with self._database.reading() as connection:
            rows = connection.execute(statement, (file.id, begin, end)).fetchall()
        return [Passage(row["text"], row["begin"], row["end"], row["heading"], row["page"]) for row in rows]

    def summaries(self) -> tuple[FolderSummary, ...]:
        if not self.exists:
            return ()
        counts = """SELECT COUNT(*) FROM passages JOIN files ON files.id = file_id {} WHERE folder_id = folders.id"""
        statement = f"""SELECT path, updated_ms,
            (SELECT COUNT(*) FROM files WHERE folder_id = folders.id AND reason = '') AS n_files,
            (SELECT COUNT(*) FROM files WHERE folder_id = folders.id AND reason <> '') AS n_left_out,
            ({counts.format("")}) AS n_passages,
            ({counts.format("JOIN vectors ON passage_id = passages.id")}) AS n_embedded
            FROM folders ORDER BY path"""  # noqa: S608 - all of it is ours
        with self._database.reading() as connection:
            rows = connection.execute(statement).fetchall()
        return tuple(FolderSummary(os.fsdecode(row[0]), *row[1:]) for row in rows)

    def left_out(self, folder: Folder) -> Iterator[tuple[str, str]]:
        """Yield the paths in a folder that were left out, and why."""
        statement = "SELECT path, reason FROM files WHERE folder_id = ? AND reason <> '' ORDER BY path"
        with self._database.reading() as connection:
            for row in connection.execute(statement, (folder.id,)):
                yield os.fsdecode(row["path"]), row["reason"]


def _replace_passages(connection: sqlite3.Connection, file_id: int, name: str, passages: Iterable[Passage]) -> None:
    kept = {
        (row["heading"], row["text"]): row["vector"]
        for row in connection.execute(
            """SELECT heading, text, vector FROM passages JOIN vectors ON passage_id = passages.id WHERE file_id = ?""",
            (file_id,),
        )
    }
    connection.execute("DELETE FROM passages WHERE file_id = ?", (file_id,))
    for passage in passages:
        heading, text = (part.translate(_SURROGATES) for part in (passage.heading, passage.text))
        cursor = connection.execute(
            "INSERT INTO passages (file_id, begin, end, page, name, heading, text) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (file_id, passage.begin, passage.end, passage.page, name, heading, text),
        )
        if vector := kept.get((heading, text)):
            connection.execute("INSERT INTO vectors VALUES (?, ?)", (cursor.lastrowid, vector))


def _name_of(path: bytes) -> str:
    """Return the words of a file's path from its folder, without its ending, as they are searched."""
    return os.fsdecode(os.path.splitext(path)[0]).translate(_SURROGATES)  # noqa: PTH122 - bytes
