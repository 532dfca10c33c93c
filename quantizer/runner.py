"""The parent's side of a job: starts the process, hands out its events, and clears up when it is cancelled.

Owns the child process. It imports no native code and no numpy, so a face may use it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from quantizer.errors import EngineError
from quantizer.events import Event, Failed, decode_event
from quantizer.job import JobRequest
from quantizer.output import discard_partial

__all__ = ["death_of", "run_job"]

_GRACE_S = 5.0
_LAST_LINES = 8
_REMEDY = "Run it again: it goes on where it stopped."


def run_job(request: JobRequest) -> Iterator[Event]:
    """Run a job in a child process and yield its events as they come; closing the iterator cancels it.

    Raises the job's own UserError when it failed, EngineError with its last words when the process died. A job that
    failed or was cancelled (Ctrl-C too) leaves nothing; one that was killed, with or without its parent, leaves what it
    wrote under partial names, and the same request goes on from there.
    """
    with tempfile.TemporaryFile() as errors:
        command = [sys.executable, "-P", "-m", "quantizer.job"]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            _ask(child.stdin, request)
            yield from _events(child.stdout)
            if child.wait() != 0:
                raise death_of("quantizing process", child.returncode, errors, _REMEDY)
        except (GeneratorExit, KeyboardInterrupt):
            _end(child)
            discard_partial(Path(request.output))
            raise
        finally:
            _end(child)


def _ask(stdin: IO[bytes], request: JobRequest) -> None:
    with suppress(BrokenPipeError):  # a child that died at once is reported by its exit status
        stdin.write(request.encode())
        stdin.flush()


def _events(stdout: IO[bytes]) -> Iterator[Event]:
    for line in stdout:
        event = decode_event(line)
        if isinstance(event, Failed):
            raise event.error()
        yield event


def _end(child: subprocess.Popen[bytes]) -> None:
    """Let the child go (the end of its stdin tells it to), then make sure."""
    assert child.stdin is not None
    assert child.stdout is not None
    with suppress(BrokenPipeError):  # a dead child that never read its request
        child.stdin.close()
    try:
        child.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    child.stdout.close()


def death_of(process: str, status: int, errors: IO[bytes], remedy: str, n_lines: int = _LAST_LINES) -> EngineError:
    """Return what to say of a child called `process` that ended with `status`: its last words are in `errors`."""
    errors.seek(0)
    lines = [line.strip() for line in errors.read().decode("utf-8", "replace").splitlines()]
    words = " / ".join([line for line in lines if line][-n_lines:]) or "it said nothing"
    how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
    return EngineError(f"The {process} {how}: {words}.", remedy)
