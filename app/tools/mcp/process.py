"""A server as a child process: lines of JSON on its standard streams, with bounds on all that it writes.

Owns what the process sees (an environment given in full, no terminal), how long its lines may be, and ending it with
everything that it started. A server that outlived a killed localllm is found by a mark in its environment, which its
children inherit, and is ended at the next start; the mark has the process's number and start time, since numbers are
used again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path

from app.tools.mcp.config import StdioLaunch, ToolError
from quantizer.system.process import StderrTail, detached_process_options
from quantizer.system.process_tree import ProcessTree

MAX_MESSAGE_BYTES = 16 << 20
_MAX_WAITING_BYTES = 16 << 20  # that the server has not read
_MAX_LOGGED_BYTES = 64 << 10  # of standard error, for each start
_CHUNK_BYTES = 64 << 10
_EXIT_WAIT_S = 1.0  # a server that closed its output ends soon
_STDERR_WAIT_S = 0.2  # grandchildren may hold the pipe open for longer
_INSTALLED_WITH = {
    "npx": "Install Node.js, which brings npx.",
    "node": "Install Node.js.",
    "npm": "Install Node.js, which brings npm.",
    "bunx": "Install Bun, which brings bunx.",
    "uvx": "Install uv, which brings uvx: pip install uv",
    "uv": "Install uv: pip install uv",
    "docker": "Install Docker.",
    "deno": "Install Deno.",
}


class ServerProcess:
    """A running server. Create it with `start`; always await `end`."""

    def __init__(self, process: Process, on_stderr: Callable[[str], None]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.problem = ""
        self._process = process
        self._stdin, self._stdout = process.stdin, process.stdout
        # a descendant may hold its pipes open after the process itself has ended
        self._tree = ProcessTree(process.pid, lambda: process.returncode is not None)
        self._stderr = StderrTail()
        self._on_stderr = on_stderr
        self._stderr_task = asyncio.create_task(self._read_stderr(process.stderr))

    @classmethod
    async def start(
        cls, launch: StdioLaunch, environment: Mapping[str, str], on_stderr: Callable[[str], None]
    ) -> ServerProcess:
        """Start `launch` with exactly `environment`. Raises ToolError where the system cannot start it."""
        if launch.cwd and not Path(launch.cwd).is_dir():  # noqa: ASYNC240 - one look
            raise ToolError(f"Its folder {launch.cwd!r} is not there.", "Correct `cwd` in mcp.json.")
        command = launch.command
        if Path(command).name != command:  # one with a folder in its name is relative to where it starts
            command = str(Path(launch.cwd or ".", command).absolute())  # noqa: ASYNC240
        program = shutil.which(command, path=environment.get("PATH"))
        if program is None:
            remedy = _INSTALLED_WITH.get(launch.command, "Install it, or write its whole path into mcp.json.")
            raise ToolError(f"The command {launch.command!r} is not found.", remedy)
        try:
            process = await asyncio.create_subprocess_exec(
                program,
                *launch.args,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                cwd=launch.cwd or None,
                env=dict(environment),
                **detached_process_options(),
            )
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            cause = f"{launch.command!r} cannot be started: {reason}."
            raise ToolError(cause, "Correct its entry in mcp.json.") from error
        return cls(process, on_stderr)

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """Yield whole lines of its output, until it closes it or a line is too long; `problem` then says so."""
        pieces: list[bytes] = []
        n_bytes = 0
        while chunk := await self._stdout.read(_CHUNK_BYTES):
            *whole, rest = chunk.split(b"\n")
            for line in whole:
                yield b"".join((*pieces, line))
                pieces, n_bytes = [], 0
            pieces.append(rest)
            n_bytes += len(rest)
            if n_bytes > MAX_MESSAGE_BYTES:
                self.problem = f"it wrote a message of more than {MAX_MESSAGE_BYTES >> 20} MiB"
                return

    def write_line(self, line: bytes) -> None:
        """Queue a line for its input. A server that reads nothing is killed before that fills the memory."""
        if self._stdin.is_closing():
            return
        self._stdin.write(line + b"\n")
        if self._stdin.transport.get_write_buffer_size() > _MAX_WAITING_BYTES:
            self.problem = "it does not read what it is sent"
            self._tree.kill()

    async def wait_exited(self) -> str:
        """Return how it ended, as a part of a sentence with its last words; waits a moment for both."""
        await self._tree.ended_within(_EXIT_WAIT_S)
        await asyncio.wait({self._stderr_task}, timeout=_STDERR_WAIT_S)
        status = self._process.returncode
        how = self.problem or ("it closed its output" if status is None else f"exit status {status}")
        lines = self._stderr.lines[-3:]
        return f"{how}; its last output: {' | '.join(lines)}" if lines else how

    async def end(self) -> None:
        """Close its input, and kill it with all that it started unless it ends by itself."""
        try:
            await self._tree.end(self._stdin.close)
        finally:
            await asyncio.wait({self._stderr_task}, timeout=_STDERR_WAIT_S)
            self._stderr_task.cancel()
            # the pipes, which a surviving grandchild may hold open; nothing public closes them
            if (transport := getattr(self._process, "_transport", None)) is not None:
                with contextlib.suppress(PermissionError):
                    transport.close()

    async def _read_stderr(self, stderr: asyncio.StreamReader) -> None:
        n_logged = 0
        while data := await stderr.read(_CHUNK_BYTES):
            text = self._stderr.feed(data)
            if n_logged <= _MAX_LOGGED_BYTES:
                self._on_stderr(text[: _MAX_LOGGED_BYTES - n_logged])
                n_logged += len(data)
                if n_logged > _MAX_LOGGED_BYTES:
                    self._on_stderr("more of its output is not logged")


OWNER_VARIABLE = "LOCALLLM_MCP_OWNER"
_MARK = re.compile(r"([0-9]{1,9})-([0-9]{1,12})")
_GRACE_S = 2.0
_CLOCK_TOLERANCE_S = 3600.0  # starts are told by a clock that may be set meanwhile


def owner_mark() -> str:
    """Return the value of the variable for what this process starts."""
    import psutil  # slow, and only servers need it

    process = psutil.Process()
    return f"{process.pid}-{process.create_time():.0f}"


def end_orphans() -> int:
    """End the servers of processes that are gone, and return how many there were. Takes about a tenth of a second."""
    import psutil

    orphans = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # those of others cannot be looked into
            mark = process.environ().get(OWNER_VARIABLE, "") if process.pid != os.getpid() else ""
            if mark and not _is_alive(mark):
                orphans.append(process)
                process.terminate()
    _, alive = psutil.wait_procs(orphans, timeout=_GRACE_S)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return len(orphans)


def _is_alive(mark: str) -> bool:
    """Return whether the process of a mark runs; of one that is none of ours that is not known, so it does."""
    import psutil

    found = _MARK.fullmatch(mark)
    if found is None:
        return True
    try:
        started_s = psutil.Process(int(found.group(1))).create_time()
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
    return abs(started_s - float(found.group(2))) < _CLOCK_TOLERANCE_S
