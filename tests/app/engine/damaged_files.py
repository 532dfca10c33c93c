"""Damaged files of the caches (`app.engine.cache_file`): each change of a byte, each cut, other JSON, random bytes."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator

__all__ = ["damaged_files"]

_WHAT_MATTERS = b'\0\xff"{}[],:9-eN'
_INSERTED = (b"9", b"-", b"9" * 30, b"\\ud800", b"e9", b"[" * 99)
_VALUES = (
    b"1e999",
    b"-1e999",
    b"NaN",
    b"9" * 30,
    b"9" * 5000,
    b"-1",
    b"true",
    b"null",
    b"[]",
    b'"\\ud800"',
    b"{}",
    b"[{}]",
)
_N_RANDOM = 500


def damaged_files(whole: bytes, begin: int, seed: int) -> Iterator[bytes]:
    """Yield damaged forms of a file whose header, JSON of one level, begins at `begin`."""
    end, chance = begin + int.from_bytes(whole[begin - 4 : begin], "little"), random.Random(seed)
    for at, byte in enumerate(whole):
        changed = {byte ^ 1 << bit for bit in range(8)} | {byte ^ 255, *_WHAT_MATTERS}
        yield from (whole[:at] + bytes([other]) + whole[at + 1 :] for other in sorted(changed - {byte}))
        yield whole[:at]
        yield from (whole[:at] + more + whole[at:] for more in _INSERTED)
    header = json.loads(whole[begin:end])
    heads = [b"[" * 20_000, b'"key"', *_VALUES]
    for name, value in itertools.product(header, _VALUES):
        others = json.dumps({key: it for key, it in header.items() if key != name})
        heads.append(others[:-1].encode() + b', "%s": %s}' % (name.encode(), value))
    for head in heads:
        yield whole[: begin - 4] + len(head).to_bytes(4, "little") + head + whole[end:]
    for _ in range(_N_RANDOM):
        yield whole[: chance.choice((0, begin - 4, begin))] + chance.randbytes(chance.randrange(400))
