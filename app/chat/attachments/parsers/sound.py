"""Sounds → their length, from their headers. The engine decodes them."""

from __future__ import annotations

import math
from collections.abc import Callable

from app.chat.attachments.parsing import PageChoice, ParsedFile, RefusedFileError

MAX_SOUND_S = 30 * 60


def prepare() -> None:
    """Load the library."""
    import miniaudio  # noqa: F401


def parse(data: bytes, _pages: PageChoice, _progress: Callable[[], None]) -> ParsedFile:
    """Return the length of a sound. Raises RefusedFileError for one that is empty or longer than 30 minutes."""
    import miniaudio

    if data[:4] in (b"RIFF", b"RF64"):
        info = miniaudio.wav_get_info(data)
    elif data[:4] == b"fLaC":
        info = miniaudio.flac_get_info(data)
    elif data[:4] == b"OggS":
        info = miniaudio.vorbis_get_info(data)
    else:
        info = miniaudio.mp3_get_info(data)
    return ParsedFile(detail=_length(float(info.duration)))


def _length(length_s: float) -> str:
    """Return a length as minutes and seconds."""
    if not math.isfinite(length_s) or length_s <= 0:
        raise RefusedFileError("has no sound in it.", "Attach a whole file.")
    minutes, seconds = divmod(round(length_s), 60)
    if length_s > MAX_SOUND_S:
        cause = f"is {minutes:,} minutes long."
        raise RefusedFileError(cause, f"Attach parts of at most {MAX_SOUND_S // 60} minutes.")
    return f"{minutes}:{seconds:02}"
