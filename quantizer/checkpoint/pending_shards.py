"""Files of a checkpoint that are still on their way: their heads are known, the rest is read once they are whole.

Owns waiting for them, and the check that a file which came begins as it was said to. Who fetches them, and how it is
known that one is whole, is not known here: `came` says so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from quantizer.errors import CheckpointError
from quantizer.gguf.byte_source import LocalFile, open_local

__all__ = ["PendingFile", "PendingShard", "PendingShards"]


@dataclass(frozen=True, slots=True)
class PendingShard:
    """A file called `name`, of `n_bytes`, whose first bytes lie in the file `head`; `identity` tells its content."""

    name: str
    n_bytes: int
    identity: str
    head: str


class PendingShards:
    """Which files came; any thread may wait for one, and `ask` hears of the first that does."""

    def __init__(self) -> None:
        self._came: set[str] = set()
        self._awaited: set[str] = set()
        self._changed = threading.Condition()
        self.ask: Callable[[str], object] = lambda _name: None

    def mark_arrived(self, name: str) -> None:
        """Say that the file `name` is whole and right."""
        with self._changed:
            self._came.add(name)
            self._changed.notify_all()

    def wait_for(self, name: str) -> bool:
        """Return once the file is there: whether it was not waited for before."""
        with self._changed:
            is_first = name not in self._awaited
            self._awaited.add(name)
            if is_first and name not in self._came:
                self.ask(name)
            self._changed.wait_for(lambda: name in self._came)
        return is_first

    def files(self, folder: Path, shards: tuple[PendingShard, ...]) -> Mapping[str, PendingFile]:
        """The `shards` of `folder` by name. Raises ModelFileError where a head cannot be read."""
        return {shard.name: PendingFile.of(folder, shard, self) for shard in shards}


@dataclass(frozen=True, slots=True)
class PendingFile:
    """The file at `path`, as a ByteSource; reading behind its `head` waits until it is there."""

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
        """The bytes [start, stop), fewer at the end. Raises ModelFileError, CheckpointError for another file."""
        if stop <= len(self.head):
            return self.head[start:stop]
        if self.arrivals.wait_for(self.path.name):
            self._check()
        return LocalFile(self.path, self.n_bytes).read(start, stop)

    def _check(self) -> None:
        file = open_local(self.path)
        if file.n_bytes != self.n_bytes or file.read(0, len(self.head)) != self.head:
            raise CheckpointError(f"{self.path.name} is not what was announced.", "Pull it again.")
