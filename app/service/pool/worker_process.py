"""An engine worker as a child process that exchanges messages.

Owns their framing in its pipes. Independent of requests, of models and of restarting it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TypeAlias

from app.engine.protocol.codec import decode, encode, message_length
from app.engine.protocol.messages import WorkerMessage
from quantizer.errors import EngineError
from quantizer.process import ChildProcess

__all__ = ["StartWorker", "WorkerProcess"]

_NAME = "engine process"
_LENGTH_BYTES = 4
_BUFFER_BYTES = 65536


class WorkerProcess:
    """A running worker. Make it with `start`; `end` must be awaited in every case."""

    def __init__(self, child: ChildProcess) -> None:
        self._child = child

    @classmethod
    async def start(cls, command: Sequence[str]) -> WorkerProcess:
        """Start `command`. Raises EngineError where the system cannot."""
        environment = {"GGML_NO_BACKTRACE": "1"}
        return cls(await ChildProcess.start(command, _NAME, environment, max_line_bytes=_BUFFER_BYTES))

    @property
    def pid(self) -> int:
        return self._child.pid

    def send(self, message: WorkerMessage) -> None:
        """Queue `message` for the worker. A dead worker loses it; `messages` ends then."""
        self._child.write(encode(message))

    async def messages(self) -> AsyncGenerator[WorkerMessage, None]:
        """Yield the worker's messages until its pipe closes. Raises EngineError for anything else that it writes."""
        stdout = self._child.stdout
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                prefix = await stdout.readexactly(_LENGTH_BYTES)
                try:
                    message = decode(await stdout.readexactly(message_length(prefix)))
                except (ValueError, TypeError, KeyError) as error:
                    cause = f"The engine process sent an invalid message: {error}."
                    raise EngineError(cause, "Report this.") from error
                yield message

    async def end(self, grace_s: float) -> EngineError:
        """Close the worker's stdin, kill it unless it ends within `grace_s`, and return how it ended as an error."""
        status = await self._child.end(grace_s)
        return self._child.exit_error(_NAME, status, "Send the request again: a new engine is started.")


# Starts a worker. Raises EngineError where the system cannot.
StartWorker: TypeAlias = Callable[[], Awaitable[WorkerProcess]]
