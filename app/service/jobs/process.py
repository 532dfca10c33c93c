"""A verb of ours as a process: its lines of JSON, what else it says, its end.

Owns the pipes. Knows nothing of what the lines mean.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from app.processes import apart_from_terminal, child_environment, give_way
from app.service.worker_process import LastWords
from quantizer.errors import EngineError

__all__ = ["JobProcess"]

_MAX_LINE_BYTES = 8 << 20
_TOO_LONG = b"[a line of more than 8 MiB was dropped]\n"
_CHUNK_BYTES = 65536
_GRACE_S = 15.0  # from Ctrl-C on: a download writes down what it has
_LAST_WORDS_S = 0.5


class JobProcess:
    """A running verb; make it with `start`. `on_text` hears what is meant for people. `end` must be awaited."""

    def __init__(self, process: Process, on_text: Callable[[str], None]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._on_text = on_text
        self._last_words = LastWords()
        self._listener = asyncio.create_task(self._listen(process.stderr))
        self._killer: asyncio.TimerHandle | None = None

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        on_text: Callable[[str], None],
        *,
        gives_way: bool = False,
    ) -> JobProcess:
        """Start `command` in `folder`; where it `gives_way`, the app and answers go first. Raises EngineError when the
        system cannot."""
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                cwd=folder,
                env=child_environment(**environment),
                limit=_MAX_LINE_BYTES,
                **apart_from_terminal(),
            )
        except OSError as error:
            cause = f"The job's process cannot be started: {error.strerror}."
            raise EngineError(cause, "Free memory or processes.") from error
        if gives_way:
            give_way(process.pid)
        return cls(process, on_text)

    @property
    def last_words(self) -> str:
        """The last line that it wrote to standard error."""
        return next(reversed(self._last_words.lines), "")

    async def lines(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the objects that the verb prints until it closes its output; other lines are meant for people."""
        is_too_long = False  # what comes is the rest of a line that was
        while True:
            try:
                said = await self._stdout.readline()
            except ValueError:
                is_too_long = True
                continue
            if is_too_long:
                is_too_long, said = False, said and _TOO_LONG
            if not said:
                return
            try:
                line = json.loads(said)
            except ValueError:
                line = None
            if isinstance(line, dict):
                yield line
            else:
                self._on_text(said.decode("utf-8", "replace"))

    def cancel(self) -> None:
        """Do what Ctrl-C does; after 15 s the process is killed."""
        if not self._stdin.is_closing():
            self._stdin.write(b"\n")
        self._killer = self._killer or asyncio.get_running_loop().call_later(_GRACE_S, self._kill)

    async def end(self) -> int:
        """Let go of the process, which dies at once where it still runs, and return its exit status."""
        self._stdin.close()
        self._killer = self._killer or asyncio.get_running_loop().call_later(_GRACE_S, self._kill)
        try:
            status = await self._process.wait()
        finally:
            self._kill()
            self._killer.cancel()
            await asyncio.wait({self._listener}, timeout=_LAST_WORDS_S)
            self._listener.cancel()
        return status

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def _listen(self, stderr: asyncio.StreamReader) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while data := await stderr.read(_CHUNK_BYTES):
            self._last_words.feed(data)
            self._on_text(decoder.decode(data))
