"""For how long one name of a model holds the engine that it shares: while it is used, and a while longer.

Owns the clock of that name. Knows nothing of other names, nor of how requests say how long they mean.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.service.pool.engine_life import EngineLife

__all__ = ["KeepAlive"]


class KeepAlive:
    """Holds `engine` from a use on until it was idle for `idle_s`, or as long as the last request that said so wanted.

    None holds it until another model needs its room. `when_let_go` hears of the end of each hold.
    """

    def __init__(self, engine: EngineLife, idle_s: float | None, when_let_go: Callable[[], object]) -> None:
        self._engine = engine
        self._idle_s = idle_s
        self._when_let_go = when_let_go
        self._n_uses = 0
        self._is_kept = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_used(self) -> bool:
        """Whether somebody uses the engine under this name, or waits for it."""
        return self._n_uses > 0

    @property
    def is_holding(self) -> bool:
        return self.is_used or self._is_kept

    @property
    def expires_s(self) -> float | None:
        """The time since 1970 at which the hold ends if nobody asks before; None for one that stays."""
        if self._idle_s is None:
            return None
        left_s = self._timer.when() - asyncio.get_running_loop().time() if self._timer is not None else self._idle_s
        return time.time() + left_s

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Hold the engine for as long as this lasts, and for the idle seconds after it."""
        self._n_uses += 1
        self._pause()
        try:
            yield
        finally:
            self._n_uses -= 1
            self._is_kept = self._engine.status.state != "unloaded"
            self.restart_timer()

    def hold(self) -> None:
        """Hold the engine though nobody uses it yet; the clock runs from its next rest on."""
        self._is_kept = True

    def keep(self, idle_s: float | None) -> None:
        """Hold for so many idle seconds, counted from the next rest on; None until room is needed."""
        self._idle_s = idle_s

    def restart_timer(self) -> None:
        """Count idle seconds from now on, where the engine is held and not used."""
        self._pause()
        is_idle = self._is_kept and not self._n_uses and self._engine.status.state == "ready"
        if self._idle_s is not None and is_idle:
            self._timer = asyncio.get_running_loop().call_later(self._idle_s, self.let_go)

    def rest(self) -> None:
        """Count idle seconds unless they are counted already: the engine has nothing to do."""
        if self._timer is None:
            self.restart_timer()

    def let_go(self) -> None:
        """Hold the engine no more, unless it is used."""
        self.lose()
        self._when_let_go()

    def lose(self) -> None:
        """Know that the engine went, for whatever reason; a use that waits for it goes on waiting."""
        self._pause()
        self._is_kept = False

    def _pause(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
