"""One engine worker as an operating-system process: started, fed frames, read, ended.

Owns the pipes and the worker's last words. Knows nothing of requests, of models or of starting it again: that is the
supervisor's.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import signal
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncGenerator, Sequence

from app.engine.protocol.codec import decode, encode, message_length
from app.engine.protocol.messages import WorkerMessage
from app.terminal import printable
from quantizer.errors import EngineError, redact_paths
from quantizer.process import child_environment, detached_process_options

__all__ = ["LastWords", "WorkerProcess"]

_LENGTH_BYTES = 4
_N_LINES_KEPT = 50
_N_LINES_QUOTED = 3
_MAX_LINE_CHARACTERS = 500
_CHUNK_BYTES = 65536
_LAST_WORDS_S = 0.3


class LastWords:
    """The last 50 lines a process wrote to its standard error, whatever bytes they were, without folders: native code
    says in which one it was built."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_N_LINES_KEPT)
        self._open_line = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> None:
        """Take more bytes; lines may be cut anywhere and are kept up to 500 characters."""
        *whole, rest = (self._open_line + self._decoder.decode(data)).split("\n")
        self._lines.extend(kept for line in whole if (kept := _told(line)))
        self._open_line = rest[:_MAX_LINE_CHARACTERS]

    @property
    def lines(self) -> tuple[str, ...]:
        rest = _told(self._open_line)
        return (*self._lines, rest) if rest else tuple(self._lines)


def _told(line: str) -> str:
    return redact_paths(printable(line).strip()[:_MAX_LINE_CHARACTERS])


class WorkerProcess:
    """A running worker. Make it with `start`; `end` must be awaited in every case."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._last_words = LastWords()
        self._listener = asyncio.create_task(self._listen(process.stderr))

    @classmethod
    async def start(cls, command: Sequence[str]) -> WorkerProcess:
        """Start `command`. Raises EngineError when the system cannot."""
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                env=child_environment(GGML_NO_BACKTRACE="1"),
                **detached_process_options(),
            )
        except OSError as error:
            cause = f"The engine process cannot be started: {error.strerror}."
            raise EngineError(cause, "Free memory or processes.") from error
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: WorkerMessage) -> None:
        """Queue `message` for the worker. A dead worker loses it; `messages` ends then."""
        if not self._stdin.is_closing():
            self._stdin.write(encode(message))

    async def messages(self) -> AsyncGenerator[WorkerMessage, None]:
        """Yield the worker's messages until its pipe closes. Raises EngineError when it writes something else."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                prefix = await self._stdout.readexactly(_LENGTH_BYTES)
                try:
                    message = decode(await self._stdout.readexactly(message_length(prefix)))
                except (ValueError, TypeError, KeyError) as error:
                    cause = f"The engine process sent an invalid message: {error}."
                    raise EngineError(cause, "Report this.") from error
                yield message

    async def end(self, grace_s: float) -> EngineError:
        """Close the worker's input, kill it unless it ends within `grace_s`; return how it ended as an error."""
        self._stdin.close()
        try:
            async with asyncio.timeout(grace_s):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        finally:
            await asyncio.wait({self._listener}, timeout=_LAST_WORDS_S)
            self._listener.cancel()
        return self._death(self._process.returncode or 0)

    async def _listen(self, stderr: asyncio.StreamReader) -> None:
        while data := await stderr.read(_CHUNK_BYTES):
            self._last_words.feed(data)

    def _death(self, status: int) -> EngineError:
        words = " | ".join(self._last_words.lines[-_N_LINES_QUOTED:])
        cause = f"The engine process died ({_status_name(status)})" + (f"; its last words: {words}" if words else "")
        return EngineError(cause.rstrip(".") + ".", "Send the request again: a new engine is started.")


def _status_name(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
