"""Remote files: URL, length, and the digest that identifies the content.

Hubs give SHA-256 for files in LFS, and git's blob hash for others. Pure.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Literal, Protocol

__all__ = ["Digest", "Hasher", "RemoteFile"]

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
