"""The header of a file that is not there, parsed as if it were: a plan can be looked at like a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from quantizer.header import Header, parse_header

__all__ = ["unwritten_header"]


@dataclass(frozen=True, slots=True)
class _UnwrittenFile:
    """The beginning of a file without its data, as a ByteSource."""

    head: bytes
    n_bytes: int

    def read(self, start: int, stop: int) -> bytes:
        return self.head[start:stop]


def unwritten_header(head: bytes, n_bytes: int, path: Path) -> Header:
    """Return the header of the file at `path` that would begin with `head` and be `n_bytes` long."""
    return parse_header(_UnwrittenFile(head, n_bytes), path)
