"""When a model that nobody uses any more is let go.

Owns the clock of one engine. Knows nothing of how requests say how long they mean.
"""

from __future__ import annotations

import asyncio
import time

from app.service.supervisor import Supervisor

__all__ = ["KeepAlive"]


_BUSY_S = 1.0  # how long a busy engine is left alone at least


class KeepAlive:
    """Unloads the model of `engine` when it was idle for as long as the last request that said so wanted it kept.

    Until one does it stays.
    """

    def __init__(self, engine: Supervisor) -> None:
        self._engine = engine
        self._idle_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def expires_s(self) -> float | None:
        """The time since 1970 at which the model is let go if nobody asks before; None for one that stays."""
        if self._timer is None:
            return None
        return time.time() + self._timer.when() - asyncio.get_running_loop().time()

    def keep(self, idle_s: float | None) -> None:
        """Let the model stay for so many idle seconds, counted from `begin_again` on; None keeps it for good."""
        self._idle_s = idle_s

    def pause(self) -> None:
        """Count no idle seconds: somebody is using the model."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def begin_again(self) -> None:
        """Count idle seconds from now on."""
        self.pause()
        if self._idle_s is not None:
            self._timer = asyncio.get_running_loop().call_later(self._idle_s, self._let_go, self._idle_s)

    def _let_go(self, idle_s: float) -> None:
        self._timer = None
        if self._engine.is_busy:
            self._timer = asyncio.get_running_loop().call_later(max(idle_s, _BUSY_S), self._let_go, idle_s)
        else:
            self._engine.unload()
