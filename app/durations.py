"""Durations as Ollama takes them: seconds, or Go's way of writing them, such as "1h30m".

Knows nothing of what is timed.
"""

from __future__ import annotations

import math
import re

from quantizer.errors import RequestError

__all__ = ["seconds_of"]

_MAX_S = 1e9  # a clock has to be able to count them
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_PART = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)(ns|us|µs|ms|s|m|h)")
_PLAIN = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)()")


def seconds_of(duration: str | float) -> float | None:
    """Return a duration in seconds, None for a negative one, which means without end. Raises RequestError."""
    text = str(duration).strip() if isinstance(duration, str) else format(duration, "f")
    parts = _parts(text.removeprefix("-"))
    if not parts or (seconds := math.fsum(float(count) * _UNITS_S[unit] for count, unit in parts)) > _MAX_S:
        raise RequestError(f"{text[:40]!r} is no duration.", 'Use seconds, "5m", "1h30m", or -1 for no end.')
    return None if text.startswith("-") else seconds


def _parts(text: str) -> list[tuple[str, str]]:
    if plain := _PLAIN.fullmatch(text):
        return [(plain.group(1), "")]
    parts = _PART.findall(text)
    return parts if "".join(f"{count}{unit}" for count, unit in parts) == text else []
