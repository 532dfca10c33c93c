"""One running job, its verb in a process of its own, and the jobs on disk: `<data>/jobs/<id>.json` and `<id>.log`.

Each line of a verb's stdout changes its job: the lines of `app.cli.output.progress` and those of `pull --json`.
Unknown events change nothing; a line without an event is the result of the verb.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from app.common.terminal import printable
from app.library.download import events as download
from app.library.local.removal import remove_empty_folders
from app.options.jobs import BatchOptions, JobOptions
from app.protocol.codec import decode_checked, encode
from app.protocol.errors import JobDiedError
from app.protocol.job import Job, JobState
from app.service.jobs.arguments import JobCommand, command_of, is_background
from app.settings.settings import ENVIRONMENT_PREFIX, Settings
from quantizer.system.errors import ErrorInfo, UserError
from quantizer.system.files import (
    PRIVATE_FILE,
    Lock,
    explained,
    is_file,
    make_folder,
    open_private,
    private_folder,
    read_regular,
    remove_abandoned,
    remove_lock,
    sorted_glob,
    try_lock,
    write_atomically,
)
from quantizer.system.memory_limit import out_of_memory
from quantizer.system.process import ChildProcess, lower_priority
from quantizer.write.events import JobFailed

Line: TypeAlias = Mapping[str, Any]
BatchKey: TypeAlias = Callable[[BatchOptions], AbstractContextManager[str]]

MAX_LOG_BYTES = 256 << 10
_DROPPED = "[the older part was dropped]\n"
_GRACE_S = 15.0  # from Ctrl-C on: a download saves its progress
_FULL_PRIORITY = {"tune", "bench"}  # at low priority these would measure other programs
_FREQUENT_EVENTS = ("step", "fetching", "progress")
_NO_PROGRESS: dict[str, Any] = {
    "fraction": None,
    "n_done_bytes": None,
    "n_bytes": None,
    "bytes_per_s": None,
    "remaining_s": None,
}


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job while it runs. For a download of several files, `n_bytes` counts all, `n_bytes_before` finished files."""

    job: Job
    n_bytes: int = 0
    n_bytes_before: int = 0
    n_file_bytes: int = 0

    @classmethod
    def begun(cls, job: Job, now_s: float) -> RunningJob:
        fresh: dict[str, Any] = {"message": "", "digest": "", "error": None, "result": None, "ended_s": None}
        return cls(replace(job, state="running", started_s=now_s, **fresh, **_NO_PROGRESS))

    def after(self, line: Line) -> RunningJob:
        """Return the job after `line`. Raises KeyError or TypeError for a line that lacks fields of its event."""
        match line.get("event"):
            case "step":
                n_done, n_total = line["n_done"], line["n_total"]
                moved = {
                    "message": line["title"],
                    "fraction": _fraction(n_done, n_total),
                    "remaining_s": line["remaining_s"],
                }
                if line["unit"] != "bytes":
                    return self.changed(**_NO_PROGRESS | moved)
                return self.changed(n_done_bytes=n_done, n_bytes=n_total, bytes_per_s=line["per_s"] or None, **moved)
            case "note":
                return self.changed(message=line["text"])
            case JobFailed.kind:
                return self.changed(error=ErrorInfo(**line["error"]))
            case None | "quantized":
                return self.changed(result={name: value for name, value in line.items() if name != "event"})
        return _download(self, line)

    def ended(self, state: JobState, now_s: float) -> Job:
        rates: dict[str, Any] = {"bytes_per_s": None, "remaining_s": None}
        fraction = 1.0 if state == "done" else self.job.fraction
        error = self.job.error if state == "failed" else None
        ended_s = max(now_s, self.job.started_s or 0.0)  # the clock may have been put back
        return replace(self.job, state=state, ended_s=ended_s, fraction=fraction, error=error, **rates)

    def died(self, status: int, lines: Sequence[str]) -> RunningJob:
        """Return the job failed because its process ended with `status` and these last lines, unless the verb reported
        an error itself."""
        if self.job.error:
            return self
        if shortage := out_of_memory("job's process", lines):
            return self.changed(error=ErrorInfo.of(shortage))
        last_line = next(reversed(lines), "")
        cause = f"The job's process ended with status {status}" + (f": {last_line}" if last_line else "")
        return self.changed(error=ErrorInfo.of(JobDiedError(f"{cause.rstrip('.')}.", "See its log, and try it again.")))

    def changed(self, **changes: Any) -> RunningJob:
        return replace(self, job=replace(self.job, **changes))

    def fetched(self, n_done: int, bytes_per_s: float) -> RunningJob:
        """Return the job with `n_done` bytes of the current file downloaded."""
        done = self.n_bytes_before + n_done
        total = max(self.n_bytes, self.n_bytes_before + self.n_file_bytes)
        return self.changed(
            n_done_bytes=done,
            n_bytes=total,
            fraction=_fraction(done, total),
            bytes_per_s=bytes_per_s or None,
            remaining_s=(total - done) / bytes_per_s if bytes_per_s else None,
        )


