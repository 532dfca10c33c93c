"""Running one command to its end: its output as it comes, its limits, and ending all that it started.

The process has a group of its own, without a terminal or input; `quantizer.system.process_tree` ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from app.tools.tool import BoundCommand
from quantizer.figures import format_number
from quantizer.system.errors import EngineError
from quantizer.system.process import detached_process_options
from quantizer.system.process_tree import ProcessTree

MAX_OUTPUT_BYTES = 64 << 20
_DRAIN_S = 0.5  # what it started may hold the pipe for longer
_PROGRESS_S = 0.1
_SHOWN_BYTES = 65_536  # at a time, while it runs


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its output as far as it is kept, its size, and its exit status, None where it was ended
    because of its output, or its time, which `reason` says."""

    output: bytes
    n_bytes: int
    status: int | None
    reason: str = ""
    is_timed_out: bool = False


class CommandTerminal(Protocol):
    """A terminal of an editor, in which commands run where a person sees them and can type."""

    @property
    def is_offered(self) -> bool:
        """Whether the editor has one; the same for as long as it is connected."""

    async def run(self, command: BoundCommand, variables: Mapping[str, str], timeout_s: float) -> Ended:
        """Run a command with the editor's own variables and these, and return how it ended. Cancelling ends it. Raises
        EngineError where the editor does not run it: then nobody does."""


async def run_to_end(
    command: Sequence[str] | str,
    program: str | None,
    folder: Path,
    environment: Mapping[str, str],
    timeout_s: float,
    on_output: Callable[[bytes], None],
    *,
    takes_errors: bool = True,
) -> Ended:
    """Run `program` in `folder` with the arguments `command`, or a text by that shell (None: the system's), and return
    how it ended; `on_output` gets output as it comes, a part of it where there is too much. What it writes to stderr is
    output too, or with `takes_errors` False nobody's. Cancelling ends the command. Raises EngineError if the system
    cannot start it."""
    loop = asyncio.get_running_loop()
    is_text = isinstance(command, str)
    start = loop.subprocess_shell if is_text else loop.subprocess_exec
    starting = asyncio.ensure_future(
        start(
            lambda: _Watcher(loop, on_output),
            *((command,) if isinstance(command, str) else command),
            executable=program,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if takes_errors else subprocess.DEVNULL,
            cwd=folder,
            env=dict(environment),
            **detached_process_options(),
        )
    )
    try:
        # Cancelled while it starts, asyncio would kill the process alone, and not what it has started by then.
        transport, watcher = await asyncio.shield(starting)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        name = program or "the shell" if is_text else command[0]
        raise EngineError(f"{name} cannot be started: {reason}.", "Check the name of the program.") from error
    except asyncio.CancelledError:
        with contextlib.suppress(OSError, ValueError):
            await _end(*await starting)
        raise
    try:
        reason, is_timed_out = await watcher.wait(timeout_s), False
    except TimeoutError:
        reason, is_timed_out = f"it took more than {format_number(timeout_s)} s", True
    finally:
        await asyncio.shield(_end(transport, watcher))
    watcher.show()
    buffer = watcher.buffer
    return Ended(buffer.kept, buffer.n_bytes, None if reason else transport.get_returncode(), reason, is_timed_out)


async def _end(transport: asyncio.SubprocessTransport, watcher: _Watcher) -> None:
    """End the command if it runs, and all that it started."""
    await ProcessTree(transport.get_pid(), watcher.exited.done).end()
    transport.close()
    await watcher.exited


class _Watcher(asyncio.SubprocessProtocol):
    """Takes the output of a command, and knows when it has ended: what it started may hold the output for longer."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_output: Callable[[bytes], None]) -> None:
        self.buffer = OutputBuffer()
        self.exited: asyncio.Future[None] = loop.create_future()
        self._closed: asyncio.Future[None] = loop.create_future()
        self._flooded: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._on_output = on_output
        self._waiting = b""
        self._timer: asyncio.TimerHandle | None = None

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        del fd
        if self._flooded.done():
            return
        self.buffer.add(data)
        self._waiting = (self._waiting + data)[-_SHOWN_BYTES:]
        self._timer = self._timer or self._loop.call_later(_PROGRESS_S, self.show)
        if self.buffer.n_bytes > MAX_OUTPUT_BYTES:
            self._flooded.set_result(None)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        del fd, exc
        if not self._closed.done():
            self._closed.set_result(None)

    def process_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(None)

    def show(self) -> None:
        """Pass on the output that came since the last time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, waiting, self._waiting = None, self._waiting, b""
        if waiting:
            self._on_output(waiting)

    async def wait(self, timeout_s: float) -> str:
        """Wait until the command has ended; return why it has to be ended instead, "" if not. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            await asyncio.wait({self.exited, self._flooded}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({self._closed, self._flooded}, timeout=_DRAIN_S, return_when=asyncio.FIRST_COMPLETED)
        return f"it wrote more than {MAX_OUTPUT_BYTES >> 20} MiB" if self._flooded.done() else ""


_MAX_HEAD_BYTES, _MAX_TAIL_BYTES = 512 << 10, 512 << 10


class OutputBuffer:
    """Keeps the first and the last half MiB of what is added; `n_bytes` counts all of it."""

    def __init__(self) -> None:
        self.n_bytes = 0
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        self.n_bytes += len(data)
        n_fitting = _MAX_HEAD_BYTES - len(self._head)
        self._head += data[:n_fitting]
        self._tail += data[n_fitting:]
        if len(self._tail) > 2 * _MAX_TAIL_BYTES:
            del self._tail[:-_MAX_TAIL_BYTES]

    @property
    def n_left_out(self) -> int:
        """How many bytes between head and tail are not kept."""
        return self.n_bytes - len(self._head) - len(self._last)

    @property
    def kept(self) -> bytes:
        """The head, and the tail after a line that says how much is missing between them."""
        missing = f"\n[{self.n_left_out:,} bytes were left out here]\n".encode() if self.n_left_out else b""
        return bytes(self._head) + missing + self._last

    @property
    def _last(self) -> bytes:
        return bytes(self._tail[-_MAX_TAIL_BYTES:])
