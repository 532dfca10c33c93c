"""The contents of pictures and sounds: files beside chats.db by their SHA-256, and which messages and drafts use them.

A file is on the disk before its row, its row before a message that names it, and it is removed after its row. Whoever
adds or removes a row, or removes a file, holds the database's lock: between two processes no used file can go. What no
message and no draft uses is removed a day after it was kept or last released, so that an undone removal finds it.
"""

from __future__ import annotations

import base64
import hashlib
import re
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from app.chat.conversation import Attachment, MediaFile
from app.chat.store.database import now_ms, storable
from app.common.database import Database
from app.protocol.chat import MediaPart
from quantizer.system.errors import StorageError
from quantizer.system.files import (
    PRIVATE_FILE,
    explained,
    open_regular,
    private_folder,
    read_at_most,
    sync_folder,
    write_atomically,
    writer_of,
)
from quantizer.system.process import is_process_alive

FOLDER_NAME = "attachments"
KEPT_FOR_MS = 24 * 3600 * 1000
_DIGITS = re.compile("[0-9a-f]{64}")
_KEEP = """INSERT INTO media_files (sha256, free_from_ms) VALUES (?, ?)
    ON CONFLICT (sha256) DO UPDATE SET free_from_ms = excluded.free_from_ms"""
_REMEDY = "Check the disk, or set LOCALLLM_DATA_DIR to a folder of your own."


class AttachmentFiles:
    """The files below `folder`, with their rows in `database`. Raises StorageError if the disk fails."""

    def __init__(self, database: Database, folder: Path) -> None:
        self._database = database
        self._folder = folder

    def keep(self, contents: Mapping[str, bytes]) -> None:
        """Store `contents` by their SHA-256. When this returns they are on the disk, for a day at least."""
        for sha256, content in contents.items():
            assert hashlib.sha256(content).hexdigest() == sha256, "a content has the name of its own digest"
            path = self._path(sha256)
            with explained(f"Attachments cannot be stored in {self._folder}", _REMEDY):
                self._write(path, content)
                with self._database.writing() as connection:
                    self._write(path, content)  # if it was removed just now
                    values = (sha256, now_ms() + KEPT_FOR_MS)
                    connection.execute(_KEEP, values)

    def read(self, file: MediaFile) -> bytes:
        """Return the content of a picture or sound. Raises StorageError if it is missing or damaged."""
        path = self._path(file.sha256)
        try:
            with open_regular(path) as opened:
                content = read_at_most(opened, file.n_bytes + 1)
        except OSError as error:
            cause = f"A picture or sound of this chat cannot be read from {self._folder}: {error.strerror}."
            raise StorageError(cause, "Restore the folder, or remove the message.") from error
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise StorageError(f"{path} is damaged.", "Restore it from a backup, or remove the message.")
        return content

    def parts(self, files: Iterable[MediaFile]) -> dict[str, MediaPart]:
        """Return pictures and sounds as requests have them, by their SHA-256. Raises as `read`."""
        return {file.sha256: encode_media(file, self.read(file)) for file in dict.fromkeys(files)}

    def unused(self) -> tuple[tuple[Path, ...], int]:
        """Return the files that `remove_unused` and `remove_strays` would remove, and their size in bytes."""
        with self._database.reading() as connection:
            doomed, known = _doomed(connection), _known(connection)
        sizes: dict[Path, int] = {}
        for path in (*map(self._path, doomed), *self._strays(known)):
            with suppress(FileNotFoundError):  # another process has removed it
                sizes[path] = path.stat().st_size
        return tuple(sizes), sum(sizes.values())

    def remove_unused(self) -> int:
        """Remove the rows that may go now, then their files; return how many."""
        with self._database.reading() as connection:
            if not _doomed(connection):  # without waiting for a lock
                return 0
        with self._database.writing() as connection:
            doomed = _doomed(connection)
            connection.executemany("DELETE FROM media_files WHERE sha256 = ?", [(sha256,) for sha256 in doomed])
        self._remove(map(self._path, doomed))
        return len(doomed)

    def remove_strays(self) -> int:
        """Remove the files without a row, which killed processes left; return how many."""
        with self._database.reading() as connection:
            known = _known(connection)
        return self._remove(self._strays(known))

    def _strays(self, known: Collection[str]) -> Iterator[Path]:
        for folder in sorted(self._folder.glob("[0-9a-f][0-9a-f]")):
            for path in sorted(folder.iterdir()):
                writer = writer_of(path)
                if path.is_file() and not is_process_alive(writer) and _digest_of(path) not in known:
                    yield path

    def _remove(self, paths: Iterable[Path]) -> int:
        """Remove the files that have no row, while nobody can add one; return how many."""
        n_removed = 0
        with self._database.writing() as connection:
            for path in paths:
                row = connection.execute("SELECT 1 FROM media_files WHERE sha256 = ?", (_digest_of(path),)).fetchone()
                if row is None:
                    with explained(f"{path} cannot be removed", "Check its permissions."):
                        path.unlink(missing_ok=True)
                    n_removed += 1
        return n_removed

    def _write(self, path: Path, content: bytes) -> None:
        """Write a file unless it is there, whole. Raises OSError."""
        if path.is_file() and path.stat().st_size == len(content):
            return
        private_folder(path.parent)
        write_atomically(path, content, sync=True, mode=PRIVATE_FILE)
        sync_folder(path.parent.parent)

    def _path(self, sha256: str) -> Path:
        assert _DIGITS.fullmatch(sha256), "nothing but a digest is part of a path"
        return self._folder / sha256[:2] / sha256[2:]


