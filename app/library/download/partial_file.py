"""A partial file of known length that is written in any order, with a journal of its complete ranges.

Owns its space on the disk, the journal (an append-only text file beside it) and their syncing, so that another run can
resume. A killed process loses nothing; a crashed machine may lose unsynced data, so the journal's ranges count if the
machine has not rebooted since, or if a sync followed them.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import BinaryIO

import psutil

from app.library.download.remote_file import Range, Ranges
from quantizer.system.errors import StorageError
from quantizer.system.files import explained, open_partial

_RANGE = re.compile(rb"(\d{1,18}) (\d{1,18})")
_SYNCED = re.compile(rb"synced (\d{1,18})")
_BOOTED = re.compile(rb"booted (\d{1,18})")
_CLOCK_TOLERANCE_S = 60  # the boot time comes from a clock that may be set meanwhile
_SPARE_BYTES = 64 << 20
_NOTED_BYTES = 128 << 10  # as much is fetched again for each connection after a kill
_SYNCED_BYTES = 64 << 20


class DownloadJournal:
    """The open journal of one partial file, of `n_lines`; the caller holds its lock. Every method raises OSError."""

    def __init__(self, path: Path, booted_s: Callable[[], float] = psutil.boot_time) -> None:
        self._path = path
        self._booted_s = int(booted_s())
        self._file = open_partial(path, appends=True)
        self.n_lines = 0
        self._lock = threading.Lock()  # another thread syncs

    def resumable_ranges(self, fingerprint: str) -> Ranges | None:
        """Return what earlier runs wrote of the content with this `fingerprint`; None if it was another, or none."""
        self._file.seek(0)
        whole, _, torn = self._file.read().rpartition(b"\n")
        if torn:
            self._file.truncate(len(whole) + 1 if whole else 0)
        lines = whole.split(b"\n")
        if not fingerprint or lines[0] != fingerprint.encode():
            return None
        self.n_lines = len(lines)
        self._add(b"booted %d" % self._booted_s)
        n_synced = max((int(match[1]) for line in lines if (match := _SYNCED.fullmatch(line))), default=0)
        reliable, is_same_boot = Ranges(), False
        for index, line in enumerate(lines):
            if match := _BOOTED.fullmatch(line):
                is_same_boot = abs(int(match[1]) - self._booted_s) <= _CLOCK_TOLERANCE_S
            elif (match := _RANGE.fullmatch(line)) and (is_same_boot or index < n_synced):
                reliable.add(Range(int(match[1]), int(match[2])))
        return reliable

    def restart(self, fingerprint: str) -> None:
        self._file.truncate(0)
        self.n_lines = 0
        self._add(fingerprint.encode())
        self._add(b"booted %d" % self._booted_s)

    def add(self, written: Range) -> None:
        self._add(b"%d %d" % (written.begin, written.end))

    def synced(self, n_lines: int) -> None:
        """Record that the ranges of the first `n_lines` are synced."""
        self._add(b"synced %d" % n_lines)

    def close(self) -> None:
        self._file.close()

    def _add(self, line: bytes) -> None:
        with self._lock:
            self._file.write(line + b"\n")
            self.n_lines += 1


class PartialFile:
    """A context manager over the file at `path`, resumed if the earlier run had the same `fingerprint`. `done` has the
    complete ranges. The caller holds a lock. Raises StorageError, before anything is written if the disk is too
    full."""

    def __init__(self, path: Path, n_bytes: int, fingerprint: str) -> None:
        self.path = path
        self.n_bytes = n_bytes
        self.done = Ranges()
        self._fingerprint = fingerprint
        self._n_unsynced = 0
        self._pool = ThreadPoolExecutor(1, "syncing")
        self._syncing: Future[None] | None = None

    def __enter__(self) -> PartialFile:
        with self._writing(), ExitStack() as stack:
            held = self.path.stat() if self.path.exists() else None
            n_held = min(getattr(held, "st_blocks", 0) * 512, self.n_bytes)  # unknown on Windows
            free = shutil.disk_usage(self.path.parent).free
            if free < self.n_bytes - n_held + _SPARE_BYTES:
                cause = f"{self.path.name} needs {self.n_bytes / 1e9:.3f} GB and its disk has {free / 1e9:.3f} GB free."
                remedy = "Free some space, choose a smaller one, or set LOCALLLM_DATA_DIR to another disk."
                raise StorageError(cause, remedy)
            self._file: BinaryIO = stack.enter_context(open_partial(self.path))
            self._journal = DownloadJournal(journal_of(self.path))
            stack.callback(self._journal.close)
            done = self._journal.resumable_ranges(self._fingerprint)
            if done is None:
                self._file.truncate(0)
                self._journal.restart(self._fingerprint)
            self.done = done or Ranges()
            if hasattr(os, "posix_fallocate") and self.n_bytes:  # so that the disk is not full later
                os.posix_fallocate(self._file.fileno(), 0, self.n_bytes)
            self._file.truncate(self.n_bytes)
            stack.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        try:
            self._pool.shutdown()
            self._sync()
        finally:
            self._file.close()
            self._journal.close()

    def write(self, at: int, data: bytes) -> None:
        """Write `data` at the offset `at`; it counts after `note`. Raises StorageError."""
        view = memoryview(data)
        with self._writing():
            self._file.seek(at)
            while view:
                view = view[self._file.write(view) :]

    def note(self, written: Range) -> None:
        """Record a range as complete. Raises StorageError."""
        with self._writing():
            self._journal.add(written)
        self.done.add(written)
        self._n_unsynced += written.n_bytes
        if self._n_unsynced >= _SYNCED_BYTES and (self._syncing is None or self._syncing.done()):
            # Synced while more is fetched, so that the last sync is short; this raises the error of the one before.
            self._n_unsynced = 0
            if self._syncing is not None:
                self._syncing.result()
            self._syncing = self._pool.submit(self._sync)

    def restart(self) -> None:
        """Discard everything: the content is wrong. Raises StorageError."""
        if self._syncing is not None:
            self._syncing.result()  # it would record lines that are deleted
        with self._writing():
            self._journal.restart(self._fingerprint)
        self.done = Ranges()

    def _sync(self) -> None:
        n_lines = self._journal.n_lines
        with self._writing():
            os.fsync(self._file.fileno())
            self._journal.synced(n_lines)

    def _writing(self) -> AbstractContextManager[None]:
        return explained(f"{self.path.name} could not be written", "Free some space, then pull again.")


class SequentialWriter:
    """Writes consecutive bytes and notes them from time to time; `at` is the offset of the next."""

    def __init__(self, file: PartialFile, at: int) -> None:
        self.at = at
        self._noted = at
        self._file = file

    def write(self, data: bytes) -> None:
        self._file.write(self.at, data)
        self.at += len(data)
        if self.at - self._noted >= _NOTED_BYTES:
            self.note()

    def note(self) -> None:
        if self.at > self._noted:
            self._file.note(Range(self._noted, self.at))
            self._noted = self.at


def journal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.journal")
