from __future__ import annotations

from offload.devices.bandwidth import measure_read_bandwidth


def test_a_bandwidth_contains_how_it_was_measured() -> None:
    measured = measure_read_bandwidth(n_threads=2, n_bytes=1 << 22)
    assert (measured.n_threads, measured.n_bytes) == (2, 1 << 22)
    assert 1e7 < measured.bytes_per_s < 1e14
    assert measured.n_passes > 1
