"""Shards of a checkpoint that are still being fetched: their headers are known, the rest is read once they are whole.

Owns waiting for them, and the check that an arrived file begins with the announced header. Independent of who fetches
them and how that checks them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from quantizer.checkpoint.config import CheckpointError
from quantizer.gguf.gguf_reader import LocalFile, open_local


@dataclass(frozen=True, slots=True)
class PendingShard:
    """A file `name` of `n_bytes`, whose first bytes are in the file `head`; `identity` identifies its content."""

    name: str
    n_bytes: int
    identity: str
    head: str


class PendingShards:
    """The shards that have arrived; any thread may wait for one. `on_wait` is called for the first wait for each."""

    def __init__(self) -> None:
        self._arrived: set[str] = set()
        self._awaited: set[str] = set()
        self._changed = threading.Condition()
        self.on_wait: Callable[[str], object] = lambda _name: None

    def mark_arrived(self, name: str) -> None:
        """Note that the file `name` is whole and verified."""
        with self._changed:
            self._arrived.add(name)
            self._changed.notify_all()

    def wait_for(self, name: str) -> bool:
        """Wait for the file, and return whether this was the first wait for it."""
        with self._changed:
            is_first = name not in self._awaited
            self._awaited.add(name)
            if is_first and name not in self._arrived:
                self.on_wait(name)
            self._changed.wait_for(lambda: name in self._arrived)
        return is_first

    def files(self, folder: Path, shards: tuple[PendingShard, ...]) -> Mapping[str, PendingFile]:
        """Return the `shards` of `folder` by name. Raises ModelFileError where a header cannot be read."""
        return {shard.name: PendingFile.of(folder, shard, self) for shard in shards}


@dataclass(frozen=True, slots=True)
class PendingFile:
    """The file at `path`, as a ByteSource; reading beyond its `head` waits until it has arrived."""

    path: Path
    n_bytes: int
    identity: str
    head: bytes
    arrivals: PendingShards

    @classmethod
    def of(cls, folder: Path, shard: PendingShard, arrivals: PendingShards) -> PendingFile:
        """Read its head. Raises ModelFileError."""
        head = open_local(Path(shard.head))
        return cls(folder / shard.name, shard.n_bytes, shard.identity, head.read(0, head.n_bytes), arrivals)

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes [start, stop), fewer at the end. Raises ModelFileError, CheckpointError for another file."""
        if stop <= len(self.head):
            return self.head[start:stop]
        if self.arrivals.wait_for(self.path.name):
            file = open_local(self.path)
            if file.n_bytes != self.n_bytes or file.read(0, len(self.head)) != self.head:
                raise CheckpointError(f"{self.path.name} differs from its announced header.", "Pull it again.")
        return LocalFile(self.path, self.n_bytes).read(start, stop)


NO_PENDING: Mapping[str, PendingFile] = {}
