"""The log file `service.log`: what the service, its workers and the app report, a line each with its time.

Owns the form of a line and where it goes. Until `log_to` is called nothing is written: `localllm serve` prints no such
lines between its own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from quantizer.system.files import open_private, private_folder

LOG_NAME = "service.log"
_LOGGER = logging.getLogger("localllm")
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

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name of `logging`
        """Drop the line."""


def log_to(stream: TextIO) -> logging.Handler:
    """Write events to `stream` from now on; return the handler, which `logging` removes again."""
    handler = _Handler(stream)
    handler.setFormatter(_FORMAT)
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    return handler


@contextmanager
def logging_to_file(folder: Path) -> Iterator[None]:
    """Append events to the log in `folder` inside the context; a folder that cannot be written gets none."""
    try:
        log = open_private(private_folder(folder) / LOG_NAME)
    except OSError:
        yield
        return
    file = TextIOWrapper(log, encoding="utf-8", errors="replace")
    handler = log_to(file)
    try:
        yield
    finally:
        _LOGGER.removeHandler(handler)
        with suppress(OSError):
            file.close()
