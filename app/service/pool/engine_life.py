"""The life of one model's engine: loaded when somebody asks, used, let go, and a fresh worker when one dies.

Owns the worker process. Who uses it at the moment is known at its door. Knows nothing of what an engine is asked, nor
of other engines.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from app.engine.protocol.messages import (
    EngineConfig,
    Failed,
    Load,
    LoadProgress,
    Notice,
    Planned,
    Ready,
    UnfitPolicy,
    WorkerMessage,
)
from app.service.pool.crash_limit import CrashLimit
from app.service.pool.current_worker import CurrentWorker
from app.service.pool.door import Door
from app.service.pool.engine_status import EngineStatus, after
from app.service.pool.succession import Succession
from quantizer.errors import EngineError, UnfitError, UserError

__all__ = ["Admit", "EngineLife", "admit_at_once"]

# Waits until an engine may load. Raises what speaks against it.
Admit: TypeAlias = Callable[["EngineLife"], Awaitable[None]]


async def admit_at_once(_: EngineLife) -> None:
    """For an engine that has the machine to itself."""


class EngineLife(ABC):
    """The engine of the model at `model_path`, run by `command`.

    Whoever uses it has the model loaded, once `admit` lets it. A worker that dies is started again: at once if it had
    been ready, with the next use otherwise. After 3 failures within a minute the state stays "failed" until that is
    over.
    """

    def __init__(
        self,
        model_path: Path,
        config: EngineConfig,
        command: Sequence[str],
        limit: CrashLimit | None = None,
        admit: Admit = admit_at_once,
    ) -> None:
        self.status = EngineStatus(state="unloaded")
        self.model_path = model_path
        self.door = Door()
        self._config = config
        self._admit = admit
        self._limit = limit or CrashLimit()
        self._worker = CurrentWorker(command)
        self._lives = Succession()
        self._settled = asyncio.Event()  # this loading is over, well or badly
        self._is_wanted = False  # by somebody who does not wait for it
        self._is_admitted = False
        self._is_stopped = False

    @abstractmethod
    def _take_mail(self, frame: WorkerMessage) -> None:
        """Take a frame that answers somebody. Raises EngineError for one that no worker sends."""

    @abstractmethod
    def _fail_mail(self, request_id: str, error: UserError) -> None:
        """End what was asked under an id, or everything where that is empty, with `error`."""

    @property
    def config(self) -> EngineConfig:
        """How the model is loaded."""
        return self._config

    @property
    def is_busy(self) -> bool:
        """Whether the engine loads, answers or is asked something."""
        return self.status.state == "loading" or self.door.n_inside > 0

    @property
    def is_available(self) -> bool:
        """Whether it would begin at once with what it is asked."""
        return self.status.state == "ready" and self.door.is_open

    @property
    def holds_memory(self) -> bool:
        """Whether a worker lives, or is about to."""
        return self._is_admitted

    @property
    def worker_pid(self) -> int | None:
        return self._worker.pid

    def start(self, when_unfit: UnfitPolicy | None = None) -> None:
        """Begin loading, whether anybody waits for it or not; `when_unfit` holds from then on.

        Nothing happens while a worker lives, or when too many have failed of late.
        """
        self._is_wanted = True
        self._start(when_unfit)

    def reload(self, change: Callable[[EngineConfig], EngineConfig]) -> None:
        """Load the model again under a changed config, once its worker has ended; what is under way fails."""
        self._config = change(self._config)
        self._is_wanted = True
        if self.status.state != "unloaded":  # else it ends already
            self._lives.end()
        self._fail_mail("", EngineError("The model is being loaded again, otherwise than before.", "Ask again."))
        self._settled.set()  # who waits for the loading before waits for this one
        self._begin_life()

    def unload(self) -> bool:
        """Let the worker go until somebody asks again, and return whether it goes: one at work stays.

        Ending goes on after this.
        """
        if self.status.state != "ready" or self.is_busy:
            return False
        self._let_go()
        return True

    @property
    def settled(self) -> asyncio.Event:
        """Set when the loading that is under way, or was the last, is over."""
        return self._settled

    async def ended(self) -> None:
        """Wait until the worker that was let go is gone, and its memory with it."""
        await self._lives.ended(with_last=self.status.state == "unloaded")

    async def ready(self) -> Ready:
        """Wait for the model, starting a worker if none lives. Raises the error that loading ended with."""
        async with self.in_use() as ready:
            return ready

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[Ready]:
        """Give the loaded model, which stays loaded for as long as this lasts. Raises the error of loading."""
        while True:
            await self.door.enter()
            try:
                self._start()
                while self.status.state == "loading":
                    await self._settled.wait()
                if self.status.ready is not None:
                    yield self.status.ready
                    return
                if self.status.error is not None:
                    raise self.status.error.with_traceback(None)
            finally:
                self.door.leave()
                self._withdraw_unwanted()
                self._tell_rest()

    async def stop(self) -> None:
        """End the worker for good; what is under way fails, and so does what comes later."""
        self._is_stopped = True
        if self.status.state != "unloaded":  # else it ends already
            self._lives.end()
        await self._lives.ended(with_last=True)
        gone = EngineError("The model was unloaded.", "Send the request again.")
        self._fail_mail("", gone)
        self._settle_failed(gone)

    def _start(self, when_unfit: UnfitPolicy | None = None) -> None:
        is_alive = self._lives.is_alive and self.status.state != "unloaded"
        if not is_alive and not self._limit.is_reached and not self._is_stopped:
            if when_unfit is not None:
                self._config = replace(self._config, when_unfit=when_unfit)
            self._begin_life()

    def _begin_life(self) -> None:
        self._begin_loading()
        self._lives.begin(self._live)

    def _begin_loading(self) -> None:
        self._settled = asyncio.Event()
        self.status = EngineStatus()
        self.door.tell_work()

    def _let_go(self) -> None:
        self.status = EngineStatus(state="unloaded")
        self._is_wanted = False
        self._settled.set()
        self._lives.end()
        self.door.tell_gone()

    def _withdraw_unwanted(self) -> None:
        """Give up waiting for room once nobody waits for the model any more."""
        is_queued = self.status.state == "loading" and not self._is_admitted
        if is_queued and not self.door.n_inside and not self._is_wanted:
            self._let_go()

    def _tell_rest(self) -> None:
        if not self.is_busy:
            self.door.tell_rest()

    async def _live(self) -> None:
        """Keep a worker alive."""
        while await self._live_once():
            self._begin_loading()

    async def _live_once(self) -> bool:
        """Run one worker to its end; return whether another should follow at once."""
        try:
            await self._admit(self)
        except UserError as refusal:
            self._settle_failed(refusal)
            return False
        self._is_admitted = True
        try:
            error = await self._worker.run(Load(str(self.model_path), self._config), self._take)
        except EngineError as refused:
            error = refused
        finally:
            self._is_admitted = False
        if not isinstance(self.status.error, UnfitError):  # nothing failed: somebody is to be asked
            self._limit.record_failure()
        self._fail_mail("", error)
        was_ready = self.status.ready is not None
        self._settle_failed(self.status.error or error)
        return was_ready and not self._limit.is_reached

    def _settle_failed(self, error: UserError) -> None:
        self.status = replace(self.status, state="failed", ready=None, error=self._limit.explained(error))
        self._settled.set()
        self._tell_rest()

    def _take(self, frame: WorkerMessage) -> UserError | None:
        match frame:
            case LoadProgress() | Notice() | Planned() | Ready():
                self.status = after(self.status, frame)
                if isinstance(frame, Ready):
                    self._settled.set()
                    self._tell_rest()
            case Failed():
                error = frame.error.error()
                if frame.request_id:
                    self._fail_mail(frame.request_id, error)
                else:
                    self.status = replace(self.status, error=error)
                    return error
            case _:
                self._take_mail(frame)
        return None
