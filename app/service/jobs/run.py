"""A verb of ours as a process: its lines of JSON, what else it says, its end.

Owns the pipes. Knows nothing of what the lines mean.

One job while it runs: its process started, heard, and brought to an end.

Owns how an end is called: done, failed, cancelled, interrupted. Knows nothing of other jobs.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.library.local.removal import remove_empty_folders
from app.protocol.job import Job, JobState
from app.service.jobs.arguments import Arguments
from app.service.jobs.command import JobCommand, command_of
from app.service.jobs.job_state import Line, RunningJob
from app.service.jobs.store import JobLog
from app.service.pool.worker_process import LastWords
from app.settings.settings import ENVIRONMENT_PREFIX, Settings
from quantizer.errors import EngineError, ErrorInfo, StorageError, UserError
from quantizer.process import child_environment, detached_process_options, lower_priority

__all__ = ["JobProcess", "JobRun", "Runner"]

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
                **detached_process_options(),
            )
        except OSError as error:
            cause = f"The job's process cannot be started: {error.strerror}."
            raise EngineError(cause, "Free memory or processes.") from error
        if gives_way:
            lower_priority(process.pid)
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


_MEASURING = {"tune", "bench"}  # what gives way to others measures those


@dataclass(frozen=True, slots=True)
class Runner:
    """What every job runs with: `command` runs the words of a verb, as `python -m app.cli.job_process` does."""

    settings: Settings
    command: tuple[str, ...]


class JobRun:
    """Does `job` as its `arguments` say; `on_change` hears how it stands."""

    def __init__(
        self, job: Job, arguments: Arguments, runner: Runner, log: JobLog, on_change: Callable[[Job], None]
    ) -> None:
        self.arguments = arguments
        self._settings = runner.settings
        self._command = runner.command
        self._log = log
        self._on_change = on_change
        self._running = RunningJob.begun(job, time.time())
        self._process: JobProcess | None = None
        self._is_cancelled = False

    async def to_end(self) -> Job:
        """Return the job in its end, whatever that is. Cancelled, for the service ends, it is "interrupted"."""
        self._on_change(self._running.job)
        try:
            state = await self._worked()
        except UserError as error:
            self._running = self._running.failed(ErrorInfo.of(error))
            state = "failed"
        except asyncio.CancelledError:
            state = "interrupted"
        self._note(f"[{state}]\n")
        return self._running.ended(state, time.time())

    def cancel(self) -> None:
        """Let the verb end as with Ctrl-C, without waiting for it."""
        self._is_cancelled = True
        if self._process is not None:
            self._process.cancel()

    async def _worked(self) -> JobState:
        command = await asyncio.to_thread(command_of, self.arguments, self._settings)
        _make(command)
        try:
            return await self._ran(command)
        finally:
            if command.folder is not None and command.folder.is_relative_to(self._settings.models_dir):
                remove_empty_folders(command.folder)

    async def _ran(self, command: JobCommand) -> JobState:
        self._note(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] localllm {' '.join(command.words)}\n")
        process = await JobProcess.start(
            [*self._command, *command.words],
            self._environment(),
            self._log.folder,
            self._note,
            gives_way=self.arguments.kind not in _MEASURING,
        )
        try:
            self._process = process
            if self._is_cancelled:  # while it was started
                process.cancel()
            async for line in process.lines():
                self._hear(line)
        finally:
            status = await process.end()
        if status == 0:
            return "done"
        if self._is_cancelled:
            return "cancelled"
        self._running = self._running.died(status, process.last_words)
        return "failed"

    def _hear(self, line: Line) -> None:
        before = self._running.job
        try:
            self._running = self._running.after(line)
        except (KeyError, TypeError) as error:
            self._note(f"[{line} was not understood: {error!r}]\n")
            return
        if self._running.job.message != before.message and line.get("event") not in ("step", "fetching", "progress"):
            self._note(f"{self._running.job.message}\n")
        if self._running.job != before:
            self._on_change(self._running.job)

    def _note(self, text: str) -> None:
        with suppress(OSError):  # a full disk ends the job itself, with an error that says so
            self._log.append(text)

    def _environment(self) -> dict[str, str]:
        """What the verb must not read otherwise than the service does."""
        folders = {"DATA_DIR": self._settings.data_dir, "CACHE_DIR": self._settings.cache_dir}
        return {f"{ENVIRONMENT_PREFIX}{name}": str(folder) for name, folder in folders.items()}


def _make(command: JobCommand) -> None:
    if command.folder is None:
        return
    try:
        command.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{command.folder} cannot be made: {error.strerror}.", "Check its disk.") from error
