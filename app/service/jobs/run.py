"""One job while it runs: its process started, heard, and brought to an end.

Owns how an end is called: done, failed, cancelled, interrupted. Knows nothing of other jobs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from app.job import Job, JobFailure, JobState
from app.library.removal import remove_empty_folders
from app.service.jobs.arguments import Arguments
from app.service.jobs.command import JobCommand, command_of
from app.service.jobs.course import Course, Line
from app.service.jobs.log import JobLog
from app.service.jobs.process import JobProcess
from app.settings import ENVIRONMENT_PREFIX, Settings
from quantizer.errors import StorageError, UserError

__all__ = ["Run", "Runner"]

_MEASURING = {"tune", "bench"}  # what gives way to others measures those


@dataclass(frozen=True, slots=True)
class Runner:
    """What every job runs with: `command` runs the words of a verb, as `python -m app.cli.job` does."""

    settings: Settings
    command: tuple[str, ...]


class Run:
    """Does `job` as its `arguments` say; `on_change` hears how it stands."""

    def __init__(
        self, job: Job, arguments: Arguments, runner: Runner, log: JobLog, on_change: Callable[[Job], None]
    ) -> None:
        self.arguments = arguments
        self._settings = runner.settings
        self._command = runner.command
        self._log = log
        self._on_change = on_change
        self._course = Course.begun(job, time.time())
        self._process: JobProcess | None = None
        self._is_cancelled = False

    async def to_end(self) -> Job:
        """Return the job in its end, whatever that is. Cancelled, for the service ends, it is "interrupted"."""
        self._on_change(self._course.job)
        try:
            state = await self._worked()
        except UserError as error:
            self._course = self._course.failed(JobFailure.of(error))
            state = "failed"
        except asyncio.CancelledError:
            state = "interrupted"
        self._note(f"[{state}]\n")
        return self._course.ended(state, time.time())

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
        self._course = self._course.died(status, process.last_words)
        return "failed"

    def _hear(self, line: Line) -> None:
        before = self._course.job
        try:
            self._course = self._course.after(line)
        except (KeyError, TypeError) as error:
            self._note(f"[{line} was not understood: {error!r}]\n")
            return
        if self._course.job.message != before.message and line.get("event") not in ("step", "fetching", "progress"):
            self._note(f"{self._course.job.message}\n")
        if self._course.job != before:
            self._on_change(self._course.job)

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
