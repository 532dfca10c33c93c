"""How large the buffers are that llama.cpp makes, read off its own log; it tells nobody else.

Owns the form of those lines. Knows nothing of what was planned.
Source: `load_tensors` in src/llama-model.cpp, `sched_reserve` in src/llama-context.cpp and the caches' constructors, as
vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Buffer", "parse_buffer"]

_LINE = re.compile(r": +(\S+?)(?:_Mapped)? +(model|KV|RS|compute) buffer size = +([\d.]+) MiB")
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Buffer:
    """One buffer: the `name` of its memory, what it is for (model, KV, RS or compute), its bytes to 0.01 MiB."""

    name: str
    kind: str
    n_bytes: int


def parse_buffer(line: str) -> Buffer | None:
    """Return the buffer that a line of llama.cpp's log tells of, None where it tells of something else."""
    match = _LINE.search(line)
    return Buffer(match[1], match[2], round(float(match[3]) * _MIB)) if match else None
