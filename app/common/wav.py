"""Mono samples of 16 bits as a WAV file: its header, also of one whose length nobody knows yet."""

from __future__ import annotations

import struct

_UNKNOWN = 0xFFFF_FFFF  # as programs write it that stream a WAV; players read on to the end
_HEADER_BYTES = 36  # behind the length of the file


def wav_header(sample_rate: int, n_bytes: int | None) -> bytes:
    """Return the header before `n_bytes` of samples, None where their number is unknown. Raises ValueError for more
    than a WAV file can have."""
    if n_bytes is not None and n_bytes > _UNKNOWN - _HEADER_BYTES:
        raise ValueError(f"a WAV file of {n_bytes} bytes")
    length, whole = (_UNKNOWN, _UNKNOWN) if n_bytes is None else (n_bytes, _HEADER_BYTES + n_bytes)
    form = struct.pack("<IHHIIHH", 16, 1, 1, sample_rate, 2 * sample_rate, 2, 16)
    return b"RIFF" + struct.pack("<I", whole) + b"WAVEfmt " + form + b"data" + struct.pack("<I", length)