def use_in_message(connection: sqlite3.Connection, message_id: int, attachments: Iterable[Attachment]) -> None:
    """Note, within the caller's transaction, the names and files of a message that was just added. Raises StorageError
    for a file that is not kept."""
    attachments = tuple(attachments)
    check_kept(connection, attachments)
    names = [(message_id, storable(attachment.name)) for attachment in attachments]
    connection.executemany("INSERT INTO attachment_names (message_id, name) VALUES (?, ?)", names)
    files = [(message_id, sha256) for sha256 in _digests(attachments)]
    connection.executemany("INSERT INTO used_files (message_id, sha256) VALUES (?, ?)", files)


def use_in_draft(connection: sqlite3.Connection, row_id: int, attachments: Iterable[Attachment]) -> None:
    """Note, within the caller's transaction, the files of a draft in place of its former ones. Raises StorageError for
    a file that is not kept."""
    attachments = tuple(attachments)
    check_kept(connection, attachments)
    former = connection.execute("SELECT sha256 FROM drafted_files WHERE row_id = ?", (row_id,))
    release(connection, [str(row["sha256"]) for row in former])
    connection.execute("DELETE FROM drafted_files WHERE row_id = ?", (row_id,))
    files = [(row_id, sha256) for sha256 in _digests(attachments)]
    connection.executemany("INSERT INTO drafted_files (row_id, sha256) VALUES (?, ?)", files)


def check_kept(connection: sqlite3.Connection, attachments: Iterable[Attachment]) -> None:
    """Raise StorageError for an attachment whose files are no longer kept."""
    for attachment in attachments:
        for file in attachment.media:
            row = connection.execute("SELECT 1 FROM media_files WHERE sha256 = ?", (file.sha256,)).fetchone()
            if row is None:
                raise StorageError(f"{attachment.name} is no longer stored.", "Attach it again.")


def release(connection: sqlite3.Connection, digests: Iterable[str]) -> None:
    """Keep files for another day, within the caller's transaction: somebody who used them may want them back."""
    free_from_ms = now_ms() + KEPT_FOR_MS
    connection.executemany(
        "UPDATE media_files SET free_from_ms = ? WHERE sha256 = ?", [(free_from_ms, sha256) for sha256 in digests]
    )


def _digests(attachments: Iterable[Attachment]) -> Iterable[str]:
    return dict.fromkeys(file.sha256 for attachment in attachments for file in attachment.media)


def _doomed(connection: sqlite3.Connection) -> list[str]:
    """Return the digests of the rows that may go now."""
    statement = """SELECT sha256 FROM media_files WHERE free_from_ms <= ?
        AND sha256 NOT IN (SELECT sha256 FROM used_files) AND sha256 NOT IN (SELECT sha256 FROM drafted_files)"""
    return [str(row["sha256"]) for row in connection.execute(statement, (now_ms(),))]


def _known(connection: sqlite3.Connection) -> frozenset[str]:
    return frozenset(str(row["sha256"]) for row in connection.execute("SELECT sha256 FROM media_files"))


def _digest_of(path: Path) -> str:
    return path.parent.name + path.name


def encode_media(file: MediaFile, content: bytes) -> MediaPart:
    return MediaPart(file.mime_type, base64.b64encode(content).decode())
