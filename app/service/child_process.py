"""A child process of the service, with pipes: started, its stderr collected, ended.

Owns the pipes and the last lines of stderr. Knows nothing of what is written to or read from it.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from app.terminal import printable
from quantizer.errors import EngineError, redact_paths
from quantizer.process import child_environment, detached_process_options

__all__ = ["ChildProcess", "StderrTail"]

_MAX_LINES = 50
_MAX_LINE_CHARACTERS = 500
_CHUNK_BYTES = 65536
_STDERR_TIMEOUT_S = 0.5  # for what a child wrote last; its own children may hold the pipe open


class StderrTail:
    """The last 50 lines of a process's stderr in any bytes, without folders: native code prints its source's."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_MAX_LINES)
        self._open_line = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> str:
        """Add bytes, cut anywhere, and return their text. Lines are limited to 500 characters."""
        text = self._decoder.decode(data)
        *whole, rest = (self._open_line + text).split("\n")
        self._lines.extend(clean for line in whole if (clean := _clean(line)))
        self._open_line = rest[:_MAX_LINE_CHARACTERS]
        return text

    @property
    def lines(self) -> tuple[str, ...]:
        rest = _clean(self._open_line)
        return (*self._lines, rest) if rest else tuple(self._lines)


def _clean(line: str) -> str:
    return redact_paths(printable(line).strip()[:_MAX_LINE_CHARACTERS])


class ChildProcess:
    """A running child. Make it with `start`; `end` must be awaited in every case.

    `on_stderr` receives the text of stderr as it comes.
    """

    def __init__(self, process: Process, on_stderr: Callable[[str], object] = lambda _text: None) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.stderr_tail = StderrTail()
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._on_stderr = on_stderr
        self._reader = asyncio.create_task(self._read_stderr(process.stderr))

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        *,
        name: str,
        environment: Mapping[str, str],
        folder: Path | None = None,
        max_line_bytes: int = 65536,
        on_stderr: Callable[[str], object] = lambda _text: None,
    ) -> Self:
        """Start `command` in `folder` with `environment` added. Raises EngineError that calls it `name`."""
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                cwd=folder,
                env=child_environment(**environment),
                limit=max_line_bytes,
                **detached_process_options(),
            )
        except OSError as error:
            cause = f"The {name} process cannot be started: {error.strerror}."
            raise EngineError(cause, "Free memory or processes.") from error
        return cls(process, on_stderr)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def end(self, grace_s: float) -> int:
        """Close its stdin, kill it unless it ends within `grace_s`, and return its exit status."""
        self._stdin.close()
        try:
            async with asyncio.timeout(grace_s):
                await self._process.wait()
        except TimeoutError:
            pass
        finally:
            self.kill()
            status = await self._process.wait()
            await asyncio.wait({self._reader}, timeout=_STDERR_TIMEOUT_S)
            self._reader.cancel()
        return status

    async def _read_stderr(self, stderr: asyncio.StreamReader) -> None:
        while data := await stderr.read(_CHUNK_BYTES):
            self._on_stderr(self.stderr_tail.feed(data))
