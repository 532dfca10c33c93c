"""A clock of the day that jumps, for this process and for every Python process that it starts; the system's stays.

Owns the offset, in a file, and how processes get it: as `sitecustomize`, which Python imports first.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["JumpingClock", "jumping_clock"]

_SITE = """
import time

real_s, real_ns = time.time, time.time_ns


def offset_s():
    try:
        with open({place!r}) as file:
            return float(file.read() or 0)
    except OSError:
        return 0.0


time.time = lambda: real_s() + offset_s()
time.time_ns = lambda: real_ns() + int(offset_s() * 10**9)
"""


class JumpingClock:
    """The offset of the clock, kept at `place`."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def jump(self, offset_s: float) -> None:
        """Put the clock that many seconds from the system's."""
        beside = self._place.with_suffix(".new")
        beside.write_text(str(offset_s))
        beside.replace(self._place)


@contextmanager
def jumping_clock(folder: Path) -> Iterator[JumpingClock]:
    """Give this process and those that it starts a clock of the day that can be put, kept in `folder`."""
    place = folder / "offset"
    script = _SITE.format(place=str(place))
    (folder / "sitecustomize.py").write_text(script)
    before, real = os.environ.get("PYTHONPATH"), (time.time, time.time_ns)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), before)))
    exec(script, {})  # as the children run it
    try:
        yield JumpingClock(place)
    finally:
        time.time, time.time_ns = real
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
