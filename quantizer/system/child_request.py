"""A child process for one request: a JSON object goes in, JSON objects come out.

`run_child` runs it from synchronous code, `open_child` beside an event loop, and `serve_request` is the other end of
that pipe; such a child ends with the process that started it. Interprets no message but the one by which a child
reports its failure. Imports no native code and no numpy, so that user interfaces can use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import IO, Any, TypeAlias

from quantizer.system.errors import EngineError, ErrorInfo, UserError
from quantizer.system.faults import reported_faults
from quantizer.system.files import unnamed_file
from quantizer.system.memory_limit import ProcessBytes, check_memory_limit
from quantizer.system.process import ChildProcess, StderrTail, exit_error, start_error

Message: TypeAlias = dict[str, Any]

_GRACE_S = 5.0
_FAILED = "failed"  # the event by which a child reports its error


def run_child(
    command: Sequence[str],
    request: Mapping[str, object],
    name: str,
    remedy: str,
    environment: Mapping[str, str] | None = None,
    *,
    runs_llama: bool = False,
) -> Generator[Message, None, None]:
    """Start `command`, send it `request` and yield its messages. Closing the generator early ends the child. Raises the
    UserError that the child reported; EngineError with `name` where it cannot be started, and with its last output
    where it died otherwise; WrongProcessorError where one that `runs_llama` met an instruction that is not there."""
    check_memory_limit(name, ProcessBytes.JOB)
    with unnamed_file() as errors, _started(command, name, errors, environment) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # the exit status of a child that died at once is reported below
                child.stdin.write(json.dumps(request).encode() + b"\n")
                child.stdin.flush()
            for line in child.stdout:
                yield decode_message(line)
            if child.wait() != 0:
                errors.seek(0)
                stderr = StderrTail(errors.read())
                raise exit_error(name, child.returncode, stderr, remedy, runs_llama=runs_llama)
        finally:
            with contextlib.suppress(BrokenPipeError):  # a dead child that never read its request
                child.stdin.close()
            try:
                child.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                child.kill()


def _started(
    command: Sequence[str], name: str, errors: IO[bytes], environment: Mapping[str, str] | None
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment)
    except OSError as error:
        raise start_error(name, error) from error


@contextlib.asynccontextmanager
async def open_child(
    command: Sequence[str], request: Mapping[str, object], name: str, remedy: str
) -> AsyncIterator[tuple[ChildProcess, AsyncGenerator[Message, None]]]:
    """Start `command` and send it `request`; give the child, to which more messages may be sent, and the messages that
    it sends. It is killed at the end of the block. Raises as `run_child`."""
    child = await ChildProcess.start(command, name)

    async def messages() -> AsyncGenerator[Message, None]:
        async with contextlib.aclosing(child.lines()) as lines:
            async for line in lines:
                yield decode_message(line)
        if status := await child.wait():
            raise exit_error(name, status, child.stderr, remedy)

    try:
        await child.send(request)
        async with contextlib.aclosing(messages()) as received:
            yield child, received
    finally:
        child.kill()
        await asyncio.shield(child.end(0))


def decode_message(line: bytes) -> Message:
    """Return the JSON object in a line. Raises the UserError that it reports, EngineError for anything else."""
    try:
        message: Message = json.loads(line)
        failure = ErrorInfo(**message["error"]) if message.get("event") == _FAILED else None
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise EngineError("The worker sent invalid JSON.", "Report this with the command used.") from error
    if failure is not None:
        raise failure.error()
    return message


def serve_request(
    work: Callable[[Message, Callable[[Message], None]], None],
    on_message: Callable[[Message], object] = lambda _message: None,
) -> int:
    """Be the child of `run_child`: do `work` with the request on stdin and a function that sends a message.
    Return the exit status. `on_message` gets, in a thread of its own, what the parent sends after its request."""
    os.environ["GGML_NO_BACKTRACE"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # output of native code must not come between the lines

    def send(message: Message) -> None:
        out.write(json.dumps(message).encode() + b"\n")

    messages = _stdin_messages()
    request = next(messages)
    exit_with_parent(on_message, messages)
    try:
        with reported_faults("process"):
            work(request, send)
    except UserError as error:
        send({"event": _FAILED, "error": asdict(ErrorInfo.of(error))})
        return 1
    return 0


def exit_with_parent(
    on_message: Callable[[Message], object] = lambda _message: None, messages: Iterator[Message] | None = None
) -> None:
    """Pass messages on stdin to `on_message` in a thread, and exit at once when the parent closes stdin or dies."""

    def wait() -> None:
        for message in _stdin_messages() if messages is None else messages:
            on_message(message)
        os._exit(1)

    threading.Thread(target=wait, name="parent-watch", daemon=True).start()


def _stdin_messages() -> Iterator[Message]:
    unfinished = b""  # not by sys.stdin, whose lock would outlive the interpreter
    while data := os.read(0, 4096):
        *lines, unfinished = (unfinished + data).split(b"\n")
        yield from map(json.loads, lines)
