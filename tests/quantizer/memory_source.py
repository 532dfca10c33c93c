"""A ByteSource over bytes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Memory"]


@dataclass(frozen=True)
class Memory:
    """A source of bytes that lies in memory."""

    data: bytes

    @property
    def n_bytes(self) -> int:
        return len(self.data)

    def read(self, start: int, stop: int) -> bytes:
        return self.data[start:stop]
