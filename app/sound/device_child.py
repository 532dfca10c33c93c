"""The child process that opens a sound device (this module as `__main__`); `app.sound.devices` starts it.

miniaudio is native code, which no user interface loads; and a sound server that hangs is killed with this process. Owns
the messages: a request names its `task`, and its `backends` by miniaudio's names (empty: those of the system).
"""

from __future__ import annotations

import sys
import time
from base64 import b64decode
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from app.common.wav import wav_header
from app.sound.devices import SoundDeviceError
from quantizer.system.child_request import serve_request
from quantizer.system.files import explained

Message = dict[str, Any]
_RECORDED_HZ = 16_000  # what models that hear are trained on
_BYTES_PER_S = 2 * _RECORDED_HZ
_PERIOD_MS = 50
_SENT_EVERY_S = 0.2
_STALLED_S = 3.0
_PLAYED_HZ = 24_000  # what models that speak give
_TAIL_S = 0.3  # what a device has taken and not yet played


def record(request: Message, send: Callable[[Message], None], messages: SimpleQueue[Message]) -> None:
    """Write what the microphone hears into the file at `path`, as WAV of 16 kHz, mono, 16 bits, until a message
    comes or for `max_s` seconds. Sends {"recorded_s"} now and then, and last {"length_s", "is_silent"}. Raises
    SoundDeviceError, and StorageError where the file cannot be written."""
    blocks = SimpleQueue[bytes]()
    path, n_bytes, max_bytes = Path(request["path"]), 0, round(request["max_s"] * _RECORDED_HZ) * 2
    is_silent, sent_s = True, 0.0

    def take() -> Generator[None, bytearray, None]:
        while True:
            blocks.put(bytes((yield)))

    taking = take()
    next(taking)
    with (
        explained("The recording cannot be stored", "Free some space, or set TMPDIR to another folder."),
        path.open("r+b") as file,
    ):
        file.write(wav_header(_RECORDED_HZ, 0))
        with _opened("microphone", _RECORDED_HZ, request["backends"]) as device:
            with _refusals("microphone"):
                device.start(taking)
            send({"recorded_s": 0.0})
            heard_s = time.monotonic()
            while n_bytes < max_bytes:
                try:
                    block = blocks.get(timeout=_PERIOD_MS / 1000 if messages.empty() else 0)
                except Empty:
                    if not messages.empty():
                        break
                    if time.monotonic() - heard_s > _STALLED_S:  # unplugged, say: miniaudio does not tell everywhere
                        raise SoundDeviceError(
                            "The microphone sends no sound any more.", "Check its plug, and record again."
                        ) from None
                    continue
                heard_s = time.monotonic()
                block = block[: max_bytes - n_bytes]
                file.write(block)
                n_bytes += len(block)
                is_silent = is_silent and block.count(0) == len(block)
                if heard_s - sent_s >= _SENT_EVERY_S:
                    sent_s = heard_s
                    send({"recorded_s": n_bytes / _BYTES_PER_S})
        file.seek(0)
        file.write(wav_header(_RECORDED_HZ, n_bytes))
    send({"length_s": n_bytes / _BYTES_PER_S, "is_silent": is_silent})


def play(request: Message, send: Callable[[Message], None], messages: SimpleQueue[Message]) -> None:
    """Play the `samples` of each message (Base64 of 16 bits, mono, all of one `sample_rate`) one behind the other, and
    silence where the next ones are late, until {"event": "end"}. Sends {"is_open"} at once where there is a
    loudspeaker, and {"is_played"} at the end. Raises SoundDeviceError."""
    _opened("loudspeaker", _PLAYED_HZ, request["backends"]).close()  # before anybody computes what nobody would hear
    send({"is_open": True})
    waiting = bytearray()

    def give() -> Generator[bytes, int, None]:
        block = b""
        while True:
            n_bytes = 2 * (yield block)
            block = bytes(waiting[:n_bytes])
            del waiting[:n_bytes]
            block += bytes(n_bytes - len(block))

    giving = give()
    next(giving)
    device = None
    try:
        while (message := messages.get()).get("event") != "end":
            if device is None:
                device = _opened("loudspeaker", message["sample_rate"], request["backends"])
                with _refusals("loudspeaker"):
                    device.start(giving)
            waiting += b64decode(message["samples"])
        n_before, taken_s = len(waiting), time.monotonic()
        while waiting:
            time.sleep(_PERIOD_MS / 1000)
            if len(waiting) < n_before:
                n_before, taken_s = len(waiting), time.monotonic()
            elif time.monotonic() - taken_s > _STALLED_S:
                raise SoundDeviceError("The loudspeaker takes no sound any more.", "Check its plug.")
        time.sleep(_TAIL_S)
    finally:
        if device is not None:
            device.close()
    send({"is_played": True})


def _opened(name: str, sample_rate: int, backends: Sequence[str]) -> Any:
    """Return the device called `name`, for mono samples of 16 bits. Raises SoundDeviceError."""
    import miniaudio

    kind = {"microphone": miniaudio.CaptureDevice, "loudspeaker": miniaudio.PlaybackDevice}[name]
    with _refusals(name):
        return kind(miniaudio.SampleFormat.SIGNED16, 1, sample_rate, _PERIOD_MS, backends=_backends(backends))


def _backends(names: Sequence[str]) -> list[Any]:
    """Return the backends with these names, else all that lead to a device: miniaudio's last resort is one that only
    makes silence."""
    import miniaudio

    unreal = {miniaudio.Backend.NULL, miniaudio.Backend.CUSTOM}
    return [miniaudio.Backend[name] for name in names] or [each for each in miniaudio.Backend if each not in unreal]


@contextmanager
def _refusals(name: str) -> Iterator[None]:
    """Raise SoundDeviceError for an error of miniaudio about the device called `name`."""
    import miniaudio

    try:
        yield
    except miniaudio.MiniaudioError as error:
        code = error.args[-1] if isinstance(error.args[-1], int) else 0
        if code == miniaudio.lib.MA_ACCESS_DENIED:
            cause, remedy = "is refused by the system", "Allow it for this terminal in the system's privacy settings."
        elif code in (miniaudio.lib.MA_BUSY, miniaudio.lib.MA_ALREADY_IN_USE):
            cause, remedy = "is in use", "End the program that uses it."
        else:  # ALSA tells a device that is absent from one that is busy in no other way than on stderr
            cause, remedy = f"cannot be opened (miniaudio {code})", "Connect one, and end programs that use it alone."
        raise SoundDeviceError(f"The {name} {cause}.", remedy) from error


_TASKS: Mapping[str, Callable[[Message, Callable[[Message], None], SimpleQueue[Message]], None]] = {
    "record": record,
    "play": play,
}


if __name__ == "__main__":
    _messages = SimpleQueue[Message]()
    sys.exit(serve_request(lambda request, send: _TASKS[request["task"]](request, send, _messages), _messages.put))
