"""Jobs and their logs on disk, in `<data>/jobs/<id>.json` and `<id>.log`.

Each unfinished job names a lock that its service holds as long as it runs, so that two services on one data folder
leave each other's jobs alone.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from app.common.terminal import printable
from app.protocol.codec import decode, encode
from app.protocol.job import Job
from quantizer.system.files import (
    PRIVATE_FILE,
    explained,
    open_private,
    private_folder,
    remove_lock,
    try_lock,
    write_atomically,
)

if TYPE_CHECKING:
    from filelock import BaseFileLock


MAX_LOG_BYTES = 256 << 10
_DROPPED = "[the older part was dropped]\n"


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
            kept = self._path.read_bytes()[-MAX_LOG_BYTES // 2 :].partition(b"\n")[2]
            write_atomically(self._path, (_DROPPED, kept), sync=False, mode=PRIVATE_FILE)

    def read(self) -> str:
        """Return the text, empty for a missing log. Raises OSError."""
        try:
            return self._path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


class JobStore:
    """The jobs in `folder`, which is created with the first one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._owner = secrets.token_hex(8)
        self._lock: BaseFileLock | None = None

    def load(self) -> list[Job]:
        """Return the jobs that ended and those whose service is gone, oldest first; skip invalid files."""
        owners: dict[str, bool] = {}
        jobs = []
        for path in self.folder.glob("*.json"):
            try:
                data = json.loads(path.read_text(encoding="utf-8"))
                job, owner = decode(Job, data), str(data["owner"])
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue
            if not job.has_ended and owner not in owners:
                owners[owner] = self._is_alive(owner)
            if job.id == path.stem and (job.has_ended or not owners[owner]):
                jobs.append(job)
        return sorted(jobs, key=lambda job: (job.created_s, job.id))

    def save(self, job: Job) -> None:
        """Save `job`. Raises StorageError."""
        with explained(f"The job cannot be saved in {self.folder}", "Check its permissions and its disk."):
            if self._lock is None:
                private_folder(self.folder)
                self._lock = try_lock(self._lock_path(self._owner))
            data = json.dumps({**encode(job), "owner": self._owner})
            write_atomically(self.folder / f"{job.id}.json", data, sync=False, mode=PRIVATE_FILE)

    def log(self, job_id: str) -> JobLog:
        return JobLog(self.folder / f"{job_id}.log")

    def remove(self, job_id: str) -> None:
        """Remove a job and its log. Raises StorageError."""
        with explained(f"The job {job_id} cannot be removed", "Check its folder."):
            (self.folder / f"{job_id}.json").unlink(missing_ok=True)
            self.log(job_id).remove()

    def close(self) -> None:
        """Release the lock of this service."""
        if self._lock is not None:
            remove_lock(self._lock)
            self._lock = None

    def _lock_path(self, owner: str) -> Path:
        return self.folder / f"{owner}.lock"

    def _is_alive(self, owner: str) -> bool:
        """Whether the service with the id `owner` runs; remove the lock file of one that does not."""
        path = self._lock_path(owner)
        if not owner.isalnum() or not path.exists():
            return False
        try:
            lock = try_lock(path)
        except OSError:
            return False
        if lock is None:
            return True
        remove_lock(lock)
        return False
