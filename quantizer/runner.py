"""The parent's side of a job: starts the process, hands out its events, and clears up when it is cancelled.

`run_job` waits for each event; `conversing` is for who has other things to do meanwhile, and tells the job which files
came. It imports no native code and no numpy, so a face may use it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from quantizer.child import checked, death, lines_of
from quantizer.events import Event, decode_event
from quantizer.job import JobRequest
from quantizer.output import discard_partial

__all__ = ["Conversation", "conversing", "run_job"]

_PROCESS = "quantizing process"
_MAX_LINE_BYTES = 4 << 20
_GRACE_S = 5.0

_REMEDY = "Run it again: it goes on where it stopped."


def run_job(request: JobRequest) -> Iterator[Event]:
    """Run a job in a child process and yield its events as they come; closing the iterator cancels it.

    Raises the job's own UserError when it failed, EngineError with its last words when the process died. A job that
    failed or was cancelled (Ctrl-C too) leaves nothing; one that was killed, with or without its parent, leaves what it
    wrote under partial names, and the same request goes on from there.
    """
    try:
        with closing(lines_of(_command(), asdict(request), _PROCESS, _REMEDY)) as lines:
            for line in lines:
                yield decode_event(line)
    except (GeneratorExit, KeyboardInterrupt):
        discard_partial(Path(request.output))
        raise


@dataclass(frozen=True, slots=True)
class Conversation:
    """A job that runs, while its parent does other things."""

    child: asyncio.subprocess.Process
    errors: IO[bytes]

    async def events(self) -> AsyncIterator[Event]:
        """Yield what it says as it comes. Raises as `run_job` does."""
        assert self.child.stdout is not None
        async for line in self.child.stdout:
            yield decode_event(checked(line))
        if (status := await self.child.wait()) != 0:
            raise death(_PROCESS, status, self.errors, _REMEDY)

    async def came(self, name: str) -> None:
        """Tell it that the file `name` is whole."""
        await self.say({"came": name})

    async def say(self, line: Mapping[str, object]) -> None:
        assert self.child.stdin is not None
        with suppress(ConnectionError):  # a child that ended tells of it by what it said, or by its status
            self.child.stdin.write(json.dumps(line).encode() + b"\n")
            await self.child.stdin.drain()


@asynccontextmanager
async def conversing(request: JobRequest) -> AsyncIterator[Conversation]:
    """Run a job as long as the block lasts. However that ends, what the job wrote stays for the same request."""
    with tempfile.TemporaryFile() as errors:
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(
            *_command(), stdin=pipe, stdout=pipe, stderr=errors, limit=_MAX_LINE_BYTES
        )
        job = Conversation(child, errors)
        try:
            await job.say(asdict(request))
            yield job
        finally:
            await _end(child)


async def _end(child: asyncio.subprocess.Process) -> None:
    """Let the child go, which it does when its stdin ends, and make sure."""
    assert child.stdin is not None
    child.stdin.close()
    try:
        await asyncio.wait_for(child.wait(), _GRACE_S)
    except TimeoutError:
        child.kill()
        await child.wait()


def _command() -> list[str]:
    return [sys.executable, "-P", "-m", "quantizer.job"]
