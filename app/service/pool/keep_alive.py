"""How long one name of a model holds the engine that it shares: while in use, and for an idle time after it.

Owns the timer of that name. Independent of other names and of how requests word the time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from app.service.pool.engine_client import EngineClient

_FIRST_USE_S = 60.0  # from loading to the first use: who loads a model beforehand is about to ask it


@dataclass(frozen=True, slots=True)
class IdleLimit:
    """The idle time that a request sets: `idle_s` seconds, None for no end."""

    idle_s: float | None


class KeepAlive:
    """Holds `engine` from a use on until it was idle for `idle_s`; None holds it until another model needs the memory.

    A limit that a request sets is one of the present hold: the next one begins with the usual limit again, as Ollama's
    does (source: its server/sched.go, 0.33: `load` starts from the default). `on_release` is called at the end of each
    hold. `loop` is the clock, the running loop by default.
    """

    def __init__(
        self,
        engine: EngineClient,
        idle_s: float | None,
        on_release: Callable[[], object],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._loop = loop
        self._engine = engine
        self._usual_idle_s = self._idle_s = idle_s
        self._on_release = on_release
        self._n_uses = 0
        self._n_requests = 0
        self._is_held = False
        self._awaits_use = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_used(self) -> bool:
        """Whether a request uses the engine under this name, or waits for it."""
        return self._n_uses > 0

    @property
    def is_holding(self) -> bool:
        return self.is_used or self._is_held

    @property
    def expires_s(self) -> float | None:
        """The time since 1970 at which the hold ends without another request; None for no end."""
        if self._idle_s is None:
            return None
        left_s = self._timer.when() - self._clock.time() if self._timer is not None else self._idle_time_s
        return time.time() + left_s

    @contextmanager
    def in_use(self, limit: IdleLimit | None = None) -> Iterator[None]:
        """Hold the engine inside the context, and for the idle time after it; `limit` replaces that time."""
        self._n_uses += 1
        self._awaits_use = False
        if limit is not None:
            self._idle_s = limit.idle_s
        self._stop_timer()
        try:
            yield
        finally:
            self._n_uses -= 1
            self._is_held = self._engine.status.state != "unloaded"
            self._forget_limit()
            self.restart_timer()

    @contextmanager
    def in_request(self) -> Iterator[None]:
        """Keep the hold inside the context, where one request may use the engine several times, or not at all."""
        self._n_requests += 1
        try:
            yield
        finally:
            self._n_requests -= 1
            self.ensure_timer()

    def hold(self) -> None:
        """Hold the engine for its first use, at least a minute; the timer starts when it is idle next."""
        self._is_held = self._awaits_use = True

    def set_idle_limit(self, idle_s: float | None) -> None:
        """Hold for that many idle seconds from the next idle time on; None holds until the memory is needed."""
        self._idle_s = idle_s
        self._awaits_use = False

    def set_usual_limit(self, idle_s: float | None) -> None:
        """Begin each hold with that limit, the present one too."""
        self._usual_idle_s = idle_s
        self.set_idle_limit(idle_s)

    def expire(self) -> None:
        """End the present hold at once, or after the uses and requests that have begun."""
        if self.is_holding:
            self.set_idle_limit(0)
            self.restart_timer()

    def restart_timer(self) -> None:
        """Count idle seconds from now on, if the engine is held and not in use."""
        self._stop_timer()
        is_idle = not (self._n_uses or self._n_requests) and self._engine.status.state == "ready"
        if self._idle_s is not None and self._is_held and is_idle:
            self._timer = self._clock.call_later(self._idle_time_s, self._end_idle_time)

    def ensure_timer(self) -> None:
        """Count idle seconds unless they are being counted: the engine is idle."""
        if self._timer is None:
            self.restart_timer()

    def release(self) -> None:
        """Stop holding the engine, unless it is in use."""
        self.clear()
        self._on_release()

    def clear(self) -> None:
        """Note that the engine was unloaded; a use that waits for it goes on waiting."""
        self._stop_timer()
        self._is_held = False
        self._forget_limit()

    def _end_idle_time(self) -> None:
        self._timer = None
        if not self._n_requests:
            self.release()

    def _forget_limit(self) -> None:
        """Return to the usual limit, unless a hold with a limit of its own goes on."""
        if not self.is_holding:
            self._idle_s = self._usual_idle_s

    @property
    def _idle_time_s(self) -> float:
        assert self._idle_s is not None
        return max(self._idle_s, _FIRST_USE_S) if self._awaits_use else self._idle_s

    @property
    def _clock(self) -> asyncio.AbstractEventLoop:
        return self._loop or asyncio.get_running_loop()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
