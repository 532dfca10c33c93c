"""A piece of native work in a process of its own: one line of JSON goes in, lines of JSON come out, or an error.

Owns both ends of that pipe: `run_child` is the parent's, `serve` the child's. The child dies with whoever started it.
Knows nothing of what the lines mean, but for the one that says how it failed. It imports no native code and no numpy,
so a face may use it.

How localllm starts its own processes, on every platform.

Owns command lines of Python children, their place apart from the terminal, who goes first, and whether one still runs.
Knows nothing of what they do.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any, TypeAlias

from quantizer.errors import EngineError, UserError, redact_paths
from quantizer.write.events import Failed, decode_event, encode_event

__all__ = [
    "Line",
    "checked",
    "child_environment",
    "death",
    "detached_process_options",
    "exit_with_parent",
    "is_process_alive",
    "lower_priority",
    "python_command",
    "run_child",
    "serve",
]

Line: TypeAlias = dict[str, Any]

_GRACE_S = 5.0
_N_LAST_LINES = 3


def run_child(
    command: Sequence[str],
    request: Mapping[str, object],
    process: str,
    remedy: str,
    environment: Mapping[str, str] | None = None,
) -> Generator[Line, None, None]:
    """Start `command`, hand it `request` and yield what it says. Leaving early ends it.

    Raises the UserError that the child ended with; where it died of something else EngineError, with its last words and
    the name `process`.
    """
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment
        ) as child,
    ):
        assert child.stdout is not None
        try:
            _ask(child, request)
            for line in child.stdout:
                yield checked(line)
            if child.wait() != 0:
                raise death(process, child.returncode, errors, remedy)
        finally:
            _end(child)


def serve(
    work: Callable[[Line, Callable[[Line], None]], None], hear: Callable[[Line], object] = lambda _line: None
) -> int:
    """Be the child: do `work` of the request on stdin, which is given what says a line, and return the exit status.

    What the parent says after its request `hear` is told, by a thread of its own.
    """
    _limit_damage()
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what native code prints must not get between the lines

    def say(line: Line) -> None:
        out.write(json.dumps(line).encode() + b"\n")

    lines = _stdin_lines()
    request = next(lines)
    exit_with_parent(hear, lines)
    try:
        work(request, say)
    except UserError as error:
        say(encode_event(Failed.of(error)))
        return 1
    return 0


def exit_with_parent(hear: Callable[[Line], object] = lambda _line: None, lines: Iterator[Line] | None = None) -> None:
    """Let `hear` have the lines of stdin, and end this process when whoever holds its other end is gone."""

    def wait() -> None:
        for line in _stdin_lines() if lines is None else lines:
            hear(line)
        os._exit(1)

    threading.Thread(target=wait, name="owner-watch", daemon=True).start()


def _stdin_lines() -> Iterator[Line]:
    """What the parent says, a line each; not by sys.stdin, whose lock would outlive the interpreter."""
    said = b""
    while data := os.read(0, 4096):
        *lines, said = (said + data).split(b"\n")
        yield from map(json.loads, lines)


def _ask(child: subprocess.Popen[bytes], request: Mapping[str, object]) -> None:
    assert child.stdin is not None
    with suppress(BrokenPipeError):  # a child that died at once is told of by its exit status
        child.stdin.write(json.dumps(request).encode() + b"\n")
        child.stdin.flush()


def checked(said: bytes) -> Line:
    """The line that a child said. Raises the UserError that it is, EngineError for what is no JSON object."""
    try:
        line: Line = json.loads(said)
        is_failure = line.get("event") == Failed.kind
    except (ValueError, AttributeError) as error:
        raise EngineError("A job said what is no JSON object.", "Report this with the command used.") from error
    if is_failure:
        failed = decode_event(line)
        assert isinstance(failed, Failed)
        raise failed.error.error()
    return line


def _end(child: subprocess.Popen[bytes]) -> None:
    """Let the child go (the end of its stdin tells it to), then make sure."""
    assert child.stdin is not None
    with suppress(BrokenPipeError):  # a dead child that never read its request
        child.stdin.close()
    try:
        child.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()


def death(process: str, status: int, errors: IO[bytes], remedy: str) -> EngineError:
    """The error for a child that ended otherwise, with its last words but no folders: native code names its source."""
    errors.seek(0)
    lines = [redact_paths(line.strip()) for line in errors.read().decode("utf-8", "replace").splitlines()]
    words = " / ".join([line for line in lines if line][-_N_LAST_LINES:]) or "it said nothing"
    how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
    return EngineError(f"The {process} {how}: {words}.", remedy)


def _limit_damage() -> None:
    """No core files, no stack dumps by ggml, and Ctrl-C is the parent's to handle."""
    os.environ["GGML_NO_BACKTRACE"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


_LOW_NICE = 10


def python_command(name: str, *arguments: str) -> list[str]:
    """Return the command line that runs module `name` with this Python.

    -P keeps the current folder off the import path: a folder of the user's named `app` must not be run instead of ours.
    """
    return [sys.executable, "-P", "-m", name, *arguments]


def child_environment(**variables: str) -> dict[str, str]:
    """Return this process's environment with `variables`, and -P for whatever Python the child starts in turn."""
    return {**os.environ, "PYTHONSAFEPATH": "1", **variables}


def detached_process_options() -> dict[str, Any]:
    """Return arguments for subprocess: the child hears no Ctrl-C of this terminal and opens no window of its own."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW}
    return {"start_new_session": True}


def lower_priority(process_id: int) -> None:
    """Let a process, and what it starts from now on, have processor time after those that a person waits for."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        if sys.platform == "win32":
            psutil.Process(process_id).nice(psutil.BELOW_NORMAL_PRIORITY_CLASS)
        else:
            psutil.Process(process_id).nice(_LOW_NICE)


def is_process_alive(process: str) -> bool:
    """Return whether the process runs whose number is `process`; False for a text that is no number."""
    import psutil

    return process.isdecimal() and process.isascii() and psutil.pid_exists(int(process))
