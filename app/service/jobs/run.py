"""One running job: its verb in a process of its own, from the start to the end.

Owns that process, and whether a job ended as done, failed, cancelled or interrupted. Independent of other jobs.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from app.library.local.removal import remove_empty_folders
from app.protocol.job import Job, JobState
from app.service.jobs.arguments import Arguments
from app.service.jobs.command import JobCommand, command_of
from app.service.jobs.job_state import RunningJob
from app.service.jobs.store import JobLog
from app.settings.settings import ENVIRONMENT_PREFIX, Settings
from quantizer.errors import ErrorInfo, StorageError, UserError
from quantizer.process import ChildProcess, lower_priority

__all__ = ["JobRun"]

_GRACE_S = 15.0  # from Ctrl-C on: a download saves its progress
_FULL_PRIORITY = {"tune", "bench"}  # at low priority these would measure other programs
_FREQUENT_EVENTS = ("step", "fetching", "progress")


class JobRun:
    """Runs `job` with its `arguments` by `command`, which runs verbs as `python -m app.cli.job_process` does.

    `on_change` receives the job whenever it changes.
    """

    def __init__(
        self,
        job: Job,
        arguments: Arguments,
        settings: Settings,
        command: Sequence[str],
        log: JobLog,
        on_change: Callable[[Job], None],
    ) -> None:
        self.arguments = arguments
        self._settings = settings
        self._command = tuple(command)
        self._log = log
        self._on_change = on_change
        self._running = RunningJob.begun(job, time.time())
        self._process: ChildProcess | None = None
        self._is_cancelled = False

    async def to_end(self) -> Job:
        """Run the job and return it ended, in whatever way. Cancelled, it is "interrupted": the service ends."""
        self._on_change(self._running.job)
        try:
            state = await self._run()
        except UserError as error:
            self._running = self._running.failed(ErrorInfo.of(error))
            state = "failed"
        except asyncio.CancelledError:
            state = "interrupted"
        self._write_log(f"[{state}]\n")
        return self._running.ended(state, time.time())

    def cancel(self) -> None:
        """Interrupt the verb as Ctrl-C does, without waiting for its end."""
        self._is_cancelled = True
        if self._process is not None:
            self._process.write(b"\n")
            self._process.kill_after(_GRACE_S)

    async def _run(self) -> JobState:
        command = await asyncio.to_thread(command_of, self.arguments, self._settings)
        _make_folder(command)
        try:
            return await self._run_command(command)
        finally:
            if command.folder is not None and command.folder.is_relative_to(self._settings.models_dir):
                remove_empty_folders(command.folder)

    async def _run_command(self, command: JobCommand) -> JobState:
        self._write_log(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] localllm {' '.join(command.argv)}\n")
        process = self._process = await ChildProcess.start(
            [*self._command, *command.argv],
            "job's process",
            self._environment(),
            self._log.folder,
            self._write_log,
        )
        if self.arguments.kind not in _FULL_PRIORITY:
            lower_priority(process.pid)
        try:
            if self._is_cancelled:  # during the start
                self.cancel()
            async for line in process.lines():
                self._handle(line)
        finally:
            status = await process.end(_GRACE_S)
        if status == 0:
            return "done"
        if self._is_cancelled:
            return "cancelled"
        self._running = self._running.died(status, next(reversed(process.stderr.lines), ""))
        return "failed"

    def _handle(self, data: bytes) -> None:
        """Apply a line of the verb's stdout: a JSON object changes the job, other text goes to the log."""
        try:
            line = json.loads(data)
        except ValueError:
            line = None
        if not isinstance(line, dict):
            self._write_log(data.decode("utf-8", "replace"))
            return
        before = self._running.job
        try:
            self._running = self._running.after(line)
        except (KeyError, TypeError) as error:
            self._write_log(f"[invalid line {line}: {error!r}]\n")
            return
        if self._running.job.message != before.message and line.get("event") not in _FREQUENT_EVENTS:
            self._write_log(f"{self._running.job.message}\n")
        if self._running.job != before:
            self._on_change(self._running.job)

    def _write_log(self, text: str) -> None:
        with suppress(OSError):  # a full disk fails the job itself, with an error that names it
            self._log.append(text)

    def _environment(self) -> dict[str, str]:
        """Return the variables by which the verb uses the service's folders."""
        folders = {"DATA_DIR": self._settings.data_dir, "CACHE_DIR": self._settings.cache_dir}
        return {f"{ENVIRONMENT_PREFIX}{name}": str(folder) for name, folder in folders.items()}


def _make_folder(command: JobCommand) -> None:
    if command.folder is None:
        return
    try:
        command.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{command.folder} cannot be made: {error.strerror}.", "Check its disk.") from error
