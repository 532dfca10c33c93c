"""When a service ends that a user interface started: with that process, or with its last job.

Owns that decision. Independent of signals and sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

__all__ = ["ShutdownPolicy"]


class ShutdownPolicy:
    """`is_owned` is False for a service in the foreground, which ends when its user ends it.

    `end`, set later, ends the service; `is_idle` says whether its jobs have ended and nobody is subscribed to them.
    """

    def __init__(self, *, is_owned: bool) -> None:
        self.end: Callable[[], None] = lambda: None
        self.is_idle: Callable[[], bool] = lambda: True
        self._is_owned = is_owned
        self._stays = False
        self._has_owner = True

    @property
    def stays_until(self) -> Literal["", "jobs-end"]:
        """What the service outlives its owner for, empty for nothing."""
        return "jobs-end" if self._stays else ""

    def stay(self) -> None:
        """Outlive the owner until the last job has ended."""
        self._stays = self._is_owned

    def lose_owner(self) -> None:
        """End now, or after the last job."""
        self._has_owner = False
        self.end_if_due()

    def end_if_due(self) -> None:
        """End the service if it has nothing to stay for."""
        if self._is_owned and not self._has_owner and (not self._stays or self.is_idle()):
            self.end()