def _download(running: RunningJob, line: Line) -> RunningJob:
    event = download.decode_event(line)
    sentence = download.event_text(event) if event else ""
    match event:
        case download.Chosen():
            running = replace(running, n_bytes=event.n_bytes, n_bytes_before=0, n_file_bytes=0)
            return running.changed(message=sentence, n_done_bytes=0, n_bytes=event.n_bytes)
        case download.Fetching():
            before = running.n_bytes_before + running.n_file_bytes
            running = replace(running, n_bytes_before=before, n_file_bytes=event.n_bytes)
            return running.changed(message=event.name, digest=event.digest).fetched(event.n_done, 0.0)
        case download.Progress():
            return running.changed(message=event.name).fetched(event.n_done, event.bytes_per_s)
        case download.Unpacking():
            return running.changed(message=f"Unpacking {event.name}")
        case download.Discarded():  # the same file starts again
            return replace(running, n_file_bytes=0).changed(message=sentence)
        case download.Done():
            done = {"path": event.path, "bytes": event.n_bytes, "is_new": event.is_new}
            return running.changed(result=done, n_done_bytes=event.n_bytes, n_bytes=event.n_bytes)
        case download.PartAdded():  # another file beside the model, which is the result
            result: dict[str, Any] = {**(running.job.result or {}), event.part: event.path}
            n_bytes = result["bytes"] + event.n_bytes
            return running.changed(result=result, n_done_bytes=n_bytes, n_bytes=n_bytes)
        case download.PartLeftOut():
            n_bytes = (running.job.result or {})["bytes"]
            return running.changed(message=sentence, n_done_bytes=n_bytes, n_bytes=n_bytes)
    return running.changed(message=sentence) if sentence else running


def _fraction(n_done: int, n_total: int | None) -> float | None:
    return min(1.0, n_done / n_total) if n_total else None


class JobRun:
    """Runs `job` with its `options` by `command`, which runs verbs as `python -m app.cli.job_process` does; `on_change`
    receives the job whenever it changes. A batch asks this service with the key that `batch_key` lends it."""

    def __init__(
        self,
        job: Job,
        options: JobOptions,
        settings: Settings,
        command: Sequence[str],
        log: JobLog,
        on_change: Callable[[Job], None],
        batch_key: BatchKey,
    ) -> None:
        self.options = options
        self._settings = settings
        self._command = tuple(command)
        self._log = log
        self._on_change = on_change
        self._batch_key = batch_key
        self._running = RunningJob.begun(job, time.time())
        self._process: ChildProcess | None = None
        self.is_cancelled = False

    async def to_end(self) -> Job:
        """Run the job and return it ended, in whatever way. Cancelled, it is "interrupted": the service ends."""
        self._on_change(self._running.job)
        try:
            state = await self._run()
        except UserError as error:
            self._running = self._running.changed(error=ErrorInfo.of(error))
            state = "failed"
        except asyncio.CancelledError:
            state = "interrupted"
        self._write_log(f"[{state}]\n")
        return self._running.ended(state, time.time())

    def cancel(self) -> None:
        """Interrupt the verb as Ctrl-C does, without waiting for its end."""
        self.is_cancelled = True
        if self._process is not None:
            self._process.write(b"\n")
            self._process.kill_after(_GRACE_S)

    async def _run(self) -> JobState:
        command = await asyncio.to_thread(command_of, self.options, self._settings)
        if command.folder is not None:
            with explained(f"{command.folder} cannot be made", "Check its disk."):
                make_folder(command.folder)
        try:
            lent = self._batch_key(self.options) if isinstance(self.options, BatchOptions) else nullcontext("")
            with lent as api_key:
                return await self._run_command(command, api_key)
        finally:
            if command.folder is not None and command.folder.is_relative_to(self._settings.models_dir):
                remove_empty_folders(command.folder)

    async def _run_command(self, command: JobCommand, api_key: str) -> JobState:
        self._write_log(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] localllm {' '.join(command.argv)}\n")
        own: dict[str, object] = {"DATA_DIR": self._settings.data_dir, "CACHE_DIR": self._settings.cache_dir}
        if self.options.kind == "batch":  # asks this service, whose settings may be from its command line
            own |= {"HOST": self._settings.host, "PORT": self._settings.port, "API_KEY": api_key}
        process = self._process = await ChildProcess.start(
            [*self._command, *command.argv],
            "job's process",
            # The verb uses the service's folders.
            {f"{ENVIRONMENT_PREFIX}{name}": str(value) for name, value in own.items()},
            self._log.folder,
            self._write_log,
        )
        if self.options.kind not in _FULL_PRIORITY:
            lower_priority(process.pid, is_lowest=is_background(self.options))
        try:
            if self.is_cancelled:  # during the start
                self.cancel()
            async for line in process.lines():
                self._handle(line)
        finally:
            status = await process.end(_GRACE_S)
        if status == 0:
            return "done"
        if self.is_cancelled:
            return "cancelled"
        self._running = self._running.died(status, process.stderr.lines)
        return "failed"

    def _handle(self, data: bytes) -> None:
        """Apply a line of the verb's stdout: a JSON object changes the job, other text goes to the log."""
        try:
            line = json.loads(data)
        except (ValueError, RecursionError):
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


