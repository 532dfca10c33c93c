from __future__ import annotations

import pytest

from offload.devices.bandwidth import ReadBandwidth, measure_read_bandwidth, settled_bandwidth


def test_a_bandwidth_contains_how_it_was_measured() -> None:
    measured = measure_read_bandwidth(n_threads=2, n_bytes=1 << 22)
    assert (measured.n_threads, measured.n_bytes) == (2, 1 << 22)
    assert 1e7 < measured.bytes_per_s < 1e14
    assert measured.n_passes > 1


@pytest.mark.slow
def test_the_bandwidth_of_a_busy_machine_never_lowers_that_of_a_quiet_one() -> None:
    busy, quiet = (ReadBandwidth(n, 2, 1 << 30, 6, share) for n, share in ((9e9, 0.8), (22e9, 0.02)))
    assert settled_bandwidth(quiet, None) == (22e9, True)
    assert settled_bandwidth(busy, 22e9) == (22e9, True)
    assert settled_bandwidth(busy, None) == (9e9, False)
    assert settled_bandwidth(busy, 5e9) == (9e9, True), "load only takes from it"
    assert settled_bandwidth(quiet, 30e9) == (22e9, True), "what is measured now counts"


def test_more_threads_read_from_a_larger_buffer_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"_LEAST_BUFFER_BYTES": 4 << 20, "_THREAD_BYTES": 1 << 20, "_MOST_BUFFER_BYTES": 16 << 20}
    for name, n_bytes in sizes.items():
        monkeypatch.setattr(f"offload.devices.bandwidth.{name}", n_bytes)
    assert [measure_read_bandwidth(n_threads).n_bytes >> 20 for n_threads in (1, 2, 64)] == [5, 6, 16]
