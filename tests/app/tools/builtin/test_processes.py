"""The output of a command: the beginning and the end of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.tools.builtin.processes import OutputBuffer


def test_short_output_is_kept_whole() -> None:
    buffer = OutputBuffer()
    for part in (b"one ", b"", b"two"):
        buffer.add(part)
    assert (buffer.kept, buffer.n_bytes, buffer.n_left_out) == (b"one two", 7, 0)


@given(st.lists(st.integers(1, 700_000), min_size=1, max_size=12))
def test_of_long_output_head_and_tail_are_kept_and_the_rest_counted(sizes: list[int]) -> None:
    buffer, whole = OutputBuffer(), bytearray()
    for number, size in enumerate(sizes):
        part = bytes([number]) * size
        buffer.add(part)
        whole += part
    half = 512 << 10
    missing = max(0, len(whole) - 2 * half)
    assert (buffer.n_bytes, buffer.n_left_out) == (len(whole), missing)
    note = f"\n[{missing:,} bytes were left out here]\n".encode() if missing else b""
    expected = bytes(whole[:half]) + note + bytes(whole[-half:]) if missing else bytes(whole)
    assert buffer.kept == expected