class JobLog:
    """The log at `path`, which may be missing. Its size is limited: the newest part stays."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def folder(self) -> Path:
        return self._path.parent

    def append(self, text: str) -> None:
        """Add `text` without terminal control sequences; drop the older half of a full log. Raises OSError."""
        with open_private(self._path) as file:
            file.write(printable(text).encode("utf-8", "replace"))
            is_full = file.tell() > MAX_LOG_BYTES
        if is_full:
            kept = read_regular(self._path)[-MAX_LOG_BYTES // 2 :].partition(b"\n")[2]
            write_atomically(self._path, (_DROPPED, kept), sync=False, mode=PRIVATE_FILE)

    def read(self) -> str:
        try:
            return read_regular(self._path).decode("utf-8", "replace")
        except FileNotFoundError:
            return ""


class JobStore:
    """The jobs in `folder`, which is created with the first one. Each unfinished job names a lock that its service
    holds as long as it runs, so that two services on one data folder leave each other's jobs alone. `is_shared` says
    whether `load` left a job to another service."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.is_shared = False
        self._owner = secrets.token_hex(8)
        self._lock: Lock | None = None

    def load(self) -> list[Job]:
        """Return the jobs that ended and those whose service is gone, oldest first; skip invalid files."""
        remove_abandoned(self.folder)
        owners: dict[str, bool] = {}
        jobs = []
        for path in sorted_glob(self.folder, "*.json"):
            try:
                data = json.loads(read_regular(path))
                job, owner = decode_checked(Job, data), str(data["owner"])
            except (OSError, ValueError, KeyError, RecursionError):
                continue
            if not job.has_ended and owner not in owners:
                owners[owner] = self._is_alive(owner)
            if job.id == path.stem and (job.has_ended or not owners[owner]):
                jobs.append(job)
        self.is_shared = any(is_alive for owner, is_alive in owners.items() if owner != self._owner)
        return sorted(jobs, key=lambda job: (job.created_s, job.id))

    def save(self, job: Job) -> None:
        """Save `job`: once this returns it survives a power failure. Raises StorageError."""
        with explained(f"The job cannot be saved in {self.folder}", "Check its permissions and its disk."):
            if self._lock is None:
                private_folder(self.folder)
                self._lock = try_lock(self._lock_path(self._owner))
            data = json.dumps({**encode(job), "owner": self._owner})
            write_atomically(self.folder / f"{job.id}.json", data, sync=True, mode=PRIVATE_FILE)

    def log(self, job_id: str) -> JobLog:
        return JobLog(self.folder / f"{job_id}.log")

    def remove(self, job_id: str) -> None:
        with explained(f"The job {job_id} cannot be removed", "Check its folder."):
            for name in (f"{job_id}.json", f"{job_id}.log"):
                (self.folder / name).unlink(missing_ok=True)

    def close(self) -> None:
        if self._lock is not None:
            remove_lock(self._lock)
            self._lock = None

    def _lock_path(self, owner: str) -> Path:
        return self.folder / f"{owner}.lock"

    def _is_alive(self, owner: str) -> bool:
        """Whether the service with the id `owner` runs; remove the lock file of one that does not."""
        path = self._lock_path(owner)
        if not owner.isalnum() or not is_file(path):
            return False
        try:
            lock = try_lock(path)
        except OSError:
            return False
        if lock is None:
            return True
        remove_lock(lock)
        return False
