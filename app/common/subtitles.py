"""Segments of a transcript as subtitles: SubRip (SRT) and WebVTT."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Protocol


class TimedText(Protocol):
    """A text, and when it is said, in seconds."""

    @property
    def begin_s(self) -> float: ...

    @property
    def end_s(self) -> float: ...

    @property
    def text(self) -> str: ...


def srt(segments: Iterable[TimedText]) -> str:
    """Return a file of SubRip."""
    return "\n".join(
        f"{number}\n{_time(each.begin_s, ',')} --> {_time(each.end_s, ',')}\n{_line(each.text)}\n"
        for number, each in enumerate(segments, 1)
    )


def vtt(segments: Iterable[TimedText]) -> str:
    """Return a file of WebVTT (source: https://www.w3.org/TR/webvtt1/)."""
    cues = (
        f"{_time(each.begin_s, '.')} --> {_time(each.end_s, '.')}\n{html.escape(_line(each.text), quote=False)}\n"
        for each in segments
    )
    return "\n".join(("WEBVTT\n", *cues))


def _time(seconds: float, point: str) -> str:
    n_ms = round(1000 * seconds)
    return f"{n_ms // 3_600_000:02d}:{n_ms // 60_000 % 60:02d}:{n_ms // 1000 % 60:02d}{point}{n_ms % 1000:03d}"


def _line(text: str) -> str:
    """Return a text as one line: an empty one would end it, and an arrow would be a time."""
    return " ".join(text.split()).replace("-->", "→")
