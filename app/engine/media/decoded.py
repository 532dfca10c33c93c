"""Decoded pictures and sounds, and the protocol of what decodes them. Pure values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

MAX_SIDE = 4096  # pixels of a decoded picture; larger ones are scaled down, for projectors take far fewer
MAX_SOUND_S = 30 * 60
MIN_SOUND_S = 0.1  # libmtmd ends the process for a single sample, and reads past the end of a few


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """A picture of `width` × `height` pixels; `rgb` has three bytes for each, row by row."""

    width: int
    height: int
    rgb: bytes

    def __post_init__(self) -> None:
        assert len(self.rgb) == 3 * self.width * self.height, "every pixel is there"


@dataclass(frozen=True, slots=True, eq=False)
class Sound:
    """A sound of one channel: its samples at the rate that was asked for, shape (n_samples,)."""

    samples: NDArray[np.float32]


class MediaDecoder(Protocol):
    """A decoder of files. Calls come from one thread and may take seconds.

    Raises RequestError for damaged, too large and unsupported files, EngineError where none can be decoded.
    """

    def picture(self, data: bytes) -> Picture: ...

    def sound(self, data: bytes, sample_rate: int) -> Sound: ...

    def close(self) -> None: ...
