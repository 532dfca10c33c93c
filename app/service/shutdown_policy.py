"""When the service ends that a face started: with that face, or with its last job where it was told to stay.

Owns that decision. Knows nothing of signals or sockets.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["UNTIL_JOBS_END", "ShutdownPolicy"]

UNTIL_JOBS_END = "jobs-end"


class ShutdownPolicy:
    """`is_owned` is False for a service in the foreground, which ends when a person ends it. `end` is set by whoever
    can end the service; `is_idle` says whether its jobs have ended and nobody watches."""

    def __init__(self, *, is_owned: bool) -> None:
        self.end: Callable[[], None] = lambda: None
        self.is_idle: Callable[[], bool] = lambda: True
        self._is_owned = is_owned
        self._stays = False
        self._has_owner = True

    @property
    def stays_until(self) -> str:
        """What the service outlives its owner for, empty for nothing."""
        return UNTIL_JOBS_END if self._stays else ""

    def stay(self) -> None:
        """Outlive the owner until the last job has ended."""
        self._stays = self._is_owned

    def lose_owner(self) -> None:
        """End now, or when that for which the service stays has come."""
        self._has_owner = False
        self.consider()

    def consider(self) -> None:
        """End where nothing is left to stay for."""
        if self._is_owned and not self._has_owner and (not self._stays or self.is_idle()):
            self.end()
