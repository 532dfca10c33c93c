"""The output of a command, of which the beginning and the end are kept."""

from __future__ import annotations

_MAX_HEAD_BYTES, _MAX_TAIL_BYTES = 512 << 10, 512 << 10


class OutputBuffer:
    """Keeps the first and the last half MiB of what is added; `n_bytes` counts all of it."""

    def __init__(self) -> None:
        self.n_bytes = 0
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        """Add more output."""
        self.n_bytes += len(data)
        n_fitting = _MAX_HEAD_BYTES - len(self._head)
        self._head += data[:n_fitting]
        self._tail += data[n_fitting:]
        if len(self._tail) > 2 * _MAX_TAIL_BYTES:
            del self._tail[:-_MAX_TAIL_BYTES]

    @property
    def n_left_out(self) -> int:
        """How many bytes between head and tail are not kept."""
        return self.n_bytes - len(self._head) - len(self._last)

    @property
    def kept(self) -> bytes:
        """The head, and the tail after a line that says how much is missing between them."""
        missing = f"\n[{self.n_left_out:,} bytes were left out here]\n".encode() if self.n_left_out else b""
        return bytes(self._head) + missing + self._last

    @property
    def _last(self) -> bytes:
        return bytes(self._tail[-_MAX_TAIL_BYTES:])
