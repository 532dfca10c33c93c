"""How a hub names the bytes of a file: by their SHA-256 where it keeps them in LFS, as git does where not. Pure.

A file that is elsewhere: where it is had, how long it is, and what tells that it is the right one.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Literal, Protocol

__all__ = ["Digest", "Hasher", "RemoteFile"]

_LENGTHS = {"sha256": 64, "git": 40}


class Hasher(Protocol):
    """What bytes are fed to, in order, until it is asked what they hash to."""

    def update(self, data: memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Digest:
    """What the bytes of a file should hash to; `hex` is empty where nobody said it."""

    kind: Literal["sha256", "git"] = "sha256"
    hex: str = ""

    def __post_init__(self) -> None:
        if self.hex and not re.fullmatch(rf"[0-9a-f]{{{_LENGTHS[self.kind]}}}", self.hex):
            raise ValueError(f"{self.hex[:80]!r} is no {self.kind} hash")

    def __str__(self) -> str:
        """The digest as hubs write it, such as sha256:…; empty where nobody said it."""
        return f"{self.kind}:{self.hex}" if self.hex else ""

    def hasher(self, n_bytes: int) -> Hasher:
        """What computes it for a file of `n_bytes`. Source: git's hash-object, which hashes a header first."""
        if self.kind == "sha256":
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % n_bytes, usedforsecurity=False)

    def is_met_by(self, found: str) -> bool:
        return self.hex in ("", found)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of `n_bytes` at `url`, called `name` here.

    `mark` tells the content where no digest does: the server's strong etag, when it last changed, or empty.
    """

    name: str
    url: str
    n_bytes: int
    digest: Digest = field(default_factory=Digest)
    mark: str = ""

    @property
    def fingerprint(self) -> str:
        """A text that is the same as long as the content is; empty where nothing tells."""
        mark = self.digest.hex or self.mark
        return f"{self.digest.kind} {mark} {self.n_bytes}" if mark else ""
