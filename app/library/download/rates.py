"""Transfer rates: the measured one and the limit."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

_WINDOW_S = 8.0


class RateLimit:
    """Limits all readers together to `bytes_per_s`; 0 is no limit."""

    def __init__(self, bytes_per_s: int, now: Callable[[], float] = time.monotonic) -> None:
        self._bytes_per_s = bytes_per_s
        self._now = now
        self._free_at_s = now()

    def wait_s(self, n_bytes: int) -> float:
        """Return how long to wait after reading `n_bytes` before reading more."""
        if not self._bytes_per_s:
            return 0.0
        now_s = self._now()
        self._free_at_s = max(self._free_at_s, now_s) + n_bytes / self._bytes_per_s
        return self._free_at_s - now_s

    async def throttle(self, n_bytes: int) -> None:
        """Wait for `wait_s(n_bytes)`."""
        if (wait_s := self.wait_s(n_bytes)) > 0:
            await asyncio.sleep(wait_s)


class Speedometer:
    """Bytes per second over the last seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seen: deque[tuple[float, int]] = deque()

    def bytes_per_s(self, n_bytes: int) -> float:
        """Record that `n_bytes` are complete now, and return the rate; 0 at first."""
        now_s = self._now()
        self._seen.append((now_s, n_bytes))
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - _WINDOW_S:
            self._seen.popleft()
        begun_s, n_begun = self._seen[0]
        return (n_bytes - n_begun) / (now_s - begun_s) if now_s > begun_s else 0.0
