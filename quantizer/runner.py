"""The parent's side of a job: starts the process, hands out its events, and clears up when it is cancelled.

It imports no native code and no numpy, so a face may use it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from quantizer.child import lines_of
from quantizer.events import Event, decode_event
from quantizer.job import JobRequest
from quantizer.output import discard_partial

__all__ = ["run_job"]

_REMEDY = "Run it again: it goes on where it stopped."


def run_job(request: JobRequest) -> Iterator[Event]:
    """Run a job in a child process and yield its events as they come; closing the iterator cancels it.

    Raises the job's own UserError when it failed, EngineError with its last words when the process died. A job that
    failed or was cancelled (Ctrl-C too) leaves nothing; one that was killed, with or without its parent, leaves what it
    wrote under partial names, and the same request goes on from there.
    """
    command = [sys.executable, "-P", "-m", "quantizer.job"]
    try:
        with closing(lines_of(command, asdict(request), "quantizing process", _REMEDY)) as lines:
            for line in lines:
                yield decode_event(line)
    except (GeneratorExit, KeyboardInterrupt):
        discard_partial(Path(request.output))
        raise
