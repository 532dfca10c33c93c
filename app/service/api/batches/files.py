"""The files of batches on disk, in `<data>/batches/files/`: what clients upload, and the answers of batches.

A file is `ID.data` with its `ID.json`, written last: without that there is no file. Owns ids, limits of size and
number, and expiry. An id that a client sends is compared with a pattern before it becomes part of a path.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal, NotRequired
from uuid import uuid4

from pydantic import NonNegativeInt, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from app.common.terminal import printable_line
from app.service.http.errors import RefusedError
from app.service.http.guard import SERVICE, Caller
from quantizer.system.errors import StorageError
from quantizer.system.files import (
    PRIVATE_FILE,
    explained,
    private_folder,
    read_regular,
    remove_abandoned,
    sorted_glob,
    sync_folder,
    write_atomically,
)

MAX_FILES = 1000
MAX_TOTAL_BYTES = 4 << 30
DEFAULT_EXPIRY_S = 30 * 24 * 60 * 60  # as OpenAI's
_ID = re.compile(r"file-[0-9a-f]{32}")
_MAX_NAME = 255
_UNFINISHED_S = 60 * 60  # after which data without a description is left over from a kill


class FileObject(TypedDict):
    """A stored file, as OpenAI describes it."""

    id: str
    object: Literal["file"]
    bytes: NonNegativeInt
    created_at: NonNegativeInt
    expires_at: NotRequired[NonNegativeInt]
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"]


class _StoredFile(FileObject):
    owner: NotRequired[str]


_OBJECT = TypeAdapter(_StoredFile)


class FileStore:
    """The files of a data folder, which several services may use. Every method raises StorageError where the disk
    fails."""

    def __init__(self, folder: Path, now_s: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._now_s = now_s

    def all(self, caller: Caller = SERVICE) -> list[FileObject]:
        """Return the files that `caller` sees, oldest first, and remove those of anybody that have expired or were
        never completed."""
        with explained(f"The files in {self._folder} cannot be read", "Check its permissions."):
            remove_abandoned(self._folder)
            now_s = self._now_s()
            found, described = list[FileObject](), set[str]()
            for path in sorted_glob(self._folder, "*.json"):
                read = self._read(path)
                if read is None:
                    continue
                stored, owner = read
                described.add(stored["id"])
                if stored.get("expires_at", now_s + 1) <= now_s:
                    self._unlink(stored["id"])
                elif caller.sees(owner):
                    found.append(stored)
            for path in sorted_glob(self._folder, "*.data"):
                with suppress(OSError):  # another service may remove it too
                    if path.stem not in described and now_s - path.lstat().st_mtime > _UNFINISHED_S:
                        path.unlink()
            return sorted(found, key=lambda stored: (stored["created_at"], stored["id"]))

    def find(self, file_id: str, caller: Caller = SERVICE) -> FileObject:
        """Return a file. Raises RefusedError (404) for none, for another one's, and for one that has expired."""
        if _ID.fullmatch(file_id) and (read := self._read(self._folder / f"{file_id}.json")) is not None:
            stored, owner = read
            if caller.sees(owner) and stored.get("expires_at", self._now_s() + 1) > self._now_s():
                return stored
        raise RefusedError(404, "not_found", f"There is no file {file_id[:80]!r}.", "GET /v1/files lists the files.")

    def path_of(self, file_id: str, caller: Caller = SERVICE) -> Path:
        """Return where the content of a file is. Raises as `find`."""
        return self._folder / f"{self.find(file_id, caller)['id']}.data"

    def add(self, source: BinaryIO, name: str, expires_s: int, owner: str = "") -> FileObject:
        """Store what `owner` uploads. Raises RefusedError (413) where there are too many files, or too large ones."""
        stored = self.all()
        n_bytes = source.seek(0, 2)
        if len(stored) >= MAX_FILES or sum(each["bytes"] for each in stored) + n_bytes > MAX_TOTAL_BYTES:
            cause = f"There are {len(stored)} files already, and room for {MAX_FILES}, or {MAX_TOTAL_BYTES >> 30} GiB."
            raise RefusedError(413, "too_many_files", cause, "Delete some: DELETE /v1/files/{file_id}.")
        source.seek(0)
        pieces = iter(lambda: source.read(1 << 20), b"")
        return self.write(f"file-{uuid4().hex}", name, "batch", expires_s, pieces, owner)

    def write(
        self,
        file_id: str,
        name: str,
        purpose: Literal["batch", "batch_output"],
        expires_s: int,
        pieces: Iterable[bytes],
        owner: str = "",
    ) -> FileObject:
        """Store a file with the content `pieces`, in place of one of that id."""
        with explained(f"The file cannot be stored in {self._folder}", "Free some space, or delete files."):
            path = private_folder(self._folder) / f"{file_id}.data"
            write_atomically(path, pieces, sync=True, mode=PRIVATE_FILE)
            now_s = int(self._now_s())
            stored: FileObject = {
                "id": file_id,
                "object": "file",
                "bytes": path.stat().st_size,
                "created_at": now_s,
                "expires_at": now_s + expires_s,
                "filename": printable_line(name)[:_MAX_NAME] or "unnamed",
                "purpose": purpose,
                "status": "processed",
            }
            text = json.dumps({**stored, "owner": owner})
            write_atomically(path.with_suffix(".json"), text, sync=True, mode=PRIVATE_FILE)
            return stored

    def remove(self, file_id: str, caller: Caller = SERVICE) -> None:
        """Delete a file; no failure of the power brings it back. Raises as `find`."""
        stored = self.find(file_id, caller)
        with explained(f"The file {file_id} cannot be deleted", "Check its folder."):
            self._unlink(stored["id"])
            sync_folder(self._folder)

    def _unlink(self, file_id: str) -> None:
        for suffix in (".json", ".data"):
            (self._folder / f"{file_id}{suffix}").unlink(missing_ok=True)

    def _read(self, path: Path) -> tuple[FileObject, str] | None:
        """Return a file and its owner, None for none."""
        try:
            stored = _OBJECT.validate_json(read_regular(path))
        except (FileNotFoundError, ValidationError):  # none, or of another version
            return None
        except OSError as error:
            raise StorageError(f"{path.name} cannot be read: {error.strerror}.", "Check its permissions.") from error
        owner = stored.pop("owner", "")
        return (stored, owner) if stored["id"] == path.stem and _ID.fullmatch(path.stem) else None
