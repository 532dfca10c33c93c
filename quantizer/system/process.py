"""Child processes: starting them, exchanging lines with them, ending them, and the error for one that died.

`ChildProcess` is a child with pipes for asyncio, `OwnedProcess` one that may outlive its owner. Interprets no line;
`quantizer.system.child_request` runs a child for one request. Imports no native code and no numpy, so that user
interfaces can use it.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import os
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO

from quantizer.system.errors import EngineError, WrongProcessorError, redact_paths
from quantizer.system.faults import remedy_for
from quantizer.system.memory_limit import ProcessBytes, check_memory_limit, out_of_memory

_LOW_NICE, _LOWEST_NICE = 10, 19
_GRACE_S = 5.0
_STDERR_WAIT_S = 0.5  # grandchildren may hold the pipe open for longer
_CHUNK_BYTES = 65536
_MAX_LINE_BYTES = 8 << 20
_MAX_TAIL_LINES, _MAX_TAIL_CHARACTERS = 50, 500
_N_REPORTED_LINES = 3


def python_command(name: str, *arguments: str) -> list[str]:
    # -P keeps the current folder off the import path: a user's folder named `app` must not be run instead of ours
    return [sys.executable, "-P", "-m", name, *arguments]


def child_environment(**variables: str) -> dict[str, str]:
    """Return this process's environment with `variables`, and -P for each Python that the child starts in turn."""
    return {**os.environ, "PYTHONSAFEPATH": "1", **variables}


def detached_process_options() -> dict[str, Any]:
    """Return subprocess options: the child gets no Ctrl-C of this terminal and opens no window of its own."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW}
    return {"start_new_session": True}


def system_root() -> Path:
    """Return the folder that is always there: a process that works in it keeps no disk from being removed."""
    return Path(os.environ.get("SYSTEMDRIVE", "C:") + "\\" if sys.platform == "win32" else "/")


def lower_priority(process_id: int, *, is_lowest: bool = False) -> None:
    """Give a process and its later children less processor time than the user interface and answers get; the least of
    all if `is_lowest`."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(process_id)
        if sys.platform == "win32":
            process.nice(psutil.IDLE_PRIORITY_CLASS if is_lowest else psutil.BELOW_NORMAL_PRIORITY_CLASS)
        else:
            process.nice(_LOWEST_NICE if is_lowest else _LOW_NICE)


