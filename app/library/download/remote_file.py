"""Remote files: URL, length, digest, the ranges of their bytes, and hashing a file while it is written.

Hubs give SHA-256 for files in LFS, and git's blob hash for others. Hashing takes a thread of its own, and reads what
was just written, in order, from the page cache, so that the disk is not read again.
"""

from __future__ import annotations

import hashlib
import re
import threading
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from quantizer.system.files import open_regular

_SMALLEST_BYTES = 4 << 20
_LARGEST_BYTES = 32 << 20
_LENGTHS = {"sha256": 64, "git": 40}
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """The bytes from `begin` to `end`, exclusive."""

    begin: int
    end: int

    @property
    def n_bytes(self) -> int:
        return self.end - self.begin


class Ranges:
    """A set of bytes as ranges that do not touch."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def add(self, added: Range) -> None:
        """Add the bytes of `added`, which may overlap."""
        if added.begin >= added.end:
            return
        first = bisect_left(self._ends, added.begin)
        last = bisect_right(self._begins, added.end)
        begin = min([added.begin, *self._begins[first:last][:1]])
        end = max([added.end, *self._ends[first:last][-1:]])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]

    def missing(self, n_bytes: int) -> list[Range]:
        """Return the ranges of a file of `n_bytes` that are not in the set, in order."""
        edges = zip([0, *self._ends], [*self._begins, n_bytes], strict=True)
        return [Range(begin, min(end, n_bytes)) for begin, end in edges if begin < min(end, n_bytes)]

    @property
    def n_bytes(self) -> int:
        return sum(self._ends) - sum(self._begins)

    @property
    def frontier(self) -> int:
        """The end of the range that begins at 0; 0 without one."""
        return self._ends[0] if self._begins[:1] == [0] else 0


class Schedule:
    """The queue of the `missing` parts of a file, for `n_connections` workers. Parts are handed out from front to back,
    so that hashing in order keeps up, and become smaller towards the end, so that no worker is busy alone for long."""

    def __init__(self, missing: Iterable[Range], n_connections: int) -> None:
        self._waiting = deque(missing)
        self._n_bytes = sum(part.n_bytes for part in self._waiting)
        self._n_connections = n_connections

    def take(self) -> Range | None:
        """Return the next part, None after the last."""
        if not self._waiting:
            return None
        whole = self._waiting.popleft()
        share = self._n_bytes // (2 * self._n_connections)
        end = whole.begin + min(max(share, _SMALLEST_BYTES), _LARGEST_BYTES)
        part = Range(whole.begin, min(end, whole.end))
        if part.end < whole.end:
            self._waiting.appendleft(Range(part.end, whole.end))
        self._n_bytes -= part.n_bytes
        return part


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
    """A file of `n_bytes` at `url`, called `name` here. `mark` identifies the content if there is no digest: the
    server's strong etag, its modification date, or empty."""

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
            with open_regular(self._path, 0) as file:
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
