"""Engines over contexts of their own, beside the one of most requests: batches, and deterministic answers.

Owns such a context, from its first request until it is given back. That of batches differs from the one of other
requests in what is fast: more answers share a step, and fused attention skips the cells of the others, where an unfused
one passes over all of them for each token. That of deterministic answers contains one of them and nothing else. Other
requests find their own cells as they left them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from app.engine.backend import Backend
from app.engine.loop.core import Engine
from app.engine.loop.sequence import NO_LAYOUTS
from app.engine.media.chunks import MediaLayout
from app.engine.messages import AnswerProgress
from app.engine.request import BATCH_PRIORITY, Request
from app.protocol.errors import RequestError
from app.protocol.status import Occupancy
from quantizer.system.errors import EngineError

RETRY_S = 60.0  # after there was no memory for the context

_NOTHING = Occupancy(0, 0, 0, 0)

NewBackend = Callable[[], Backend]
NewEngine = Callable[[Backend], Engine]


class SideEngine:
    """An engine over the context of `new_backend`, made with `new_engine` when a request comes."""

    def __init__(self, new_backend: NewBackend | None = None, new_engine: NewEngine | None = None) -> None:
        self._new_backend = new_backend
        self._new_engine = new_engine
        self._backend: Backend | None = None
        self._engine: Engine | None = None
        self._n_threads = 0  # that compute; 0 where nobody changes them

    @property
    def is_idle(self) -> bool:
        return self._engine is None or self._engine.is_idle

    @property
    def is_decoding(self) -> bool:
        return self._engine is None or self._engine.is_decoding

    @property
    def is_stalled(self) -> bool:
        """Whether its requests wait for embeddings."""
        return self._engine is not None and self._engine.is_stalled

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

    def submit(self, request: Request, layouts: Mapping[str, MediaLayout] = NO_LAYOUTS) -> None:
        """Queue `request`. Raises RequestError where there can be no such context, EngineError without memory for
        one."""
        if self._engine is None:
            if self._new_backend is None or self._new_engine is None:
                raise RequestError("This model gives no deterministic answers.", "Leave deterministic out.")
            self._backend = self._new_backend()
            if self._n_threads:
                self._backend.set_threads(self._n_threads)
            self._engine = self._new_engine(self._backend)
        self._engine.submit(request, layouts)

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


class BatchEngine(SideEngine):
    """The side engine of batches, while no other request runs. `on_notice` is told once why there is no memory for its
    context. Without `new_backend` every request is left to others."""

    def __init__(
        self,
        new_backend: NewBackend | None = None,
        new_engine: NewEngine | None = None,
        on_notice: Callable[[str], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(new_backend, new_engine)
        self._on_notice = on_notice
        self._clock = clock
        self._retry_at_s = 0.0
        self._has_noticed = False

    def takes(self, request: Request) -> bool:
        """Queue `request` if it is one of a batch, else return False; also without memory for the context."""
        # Scores of a prompt are the same each time only where nothing else runs (README of llama/).
        if request.priority > BATCH_PRIORITY or request.echo or self._new_backend is None:
            return False
        if self._engine is None and self._clock() < self._retry_at_s:
            return False
        try:
            self.submit(request)
        except EngineError as error:
            self._retry_at_s = self._clock() + RETRY_S
            if not self._has_noticed:
                self._has_noticed = True
                self._on_notice(
                    f"Batches are answered in the context of other requests, which is slower: {error.cause}"
                )
            return False
        return True
