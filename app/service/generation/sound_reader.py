"""The child process that decodes a long sound and cuts it into windows, and what it says of each.

A process for each sound, which ends with it. `app.engine.media.sound_windows` is the child. The service keeps one
window in memory, however long the sound is.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, BinaryIO

from app.protocol.errors import RequestError
from quantizer.system.memory_limit import ProcessBytes
from quantizer.system.process import ChildProcess, python_command

SAMPLE_RATE = 16_000  # of nearly all encoders; another one's decoder samples it again
TIMEOUT_S = 60.0  # for the next window; 30 s of an MP3 take 0.1 s
_NAME = "sound reader"
_MAX_WINDOW_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a sound of `length_s` as it declares it (0: not at all): `base64` is a WAV file, "" where nobody
    speaks. Where `is_cut` somebody speaks at its end, and the next window overlaps it."""

    begin_s: float
    end_s: float
    length_s: float
    is_cut: bool
    base64: str


async def windows_of(file: BinaryIO) -> AsyncGenerator[Window, None]:
    """Yield the windows of a sound; `file` is an open one of the system. Closing the generator ends the child. Raises
    RequestError for a file that cannot be decoded, EngineError where the child cannot be started."""
    command = python_command("app.engine.media.sound_windows", str(SAMPLE_RATE))
    child = await ChildProcess.start(command, _NAME, takes=ProcessBytes.JOB, stdin=file)
    length_s = 0.0
    try:
        while True:
            message, data = await _next_message(child)
            if "cause" in message:
                raise RequestError(str(message["cause"]), str(message["remedy"]))
            if "is_end" in message:
                return
            if "length_s" in message:
                length_s = float(message["length_s"])
                continue
            yield Window(
                float(message["begin_s"]),
                float(message["end_s"]),
                length_s,
                bool(message["is_cut"]),
                b64encode(data).decode(),
            )
    finally:
        child.kill()
        await child.end(0.0)


async def _next_message(child: ChildProcess) -> tuple[dict[str, Any], bytes]:
    """Return what the child says next, and the bytes behind it."""
    remedy = "Send another sound, or save it again with a program that can open it."
    try:
        async with asyncio.timeout(TIMEOUT_S):
            message = json.loads(await child.stdout.readuntil())
            return message, await child.stdout.readexactly(min(int(message["n_bytes"]), _MAX_WINDOW_BYTES))
    except TimeoutError:
        raise RequestError(f"A part of the sound took more than {TIMEOUT_S:.0f} s to decode.", remedy) from None
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, RecursionError, LookupError, TypeError):
        cause = f"The sound ended the {_NAME}: the file is damaged, or it needs too much memory."
        raise RequestError(cause, remedy) from None
