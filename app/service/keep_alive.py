"""When a model that nobody uses any more is let go.

Owns the clock of one engine. Knows nothing of how requests say how long they mean.
"""

from __future__ import annotations

import asyncio
import time

from app.service.door import Watcher
from app.service.engine_life import EngineLife

__all__ = ["KeepAlive"]


class KeepAlive:
    """Unloads the model of `engine` when it was idle for `idle_s`, or as long as the last request that said so wanted.

    None keeps it, until another model needs its room.
    """

    def __init__(self, engine: EngineLife, idle_s: float | None = None) -> None:
        self._engine = engine
        self._idle_s = idle_s
        self._timer: asyncio.TimerHandle | None = None
        engine.door.watch(Watcher(work=self.pause, rest=self.begin_again))

    @property
    def expires_s(self) -> float | None:
        """The time since 1970 at which the model is let go if nobody asks before; None for one that stays."""
        if self._idle_s is None:
            return None
        left_s = self._timer.when() - asyncio.get_running_loop().time() if self._timer is not None else self._idle_s
        return time.time() + left_s

    def keep(self, idle_s: float | None) -> None:
        """Let the model stay for so many idle seconds, counted from its next rest on; None keeps it."""
        self._idle_s = idle_s

    def pause(self) -> None:
        """Count no idle seconds: somebody is using the model."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def begin_again(self) -> None:
        """Count idle seconds from now on."""
        self.pause()
        if self._idle_s is not None and self._engine.status.state == "ready":
            self._timer = asyncio.get_running_loop().call_later(self._idle_s, self._let_go)

    def _let_go(self) -> None:
        self._timer = None
        self._engine.unload()  # one that has got work meanwhile begins again when that is done
