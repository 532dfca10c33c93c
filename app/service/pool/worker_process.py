"""An engine worker as a child process that exchanges messages.

Owns the framing of its pipes and the error of its death. Knows nothing of requests, of models or of restarting it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncGenerator, Sequence

from app.engine.protocol.codec import decode, encode, message_length
from app.engine.protocol.messages import WorkerMessage
from app.service.child_process import ChildProcess
from quantizer.errors import EngineError

__all__ = ["WorkerProcess"]

_LENGTH_BYTES = 4
_MAX_QUOTED_LINES = 3


class WorkerProcess(ChildProcess):
    """A running worker. Make it with `run`; `end` must be awaited in every case."""

    @classmethod
    async def run(cls, command: Sequence[str]) -> WorkerProcess:
        """Start `command`. Raises EngineError where the system cannot."""
        return await cls.start(command, name="engine", environment={"GGML_NO_BACKTRACE": "1"})

    def send(self, message: WorkerMessage) -> None:
        """Queue `message` for the worker. A dead worker loses it; `messages` ends then."""
        if not self._stdin.is_closing():
            self._stdin.write(encode(message))

    async def messages(self) -> AsyncGenerator[WorkerMessage, None]:
        """Yield the worker's messages until its pipe closes. Raises EngineError for anything else that it writes."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                prefix = await self._stdout.readexactly(_LENGTH_BYTES)
                try:
                    message = decode(await self._stdout.readexactly(message_length(prefix)))
                except (ValueError, TypeError, KeyError) as error:
                    cause = f"The engine process sent an invalid message: {error}."
                    raise EngineError(cause, "Report this.") from error
                yield message

    async def death(self, grace_s: float) -> EngineError:
        """End the worker as `end` does, and return how it ended as an error."""
        status = _status_name(await self.end(grace_s))
        output = " | ".join(self.stderr_tail.lines[-_MAX_QUOTED_LINES:])
        cause = f"The engine process died ({status})" + (f"; its last output: {output}" if output else "")
        return EngineError(cause.rstrip(".") + ".", "Send the request again: a new engine is started.")


def _status_name(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
