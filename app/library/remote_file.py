"""A file that is elsewhere: where it is had, how long it is, and what tells that it is the right one."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.library.digest import Digest

__all__ = ["RemoteFile"]


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
