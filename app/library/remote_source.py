"""The beginning of a file behind a URL as a ByteSource: enough for its header, none of its weights.

Owns how far is read ahead. Knows nothing of HTTP.
"""

from __future__ import annotations

from typing import Protocol

from quantizer.errors import ModelFileError

__all__ = ["RemoteSource"]

_FIRST_BLOCK_BYTES, _LARGEST_BLOCK_BYTES = 512 << 10, 2 << 20
_MOST_BYTES = 64 << 20  # of a header; vocabularies of 250,000 tokens with their merges take 12 MiB


class Parts(Protocol):
    """What reads parts of a file; its length is known after the first."""

    n_bytes: int | None

    def read(self, start: int, stop: int) -> bytes: ...


class RemoteSource:
    """Keeps all that was read, from the first byte on: a header is walked, and then looked up in.

    Blocks grow with what is there, so that a small header costs little and a large one few requests. Reads the first
    block at once. Raises HubError, and ModelFileError for what is no header.
    """

    def __init__(self, parts: Parts, name: str) -> None:
        self._parts = parts
        self._name = name
        self._head = bytearray(parts.read(0, _FIRST_BLOCK_BYTES))

    @property
    def n_bytes(self) -> int:
        """Length of the whole file in bytes."""
        assert self._parts.n_bytes is not None
        return self._parts.n_bytes

    @property
    def n_bytes_read(self) -> int:
        """How many bytes came over the network."""
        return len(self._head)

    def read(self, start: int, stop: int) -> bytes:
        """The bytes [start, stop), fewer at the end of the file. Raises ModelFileError where no header reaches."""
        stop = min(stop, self.n_bytes)
        if stop > _MOST_BYTES:
            raise ModelFileError(
                f"The header of {self._name} is longer than {_MOST_BYTES >> 20} MiB.", "Choose another file."
            )
        while len(self._head) < stop:
            begin = len(self._head)
            end = max(stop, begin + min(begin, _LARGEST_BLOCK_BYTES))
            self._head += self._parts.read(begin, min(end, self.n_bytes))
        return bytes(self._head[start:stop])
