"""The worker that an engine has at the moment, if any: frames are sent to it, and it is heard until its end.

Owns that it ends with whoever hears it, and how much time it gets for that. Knows nothing of what frames mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import TypeAlias

from app.engine.protocol.messages import Load, WorkerMessage
from app.service.pool.worker_process import WorkerProcess
from quantizer.errors import UserError

__all__ = ["CurrentWorker", "Take"]

_GRACE_AFTER_DEATH_S = 0.3  # running answers wait for it, and they learn of the death within a second
_GRACE_AT_STOP_S = 6.0  # a worker saves what it computed for 3 s at most, and writes it

# Takes a frame, and returns the error for which the worker is to end, if that is what the frame says.
Take: TypeAlias = Callable[[WorkerMessage], UserError | None]


class CurrentWorker:
    """None at first. `command` starts one."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = tuple(command)
        self._process: WorkerProcess | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def send(self, frame: WorkerMessage) -> None:
        """Send `frame` where there is a worker; without one nobody is asked, and whoever waits is told of its end."""
        if self._process is not None:
            self._process.send(frame)

    async def run(self, load: Load, take: Take) -> UserError:
        """Start a worker with `load`, give its frames to `take`, and return what it ended of; it is gone then.

        Cancelled, it gives the worker time to save what it computed. Raises EngineError where none can be started.
        """
        process = self._process = await WorkerProcess.start(self._command)
        grace_s = _GRACE_AFTER_DEATH_S
        try:
            process.send(load)
            async with aclosing(process.frames()) as frames:
                async for frame in frames:
                    if (error := take(frame)) is not None:
                        return error
        except asyncio.CancelledError:
            grace_s = _GRACE_AT_STOP_S
            raise
        finally:
            self._process = None
            death = await process.end(grace_s)
        return death
