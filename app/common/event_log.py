"""The log file `service.log`: what the service, its workers and the app report, a line each with its time.

Owns the form of a line, where it goes and how much of it: whoever can reach the port can cause lines, so that the file
is cut, the oldest first, and more lines than a person reads are counted instead. Until `log_to` is called nothing is
written: `localllm serve` prints no such lines between its own.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from quantizer.system.files import open_private, private_folder

LOG_NAME = "service.log"
MAX_LOG_BYTES = 4 << 20
_CUT = b"[what came before was left out]\n"
_BURST, _A_SECOND = 2_000, 10  # lines: a worker that loads a model writes hundreds at once
_MINUTE_S = 60.0
_LOGGER = logging.getLogger("localllm")
_REPORTS = logging.getLogger("service")
_LOGGER.propagate = False
_LOGGER.addHandler(logging.NullHandler())
_FORMAT = logging.Formatter("%(asctime)s %(source)s: %(message)s", datefmt="%Y-%m-%d %H:%M:%S")


def log_event(source: str, text: str) -> None:
    """Write the lines of `text`, reported by `source`: "service", "app", or a worker."""
    for line in text.splitlines():
        if line.strip():
            _LOGGER.info("%s", line.rstrip(), extra={"source": source})


class _Handler(logging.StreamHandler[TextIO]):
    """Writes events to a stream; one that takes no more, as on a full disk, ends nothing."""

    max_bytes = 0

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        if self.max_bytes and hasattr(os, "pread"):
            with suppress(OSError, ValueError):  # a stream that is no file, or closed
                keep_within(self.stream.fileno(), self.max_bytes)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name of `logging`
        """Drop the line."""


class PerMinute:
    """Logs a sentence at most once a minute, with how often it was held back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_s = float("-inf")
        self._n_held = 0

    def log(self, text: str) -> None:
        now_s = self._clock()
        if now_s < self._next_s:
            self._n_held += 1
            return
        held = f" ({self._n_held:,} times more since the last such line)" if self._n_held else ""
        self._next_s, self._n_held = now_s + _MINUTE_S, 0
        _REPORTS.warning("%s%s", text, held)


class LineLimit(logging.Filter):
    """Lets `burst` records through at once and `a_second` in the long run; the next that comes through says how many
    were left out."""

    def __init__(
        self, burst: int = _BURST, a_second: float = _A_SECOND, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._burst, self._a_second, self._clock = burst, a_second, clock
        self._left, self._at_s = float(burst), clock()
        self._n_left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        now_s = self._clock()
        self._left = min(self._burst, self._left + (now_s - self._at_s) * self._a_second)
        self._at_s = now_s
        if self._left < 1:
            self._n_left_out += 1
            return False
        self._left -= 1
        if self._n_left_out:
            record.msg, record.args = f"[{self._n_left_out:,} lines were left out] {record.getMessage()}", ()
            self._n_left_out = 0
        return True


class _ToEvents(logging.Handler):
    """Passes what libraries report, tracebacks too, to the log of events."""

    def emit(self, record: logging.LogRecord) -> None:
        log_event(record.name, self.format(record))


def keep_within(file_number: int, max_bytes: int = MAX_LOG_BYTES) -> None:
    """Drop the older half of a file that is larger than `max_bytes`, where others append to it too. Anything but a file
    that is opened for reading and appending stays as it is."""
    with suppress(OSError):
        status = os.fstat(file_number)
        if not stat.S_ISREG(status.st_mode) or status.st_size <= max_bytes:
            return
        kept = os.pread(file_number, max_bytes // 2, status.st_size - max_bytes // 2).partition(b"\n")[2]
        os.ftruncate(file_number, 0)
        os.write(file_number, _CUT + kept)


def log_to(stream: TextIO, *, max_bytes: int = 0) -> logging.Handler:
    """Write events to `stream` from now on; return the handler, which `logging` removes again. A file is kept within
    `max_bytes`, unless that is 0."""
    handler = _Handler(stream)
    handler.max_bytes = max_bytes
    handler.addFilter(LineLimit())
    handler.setFormatter(_FORMAT)
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    return handler


@contextmanager
def logging_libraries(stream: TextIO | None) -> Iterator[None]:
    """Write what libraries and `PerMinute` report to `stream` inside the context, None for the log of events, within
    the limits of its lines: by default Python prints it to stderr, without end."""
    handler = _ToEvents() if stream is None else _Handler(stream)
    handler.setLevel(logging.WARNING)
    handler.addFilter(LineLimit())
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


@contextmanager
def logging_to_file(folder: Path) -> Iterator[None]:
    """Append events to the log in `folder` inside the context; a folder that cannot be written gets none."""
    try:
        log = open_private(private_folder(folder) / LOG_NAME)
    except OSError:
        yield
        return
    file = TextIOWrapper(log, encoding="utf-8", errors="replace")
    handler = log_to(file, max_bytes=MAX_LOG_BYTES)
    try:
        yield
    finally:
        _LOGGER.removeHandler(handler)
        with suppress(OSError):
            file.close()
