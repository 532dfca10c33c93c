"""The journal of a download: which bytes of the file stand, so that another run goes on where this one ended.

A text file beside the partial one, only ever appended to. A killed process loses nothing that it wrote; a machine that
went down may lose what was not synced, so ranges are believed if the machine still runs as it did when they were
written, or if a sync came after them. Owns that file; knows nothing of what is in the other.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from app.library.download.ranges import Range, Ranges

__all__ = ["DownloadJournal"]

_RANGE = re.compile(rb"(\d{1,18}) (\d{1,18})")
_SYNCED = re.compile(rb"synced (\d{1,18})")
_BOOTED = re.compile(rb"booted (\d{1,18})")
_CLOCK_TOLERANCE_S = 60  # the time of boot is told by a clock that may be set meanwhile


class DownloadJournal:
    """The open journal of one partial file; what its lock is, is the caller's affair. Every method raises OSError."""

    def __init__(self, path: Path, booted_s: Callable[[], float] = psutil.boot_time) -> None:
        self._path = path
        self._booted_s = int(booted_s())
        self._file = path.open("a+b", buffering=0)
        self._n_lines = 0
        self._lock = threading.Lock()  # syncing is done in a thread of its own

    def standing(self, fingerprint: str) -> Ranges | None:
        """What runs before wrote of the content with this `fingerprint`, None when it was of another, or none."""
        self._file.seek(0)
        whole, _, torn = self._file.read().rpartition(b"\n")
        if torn:
            self._file.truncate(len(whole) + 1 if whole else 0)
        lines = whole.split(b"\n")
        if not fingerprint or lines[0] != fingerprint.encode():
            return None
        self._n_lines = len(lines)
        self._add(b"booted %d" % self._booted_s)
        return _believed(lines, self._booted_s)

    def restart(self, fingerprint: str) -> None:
        """Forget everything and begin with another content."""
        self._file.truncate(0)
        self._n_lines = 0
        self._add(fingerprint.encode())
        self._add(b"booted %d" % self._booted_s)

    def add(self, written: Range) -> None:
        """Say that the bytes of a range stand."""
        self._add(b"%d %d" % (written.begin, written.end))

    @property
    def n_lines(self) -> int:
        """How much was said; `synced` takes it."""
        return self._n_lines

    def synced(self, n_lines: int) -> None:
        """Say that all that the first `n_lines` speak of is on the disk."""
        self._add(b"synced %d" % n_lines)

    def close(self) -> None:
        self._file.close()

    def _add(self, line: bytes) -> None:
        with self._lock:
            self._file.write(line + b"\n")
            self._n_lines += 1


def _believed(lines: Sequence[bytes], booted_s: int) -> Ranges:
    n_synced = max((int(match[1]) for line in lines if (match := _SYNCED.fullmatch(line))), default=0)
    ranges = Ranges()
    is_same_boot = False
    for index, line in enumerate(lines):
        if match := _BOOTED.fullmatch(line):
            is_same_boot = abs(int(match[1]) - booted_s) <= _CLOCK_TOLERANCE_S
        elif (match := _RANGE.fullmatch(line)) and (is_same_boot or index < n_synced):
            ranges.add(Range(int(match[1]), int(match[2])))
    return ranges
