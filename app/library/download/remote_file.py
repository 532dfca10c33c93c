"""Remote files: URL, length, and the digest that identifies the content; hashing of a file while it is written.

Hubs give SHA-256 for files in LFS, and git's blob hash for others. Hashing takes a thread of its own, and reads what
was just written, in order, from the page cache, so that the disk is not read again.
"""

from __future__ import annotations

import hashlib
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

_LENGTHS = {"sha256": 64, "git": 40}


class Hasher(Protocol):
    """An incremental hash, as `hashlib` has."""

    def update(self, data: memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Digest:
    """The expected hash of a file; `hex` is empty if unknown."""

    kind: Literal["sha256", "git"] = "sha256"
    hex: str = ""

    def __post_init__(self) -> None:
        if self.hex and not re.fullmatch(rf"[0-9a-f]{{{_LENGTHS[self.kind]}}}", self.hex):
            raise ValueError(f"{self.hex[:80]!r} is no {self.kind} hash")

    def __str__(self) -> str:
        """Return the digest as hubs write it, such as sha256:…; empty if unknown."""
        return f"{self.kind}:{self.hex}" if self.hex else ""

    def hasher(self, n_bytes: int) -> Hasher:
        """Return the hash for a file of `n_bytes`. Source: git's hash-object, which hashes a header first."""
        if self.kind == "sha256":
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % n_bytes, usedforsecurity=False)

    def is_met_by(self, found: str) -> bool:
        return self.hex in ("", found)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of `n_bytes` at `url`, called `name` here.

    `mark` identifies the content if there is no digest: the server's strong etag, its modification date, or empty.
    """

    name: str
    url: str
    n_bytes: int
    digest: Digest = field(default_factory=Digest)
    mark: str = ""

    @property
    def fingerprint(self) -> str:
        """A text that changes with the content; empty if the content cannot be identified."""
        mark = self.digest.hex or self.mark
        return f"{self.digest.kind} {mark} {self.n_bytes}" if mark else ""


_BUFFER_BYTES = 1 << 20


class StreamingHash:
    """A context manager that hashes the first `n_bytes` of the file at `path`, up to its frontier."""

    def __init__(self, path: Path, n_bytes: int, hasher: Hasher) -> None:
        self._path = path
        self._n_bytes = n_bytes
        self._hasher = hasher
        self._frontier = 0
        self._is_closing = False
        self._failure: OSError | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="hashing", daemon=True)

    def __enter__(self) -> StreamingHash:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    def advance(self, frontier: int) -> None:
        """Report that all bytes before `frontier` are written."""
        with self._changed:
            self._frontier = max(self._frontier, frontier)
            self._changed.notify()

    def digest(self) -> str:
        """Wait until all bytes are hashed and return the hash in hexadecimal. Raises OSError."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._hasher.hexdigest()

    def _run(self) -> None:
        buffer = memoryview(bytearray(_BUFFER_BYTES))
        n_hashed = 0
        try:
            with self._path.open("rb", buffering=0) as file:
                while n_hashed < self._n_bytes and (n_ready := self._wait_beyond(n_hashed)):
                    n_read = file.readinto(buffer[: min(n_ready - n_hashed, _BUFFER_BYTES)])
                    self._hasher.update(buffer[:n_read])
                    n_hashed += n_read
        except OSError as error:
            self._failure = error

    def _wait_beyond(self, n_hashed: int) -> int:
        """Wait until more than `n_hashed` bytes are written and return how many; 0 when closing."""
        with self._changed:
            self._changed.wait_for(lambda: self._frontier > n_hashed or self._is_closing)
            return 0 if self._is_closing else self._frontier
