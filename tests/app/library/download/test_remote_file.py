from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from app.library.download.remote_file import Range, Ranges, Schedule

N_BYTES = 60
RANGES = st.lists(st.tuples(st.integers(0, N_BYTES), st.integers(0, N_BYTES)).map(lambda pair: Range(*sorted(pair))))


def _of(added: list[Range]) -> Ranges:
    ranges = Ranges()
    for one in added:
        ranges.add(one)
    return ranges


@given(RANGES)
def test_ranges_are_the_set_of_their_bytes(added: list[Range]) -> None:
    ranges, naive = _of(added), {byte for one in added for byte in range(one.begin, one.end)}
    missing = ranges.missing(N_BYTES)
    assert ranges.n_bytes == len(naive)
    assert {byte for one in missing for byte in range(one.begin, one.end)} == set(range(N_BYTES)) - naive
    assert all(first.end < second.begin for first, second in pairwise(missing))
    assert ranges.frontier == next(byte for byte in range(N_BYTES + 1) if byte not in naive)


@given(RANGES, st.integers(1, 8))
def test_a_schedule_hands_out_every_missing_byte_once_and_in_order(added: list[Range], n_connections: int) -> None:
    scale = 1 << 20
    missing = [Range(one.begin * scale, one.end * scale) for one in _of(added).missing(N_BYTES)]
    schedule = Schedule(missing, n_connections)
    parts = list(iter(schedule.take, None))
    assert sum(part.n_bytes for part in parts) == sum(one.n_bytes for one in missing)
    assert parts == sorted(parts)
    assert _of(parts).missing(N_BYTES * scale) == _of(missing).missing(N_BYTES * scale)


def test_parts_become_smaller_towards_the_end() -> None:
    parts = list(iter(Schedule([Range(0, 1 << 30)], 4).take, None))
    assert parts[0].n_bytes == 32 << 20
    assert parts[-1].n_bytes <= 4 << 20
