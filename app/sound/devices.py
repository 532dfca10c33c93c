"""Recording and playing beside a user interface: the device is opened by a child process, `app.sound.device_child`.

Imports no native code. Raises UsageError where the extra `audio` is not installed, SoundDeviceError where there is no
device or it refuses, EngineError where the child died.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from pathlib import Path

from app.common.extras import AUDIO
from app.protocol.speech import Said
from quantizer.system.child_request import Message, open_child
from quantizer.system.errors import UserError, registered
from quantizer.system.process import ChildProcess, python_command

MAX_RECORDED_S = 600.0
_OPENED_WITHIN_S = 15.0  # Python starts in this time from a cold disk; a sound server that hangs never answers


@registered
class SoundDeviceError(UserError):
    """A microphone or a loudspeaker that is absent, busy, refuses or fails."""


async def record(
    path: Path,
    must_stop: asyncio.Event,
    on_time: Callable[[float], object],
    max_s: float = MAX_RECORDED_S,
    backends: Sequence[str] = (),
) -> float:
    """Write what the microphone hears into the empty file at `path`, as WAV of 16 kHz, mono, 16 bits, until `must_stop`
    is set or for `max_s` seconds; return its length in seconds. `on_time` gets the seconds so far. Cancelling ends it,
    and leaves the file to the caller. Raises StorageError where it cannot be written, and SoundDeviceError also where
    all of it is silence: systems give that to a program that may not record."""
    request = {"task": "record", "path": str(path), "max_s": max_s, "backends": list(backends)}
    async with _device_child(request) as (child, messages):

        async def send_stop() -> None:
            await must_stop.wait()
            await child.send({"event": "stop"})

        stopping = asyncio.create_task(send_stop())
        try:
            message = await _first(messages, "microphone")
            while "length_s" not in message:
                on_time(message["recorded_s"])
                message = await anext(messages)
        finally:
            stopping.cancel()
    if message["is_silent"] and message["length_s"]:
        raise SoundDeviceError(
            "The microphone gave silence only.",
            "Unmute it, choose it in the system's sound settings, and allow it for this terminal in the privacy ones.",
        )
    return float(message["length_s"])


async def play(
    sentences: AsyncGenerator[Said, None], on_sentence: Callable[[Said], object], backends: Sequence[str] = ()
) -> None:
    """Play sentences as they come, the first at once, and return when the last was heard. `on_sentence` gets each
    before it is played. They are not begun where there is no loudspeaker. Cancelling ends the sound and the sentences.
    Raises also what the sentences raise."""
    async with _device_child({"task": "play", "backends": list(backends)}) as (child, messages):
        await _first(messages, "loudspeaker")

        async def feed() -> None:
            async with aclosing(sentences):
                async for said in sentences:
                    on_sentence(said)
                    await child.send({"samples": b64encode(said.samples).decode(), "sample_rate": said.sample_rate})
            await child.send({"event": "end"})

        feeding, ending = asyncio.create_task(feed()), asyncio.ensure_future(anext(messages))
        try:
            await asyncio.wait({feeding, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():  # else the device failed
                await feeding
            await ending
        finally:
            feeding.cancel()
            ending.cancel()
            await asyncio.gather(feeding, ending, return_exceptions=True)


async def _first(messages: AsyncGenerator[Message, None], device: str) -> Message:
    try:
        async with asyncio.timeout(_OPENED_WITHIN_S):
            return await anext(messages)
    except TimeoutError:
        raise SoundDeviceError(f"The {device} does not answer.", "Restart the system's sound server.") from None


def _device_child(
    request: Mapping[str, object],
) -> AbstractAsyncContextManager[tuple[ChildProcess, AsyncGenerator[Message, None]]]:
    if not AUDIO.is_installed:
        raise AUDIO.missing
    return open_child(python_command("app.sound.device_child"), request, "sound process", "Try again.")
