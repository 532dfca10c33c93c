"""A sound device without a machine: this program, run with a KIND, takes the place of `app.sound.device_child`.

KIND is "tone" (a microphone that hears one, for a second), "silence", "absent", "dies" or "hangs".
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


def _serve(kind: str) -> int:
    request = json.loads(sys.stdin.readline())
    if kind == "hangs":
        time.sleep(600)
    if kind == "dies":
        print("cannot find card", file=sys.stderr, flush=True)
        return 3
    if kind == "absent":
        cause = "The microphone cannot be opened."
        _say(event="failed", error={"kind": "SoundDeviceError", "cause": cause, "remedy": "Connect one."})
        return 1
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
