"""Batches in a context of their own: requests that nobody waits for, computed while no other request runs.

Owns that context, from the first request of a batch until none is left. It differs from the one of other requests in
what is fast: more answers share a step, and fused attention skips the cells of the others, where an unfused one passes
over all of them for each token. Other requests go first and find their own cells as they left them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from app.engine.backend import Backend
from app.engine.loop.core import Engine
from app.engine.messages import AnswerProgress
from app.engine.request import BATCH_PRIORITY, Request
from app.protocol.status import Occupancy
from quantizer.system.errors import EngineError

RETRY_S = 60.0  # after there was no memory for the context

_NOTHING = Occupancy(0, 0, 0, 0)


class BatchEngine:
    """An engine over the context of `new_backend`, made with `new_engine` when a request of a batch comes. `on_notice`
    is told once why there is no memory for that. Without `new_backend` every request is left to others."""

    def __init__(
        self,
        new_backend: Callable[[], Backend] | None = None,
        new_engine: Callable[[Backend], Engine] | None = None,
        on_notice: Callable[[str], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._new_backend = new_backend
        self._new_engine = new_engine
        self._on_notice = on_notice
        self._clock = clock
        self._backend: Backend | None = None
        self._engine: Engine | None = None
        self._n_threads = 0  # that compute; 0 where nobody changes them
        self._retry_at_s = 0.0
        self._has_noticed = False

    @property
    def is_idle(self) -> bool:
        return self._engine is None or self._engine.is_idle

    @property
    def occupancy(self) -> Occupancy:
        """Return what is running, waiting and cached; callable from any thread."""
        engine = self._engine
        return _NOTHING if engine is None else engine.occupancy

    @property
    def running(self) -> tuple[AnswerProgress, ...]:
        """Return the running answers; callable from any thread."""
        engine = self._engine
        return () if engine is None else engine.running

    def submit(self, request: Request) -> bool:
        """Queue `request` if it is one of a batch, else return False; also without memory for the context."""
        # Scores of a prompt are the same each time only where nothing else runs (README of llama/).
        if request.priority > BATCH_PRIORITY or request.echo or not self._open():
            return False
        assert self._engine is not None
        self._engine.submit(request)
        return True

    def step(self) -> None:
        """Compute one batch of the requests here."""
        if self._engine is not None:
            self._engine.step()

    def end_aborted(self) -> None:
        """End the aborted and late requests, while others are computed."""
        if self._engine is not None:
            self._engine.end_aborted_and_late()

    def interrupt(self) -> None:
        """Let the step that is being computed end early, from any thread: somebody waits."""
        if (engine := self._engine) is not None:
            engine.interrupt()

    def abort(self, request_id: str) -> None:
        """End a request, from any thread."""
        if (engine := self._engine) is not None:
            engine.abort(request_id)

    def end_thought(self, request_id: str) -> None:
        if self._engine is not None:
            self._engine.end_thought(request_id)

    def forget(self, conversations: Collection[str]) -> None:
        if self._engine is not None:
            self._engine.forget(conversations)

    def set_threads(self, n_threads: int) -> None:
        self._n_threads = n_threads
        if self._backend is not None:
            self._backend.set_threads(n_threads)

    def close(self) -> None:
        """End all requests as aborted and give the memory back. The next request makes a new context."""
        engine, backend, self._engine, self._backend = self._engine, self._backend, None, None
        if engine is not None:
            engine.close()
        if backend is not None:
            backend.close()

    def _open(self) -> bool:
        if self._engine is not None:
            return True
        if self._new_backend is None or self._new_engine is None or self._clock() < self._retry_at_s:
            return False
        try:
            self._backend = self._new_backend()
        except EngineError as error:
            self._retry_at_s = self._clock() + RETRY_S
            if not self._has_noticed:
                self._has_noticed = True
                self._on_notice(
                    f"Batches are answered in the context of other requests, which is slower: {error.cause}"
                )
            return False
        if self._n_threads:
            self._backend.set_threads(self._n_threads)
        self._engine = self._new_engine(self._backend)
        return True
