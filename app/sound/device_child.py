"""The child process that opens a sound device (this module as `__main__`); `app.sound.devices` starts it.

miniaudio is native code, which no user interface loads; and a sound server that hangs is killed with this process. Owns
the messages: a request names its `task`, and its `backends` by miniaudio's names (empty: those of the system).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event
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


def record(request: Message, send: Callable[[Message], None], must_stop: Event) -> None:
    """Write what the microphone hears into the file at `path`, as WAV of 16 kHz, mono, 16 bits, until told to stop or
    for `max_s` seconds. Sends {"recorded_s"} now and then, and last {"length_s", "is_silent"}. Raises SoundDeviceError,
    and StorageError where the file cannot be written."""
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
        with _microphone(request["backends"]) as device:
            with _refusals("microphone"):
                device.start(taking)
            send({"recorded_s": 0.0})
            heard_s = time.monotonic()
            while n_bytes < max_bytes:
                try:
                    block = blocks.get(timeout=0 if must_stop.is_set() else _PERIOD_MS / 1000)
                except Empty:
                    if must_stop.is_set():
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


def _microphone(backends: Sequence[str]) -> Any:
    import miniaudio

    with _refusals("microphone"):
        return miniaudio.CaptureDevice(
            miniaudio.SampleFormat.SIGNED16, 1, _RECORDED_HZ, _PERIOD_MS, backends=_backends(backends)
        )


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


_TASKS: Mapping[str, Callable[[Message, Callable[[Message], None], Event], None]] = {"record": record}


if __name__ == "__main__":
    _must_stop = Event()
    sys.exit(
        serve_request(
            lambda request, send: _TASKS[request["task"]](request, send, _must_stop),
            lambda _message: _must_stop.set(),
        )
    )
