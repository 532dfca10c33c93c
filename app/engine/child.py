"""A piece of native work in a process of its own: one line of JSON goes in, lines of JSON come out, or an error.

Owns both ends of that pipe: `lines_of` is the parent's, `serve` the child's. The child dies with whoever started it.
Knows nothing of what the lines mean.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from app.processes import child_environment
from quantizer.errors import UserError, rebuild
from quantizer.runner import death_of

__all__ = ["Line", "lines_of", "serve", "watch_stdin"]

Line = dict[str, Any]
_N_LAST_LINES = 3
_PROCESS = "process that runs the model"


def lines_of(command: Sequence[str], request: Mapping[str, object]) -> Generator[Line, None, None]:
    """Start `command`, hand it `request` and yield what it says. Leaving early ends it.

    Raises the UserError that the child ended with, EngineError with its last words where it died of something else.
    """
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=child_environment(GGML_NO_BACKTRACE="1"),
        ) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            with suppress(BrokenPipeError):  # a child that died at once is told of below
                child.stdin.write(json.dumps(request).encode() + b"\n")
                child.stdin.flush()
            for line in child.stdout:
                yield _checked(json.loads(line))
            if child.wait() != 0:
                raise death_of(
                    "process that runs the model", child.returncode, errors, "Try another model.", _N_LAST_LINES
                )
        finally:
            child.kill()
            with suppress(BrokenPipeError):
                child.stdin.close()


def serve(work: Callable[[Line], Iterator[Line]]) -> int:
    """Be the child: do `work` of the request on stdin and return the exit status. Ctrl-C is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what native code prints must not get between the lines
    request = json.loads(sys.stdin.buffer.readline())
    watch_stdin()
    try:
        for line in work(request):
            out.write(json.dumps(line).encode() + b"\n")
    except UserError as error:
        told = {"kind": type(error).__name__, "cause": error.cause, "remedy": error.remedy}
        out.write(json.dumps({"error": told}).encode() + b"\n")
        return 1
    return 0


def watch_stdin() -> None:
    """End this process when whoever holds the other end of its stdin is gone."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os._exit(1)

    threading.Thread(target=wait, name="owner-watch", daemon=True).start()


def _checked(line: Line) -> Line:
    if "error" in line:
        told = line["error"]
        raise rebuild(told["kind"], told["cause"], told["remedy"], {})
    return line
