"""A size as people write it: 500M, 4.2GB, 2GiB."""

from __future__ import annotations

import re

from quantizer.errors import UsageError

__all__ = ["parse_byte_size"]

_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*(?:([KMGT])(I?))?B?", re.IGNORECASE)
_PREFIXES = "KMGT"


def parse_byte_size(text: str) -> int:
    """Read a size such as 500M (decimal, as disks and llama.cpp count) or 2GiB. Raises UsageError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a size.", "Write it like 500M, 4.2GB or 2GiB.")
    power = _PREFIXES.index(match[2].upper()) + 1 if match[2] else 0
    n_bytes = int(float(match[1]) * (1024 if match[3] else 1000) ** power)
    if n_bytes < 1:
        raise UsageError(f"{text!r} is no size that holds anything.", "Write it like 500M, 4.2GB or 2GiB.")
    return n_bytes
