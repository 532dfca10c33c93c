"""A sound device without a machine: this program, run with a KIND, takes the place of `app.sound.device_child`.

KIND is "tone" (a microphone that hears one, for a second), "silence", "absent", "dies" or "hangs". What it plays
nobody hears: "mute" plays all at once, "slow" never comes to the end, "unplugged" fails at the first sentence.
"""

from __future__ import annotations

import json
import struct
import sys
import time
import wave
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest  # which takes the child longer than all else

_HZ = 16_000
_TONE = struct.pack("<2h", 9_000, -9_000) * (_HZ // 2)


def put_device(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Let this fake be the machine's device."""
    from app.sound import devices

    monkeypatch.setattr(devices, "python_command", lambda _name: [sys.executable, __file__, kind])


def _say(**message: object) -> None:
    print(json.dumps(message), flush=True)


def _fail(cause: str) -> None:
    _say(event="failed", error={"kind": "SoundDeviceError", "cause": cause, "remedy": "Connect one."})


def _play(kind: str) -> int:
    _say(is_open=True)
    while json.loads(sys.stdin.readline()).get("event") != "end":
        if kind == "unplugged":
            _fail("The loudspeaker takes no sound any more.")
            return 1
    if kind == "slow":
        time.sleep(600)
    _say(is_played=True)
    return 0


def _serve(kind: str) -> int:
    request = json.loads(sys.stdin.readline())
    if kind == "hangs":
        time.sleep(600)
    if kind == "dies":
        print("cannot find card", file=sys.stderr, flush=True)
        return 3
    if kind == "absent":
        _fail(f"The {'microphone' if request['task'] == 'record' else 'loudspeaker'} cannot be opened.")
        return 1
    if request["task"] == "play":
        return _play(kind)
    _say(recorded_s=0.0)
    _say(recorded_s=61.0)
    if request["max_s"] > 1.0:
        sys.stdin.readline()
    with wave.open(request["path"], "wb") as file:
        file.setparams((1, 2, _HZ, 0, "NONE", ""))
        file.writeframes(_TONE if kind == "tone" else bytes(len(_TONE)))
    _say(length_s=1.0, is_silent=kind == "silence")
    return 0


if __name__ == "__main__":
    sys.exit(_serve(sys.argv[1]))