def process_start(number: int) -> str:
    """Return what tells a process from later ones with its number: when it started, on Linux in a clock that nobody
    sets; "" where that cannot be found."""
    if sys.platform == "linux":
        try:  # its name, in brackets, may contain blanks and brackets
            return Path(f"/proc/{number}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
        except (OSError, IndexError):
            return ""
    import psutil

    try:
        return f"{psutil.Process(number).create_time():.2f}"
    except psutil.Error:
        return ""


def is_process_alive(process: str, started: str = "") -> bool:
    """Return whether the process with the number `process` runs, and is the one that `started` then, as `process_start`
    returned it; False for a text that is no number."""
    import psutil

    if not (process.isdecimal() and process.isascii()):
        return False
    if started and (now := process_start(int(process))) and now != started:
        return False  # another process has its number
    try:
        return psutil.Process(int(process)).status() != psutil.STATUS_ZOMBIE  # ended, and not yet noticed by its parent
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:  # another user's
        return True


def stop_job() -> None:
    """Stop this process and those that started it in its group, as a shell's job, until the shell resumes them. Not the
    whole group: a child that is between fork and exec would stop there, and as a thread waits for that exec, no shell
    would ever see this process as stopped (a quarter of the tries, while one thread starts processes)."""
    import psutil  # slow, and only this needs it

    group = os.getpgrp()
    with contextlib.suppress(psutil.Error, OSError):  # no more parents can be seen, or may be signalled
        for parent in takewhile(lambda each: os.getpgid(each.pid) == group, psutil.Process().parents()):
            parent.send_signal(signal.SIGTSTP)
    os.kill(os.getpid(), signal.SIGTSTP)


class StderrTail:
    """The last lines of a process's standard error: printable characters only, no folders (native code names its)."""

    def __init__(self, data: bytes = b"") -> None:
        self._lines: deque[str] = deque(maxlen=_MAX_TAIL_LINES)
        self._unfinished = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.feed(data)

    def feed(self, data: bytes) -> str:
        """Take more bytes and return their text. Lines may be cut anywhere; each keeps 500 characters."""
        text = self._decoder.decode(data)
        *whole, rest = (self._unfinished + text).split("\n")
        self._lines.extend(kept for line in whole if (kept := _clean(line)))
        self._unfinished = rest[:_MAX_TAIL_CHARACTERS]
        return text

    def clear(self) -> None:
        self._lines.clear()
        self._unfinished = ""

    @property
    def lines(self) -> tuple[str, ...]:
        rest = _clean(self._unfinished)
        return (*self._lines, rest) if rest else tuple(self._lines)


def _clean(line: str) -> str:
    printable = "".join(character for character in line if character.isprintable() or character == "\t")
    return redact_paths(printable.strip()[:_MAX_TAIL_CHARACTERS])


# An instruction that the processor lacks: a signal of Unix; STATUS_ILLEGAL_INSTRUCTION of Windows' ntstatus.h.
_ILLEGAL_INSTRUCTION = {-4: "SIGILL", 0xC000001D: "0xC000001D"}


# What ends a process of Windows as a signal does elsewhere, by its exit status; source: ntstatus.h.
_WINDOWS_FAULTS = {
    0xC0000005: "access violation, 0xC0000005",
    0xC0000006: "error while reading a mapped file, 0xC0000006",
    0xC0000017: "out of memory, 0xC0000017",
    0xC000001D: "illegal instruction, 0xC000001D",
    0xC0000094: "division by zero, 0xC0000094",
    0xC00000FD: "stack overflow, 0xC00000FD",
    0xC0000135: "a DLL is missing, 0xC0000135",
    0xC000013A: "Ctrl-C, 0xC000013A",
    0xC0000142: "a DLL failed to start, 0xC0000142",
    0xC0000374: "heap corruption, 0xC0000374",
    0xC0000409: "abort or buffer overrun, 0xC0000409",
}


def is_illegal_instruction(status: int | None) -> bool:
    """Return whether a process ended with `status` because its code was built for another processor."""
    return status in _ILLEGAL_INSTRUCTION


def exit_error(name: str, status: int, stderr: StderrTail, remedy: str, *, runs_llama: bool = False) -> EngineError:
    """Return the error for the process called `name` that ended with `status`: that it lacked memory within a limit,
    that its llama.cpp was built for another processor, or its last output."""
    if shortage := out_of_memory(name, stderr.lines):
        return shortage
    if runs_llama and is_illegal_instruction(status):
        cause = (
            f"llama.cpp was built for another processor: the {name} died at an instruction that this one lacks "
            f"({_ILLEGAL_INSTRUCTION[status]})."
        )
        from quantizer.system.installation import rebuild_command  # slow, and only this needs it

        return WrongProcessorError(cause, f"Build it for this one: {rebuild_command()}")
    names = {-each.value: each.name for each in signal.Signals} | _WINDOWS_FAULTS
    how = names.get(status, f"exit status {status}" if status >= 0 else f"signal {-status}")
    output = " | ".join(stderr.lines[-_N_REPORTED_LINES:])
    cause = f"The {name} died ({how})" + (f"; its last output: {output}" if output else "")
    return EngineError(cause.rstrip(".") + ".", remedy)


class ChildProcess:
    """A child process with pipes, detached from the terminal. Create it with `start`; always await `end`."""

    def __init__(self, process: Process, on_stderr: Callable[[str], None]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.stdout = process.stdout
        self.stderr = StderrTail()
        self._process = process
        self._stdin = process.stdin
        self._on_stderr = on_stderr
        self._stderr_task = asyncio.create_task(self._read_stderr(process.stderr))
        self._killer: asyncio.TimerHandle | None = None

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        name: str,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        on_stderr: Callable[[str], None] = lambda _text: None,
        max_line_bytes: int = _MAX_LINE_BYTES,
        takes: ProcessBytes = ProcessBytes.COMMAND,
        stdin: BinaryIO | None = None,
    ) -> ChildProcess:
        """Start `command` in `folder`, with the variables of `environment` added to this process's. `name` is used in
        the EngineError that is raised where the system cannot start it, or its limits of memory are below what such a
        process `takes`. The open file `stdin`, if there is one, is the child's in place of a pipe."""
        check_memory_limit(name, takes)
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=PIPE if stdin is None else stdin,
                stdout=PIPE,
                stderr=PIPE,
                cwd=folder,
                env=child_environment(**(environment or {})),
                limit=max_line_bytes,
                **detached_process_options(),
            )
        except (OSError, RuntimeError, MemoryError) as error:  # asyncio waits for each child in a thread
            raise start_error(name, error) from error
        return cls(process, on_stderr)

    @property
    def pid(self) -> int:
        return self._process.pid

    def write(self, data: bytes) -> None:
        """Queue `data` for the child's stdin. Data for a dead child is lost."""
        assert self._stdin is not None, "its stdin is a pipe"
        if not self._stdin.is_closing():
            self._stdin.write(data)

    async def send(self, message: Mapping[str, object]) -> None:
        """Write a line of JSON, and wait while the child has not read enough. A message for a dead child is lost."""
        self.write(json.dumps(message).encode() + b"\n")
        assert self._stdin is not None, "its stdin is a pipe"
        with contextlib.suppress(ConnectionError):
            await self._stdin.drain()

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """Yield the lines of stdout until the child closes it; a note takes the place of a line that is too long."""
        is_too_long = False
        while True:
            try:
                line = await self.stdout.readuntil()
            except asyncio.IncompleteReadError as error:
                line = error.partial
            except asyncio.LimitOverrunError as error:  # the start of a line beyond the limit; its rest follows
                await self.stdout.readexactly(error.consumed)
                is_too_long = True
                continue
            if not line:
                return
            yield b"[a line that was too long was dropped]\n" if is_too_long else line
            is_too_long = False

    async def wait(self) -> int:
        return await self._process.wait()

    def kill(self) -> None:
        """Kill the child, and on POSIX what it started: a worker's self-test, say, would go on without it."""
        with contextlib.suppress(ProcessLookupError):
            if sys.platform != "win32" and self._process.returncode is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()

    def kill_after(self, grace_s: float) -> None:
        """Kill the child in `grace_s` seconds if it still runs then. The first call counts."""
        self._killer = self._killer or asyncio.get_running_loop().call_later(grace_s, self.kill)

    async def end(self, grace_s: float = _GRACE_S) -> int:
        """Close the child's stdin, kill it unless it ends within `grace_s`, and return its exit status."""
        if self._stdin is not None:
            self._stdin.close()
        self.kill_after(grace_s)
        try:
            return await self._process.wait()
        finally:
            self.kill()
            if self._killer is not None:
                self._killer.cancel()
            await asyncio.wait({self._stderr_task}, timeout=_STDERR_WAIT_S)
            self._stderr_task.cancel()

    async def _read_stderr(self, stderr: asyncio.StreamReader) -> None:
        while data := await stderr.read(_CHUNK_BYTES):
            self._on_stderr(self.stderr.feed(data))


