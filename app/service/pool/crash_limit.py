"""When starting an engine again has become pointless. Pure but for the clock it is given."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from quantizer.errors import EngineError, UserError

__all__ = ["CrashLimit"]


class CrashLimit:
    """Counts failures: `max_failures` within `window_s` seconds, with no finished answer between, are too many."""

    def __init__(
        self, max_failures: int = 3, window_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.max_failures = max_failures
        self.window_s = window_s
        self._clock = clock
        self._failures_s: deque[float] = deque(maxlen=max_failures)

    def record_failure(self) -> None:
        self._failures_s.append(self._clock())

    def record_success(self) -> None:
        self._failures_s.clear()

    @property
    def is_reached(self) -> bool:
        """True until the window has moved past the oldest of the counted failures."""
        return len(self._failures_s) == self.max_failures and self._clock() - self._failures_s[0] < self.window_s

    def explained(self, error: UserError) -> UserError:
        """Return `error`, the last failure, with why nothing is tried again where the limit is reached."""
        if not self.is_reached:
            return error
        cause = f"The engine failed {self.max_failures} times within a minute. {error.cause}"
        return EngineError(cause, "Try a smaller --ctx or another model; a new attempt is possible in a minute.")
