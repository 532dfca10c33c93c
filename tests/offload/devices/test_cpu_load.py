from __future__ import annotations

import types
from collections import namedtuple

import psutil
import pytest

from offload.devices import cpu_load
from offload.devices.cpu_load import CpuTimes, is_quiet, others_share, read_cpu_times

BEFORE = CpuTimes(total_s=100.0, idle_s=40.0, own_s=7.0)


@pytest.mark.parametrize(
    ("idle_s", "own_s", "wanted"),
    [
        (5.0, 5.0, 0.0),  # nobody else
        (0.0, 6.0, 0.4),  # others, or a hypervisor: stolen time is neither idle nor ours
        (2.0, 1.0, 0.7),
        (9.0, 2.0, 0.0),  # the clocks of processes are finer than those of processors
    ],
)
def test_what_is_neither_idle_nor_ours_belongs_to_others(idle_s: float, own_s: float, wanted: float) -> None:
    after = CpuTimes(110.0, 40.0 + idle_s, 7.0 + own_s)
    assert others_share(BEFORE, after) == pytest.approx(wanted)


def test_the_share_of_no_time_is_unknown_and_the_unknown_is_not_quiet() -> None:
    assert others_share(BEFORE, BEFORE) is None
    assert not is_quiet(None)
    assert is_quiet(0.15)
    assert not is_quiet(0.4)


def test_stolen_time_counts_and_guests_do_not_count_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    linux = namedtuple("linux", "user nice system idle iowait irq softirq steal guest guest_nice")
    monkeypatch.setattr(psutil, "cpu_times", lambda *, percpu: [linux(5, 1, 2, 10, 3, 0, 0, 4, 5, 0)] * 2)
    monkeypatch.setattr(cpu_load.os, "sched_getaffinity", lambda _pid: {1}, raising=False)
    monkeypatch.setattr(cpu_load, "sys", types.SimpleNamespace(platform="linux"))
    times = read_cpu_times()
    assert (times.total_s, times.idle_s) == (25.0, 13.0)
    assert times.own_s > 0
