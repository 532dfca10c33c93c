"""In which parts a file is fetched, and in which order. Pure.

Parts come from front to back, so that what is hashed in order follows close behind; they become smaller towards the
end, so that no connection works alone for long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from app.library.download.ranges import Range

__all__ = ["Schedule"]

_SMALLEST_BYTES = 4 << 20
_LARGEST_BYTES = 32 << 20


class Schedule:
    """Hands out what is `missing` to `n_connections` that work at once."""

    def __init__(self, missing: Iterable[Range], n_connections: int) -> None:
        self._waiting = deque(missing)
        self._n_bytes = sum(part.n_bytes for part in self._waiting)
        self._n_connections = n_connections

    def take(self) -> Range | None:
        """Return the next part, None when all are handed out."""
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