def start_error(name: str, error: Exception) -> EngineError:
    """Return the error for the process called `name` that the system could not start."""
    if shortage := out_of_memory(name, [repr(error)]):
        return shortage
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or "not enough memory"
    remedy = "Free memory or processes."
    return EngineError(
        f"The {name} cannot be started: {reason}.",
        remedy_for(error, remedy) if isinstance(error, OSError) else remedy,
    )


class OwnedProcess:
    """A child that ends with its owner, unless it is released: its stdin is closed when the owner ends or dies."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], stderr: BinaryIO) -> None:
        # asyncio would kill a process of its own with the event loop, even a released one
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=child_environment(**environment),
            **detached_process_options(),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    async def read_line(self, timeout_s: float) -> bytes:
        """Return the next line of stdout. Raises TimeoutError, and kills the process then."""
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.to_thread(self._stdout.readline)
        except TimeoutError:
            self._process.kill()
            raise

    async def end(self, grace_s: float) -> None:
        """Close the child's stdin, and kill it unless it ends within `grace_s`."""
        self._stdin.close()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await asyncio.to_thread(self._process.wait)
        finally:
            self._process.kill()  # does nothing to an ended process
            self._process.wait()
            self._stdout.close()

    def release(self) -> None:
        """Close the pipes and let the process continue without an owner."""
        self._stdin.close()
        self._stdout.close()
        self._process.returncode = 0  # Popen must not expect its end


def run_to_exit(
    command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None
) -> tuple[int, str, StderrTail]:
    """Run `command` and return its exit status, stdout and stderr. Raises TimeoutError, and kills it then, and OSError
    where the system cannot start it."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout_s, check=False, env=environment)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError from error
    return done.returncode, done.stdout.decode("utf-8", "replace"), StderrTail(done.stderr)
