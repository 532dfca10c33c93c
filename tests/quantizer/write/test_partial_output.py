from __future__ import annotations

import zlib

from hypothesis import given
from hypothesis import strategies as st

from quantizer.write.partial_output import join_checksums


@given(st.binary(), st.binary())
def test_pieces_have_the_checksum_of_the_whole(first: bytes, second: bytes) -> None:
    assert join_checksums(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)


def test_long_pieces_have_the_checksum_of_the_whole() -> None:
    piece = bytes(range(256)) * 5000
    assert join_checksums(zlib.crc32(piece), zlib.crc32(piece), len(piece)) == zlib.crc32(piece * 2)
