from __future__ import annotations

import subprocess
import sys
import types
from collections import namedtuple
from pathlib import Path

import psutil
import pytest

from offload.devices import host
from offload.devices.host import (
    CpuTimes,
    HostMemory,
    container_limit,
    cpu_model,
    cpu_name,
    has_avx2,
    host_memory,
    is_quiet,
    others_share,
    process_limit,
    read_cpu_times,
)
from quantizer.system.memory_limit import MemoryLimit


def test_the_model_is_part_of_the_full_name() -> None:
    assert cpu_model()
    assert cpu_name().startswith(cpu_model())


def test_instruction_sets_are_read_where_the_system_lists_them() -> None:
    assert has_avx2() in (None, " avx2 " in f"{cpu_name()} ")


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
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda _pid: {1}, raising=False)
    monkeypatch.setattr(host, "sys", types.SimpleNamespace(platform="linux"))
    times = read_cpu_times()
    assert (times.total_s, times.idle_s) == (25.0, 13.0)
    assert times.own_s > 0


GIB = 1 << 30


def write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="ascii")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The content of /proc/self/cgroup within a container of version 2."""
    path = tmp_path / "own"
    path.write_text("0::/docker/abc\n", encoding="ascii")
    return path


def test_a_container_of_version_2_has_what_its_limit_leaves(tmp_path: Path, own: Path) -> None:
    write(tmp_path / "v2/docker/abc", {"memory.max": str(4 * GIB), "memory.current": str(GIB)})
    assert container_limit(tmp_path / "v2", own) == HostMemory(4 * GIB, 3 * GIB, is_limited=True)


def test_a_container_that_sees_only_itself_has_its_limit_at_the_root(tmp_path: Path, own: Path) -> None:
    write(tmp_path / "v2", {"memory.max": str(2 * GIB), "memory.current": "0"})
    assert container_limit(tmp_path / "v2", own) == HostMemory(2 * GIB, 2 * GIB, is_limited=True)


def test_the_tightest_of_nested_limits_counts(tmp_path: Path, own: Path) -> None:
    write(tmp_path / "v2/docker", {"memory.max": str(2 * GIB), "memory.current": str(GIB)})
    write(tmp_path / "v2/docker/abc", {"memory.max": str(8 * GIB), "memory.current": "0"})
    assert container_limit(tmp_path / "v2", own) == HostMemory(2 * GIB, GIB, is_limited=True)


def test_a_group_of_version_1_is_found_by_its_controller(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("5:cpu:/x\n4:memory:/slice/y\n", encoding="ascii")
    files = {"memory.limit_in_bytes": str(GIB), "memory.usage_in_bytes": "24"}
    write(tmp_path / "v1/memory/slice/y", files)
    assert container_limit(tmp_path / "v1", tmp_path / "own") == HostMemory(GIB, GIB - 24, is_limited=True)


@pytest.mark.parametrize("limit", ["max", "", "lots"])
def test_no_number_is_no_limit(tmp_path: Path, own: Path, limit: str) -> None:
    write(tmp_path / "v2", {"memory.max": limit, "memory.current": "1"})
    assert container_limit(tmp_path / "v2", own) is None


def test_a_system_without_groups_has_no_limit(tmp_path: Path) -> None:
    assert container_limit(tmp_path / "missing", tmp_path / "missing") is None


def test_some_memory_of_this_machine_is_free() -> None:
    memory = host_memory()
    assert 0 < memory.free_bytes <= memory.total_bytes


def test_what_slows_a_group_down_counts_as_its_limit(tmp_path: Path, own: Path) -> None:
    files = {"memory.max": str(4 * GIB), "memory.high": str(2 * GIB), "memory.current": str(GIB)}
    write(tmp_path / "v2/docker/abc", files)
    assert container_limit(tmp_path / "v2", own) == HostMemory(2 * GIB, GIB, is_limited=True)


def test_pages_of_files_count_as_free_in_either_version(tmp_path: Path, own: Path) -> None:
    statistics = f"anon 5\ninactive_file {GIB // 2}\nactive_file {GIB // 4}\nfile {GIB}\n"
    files = {"memory.max": str(2 * GIB), "memory.current": str(GIB), "memory.stat": statistics}
    write(tmp_path / "v2", files)
    assert container_limit(tmp_path / "v2", own) == HostMemory(2 * GIB, 2 * GIB - GIB // 4, is_limited=True)
    statistics = f"inactive_file 0\ntotal_inactive_file {GIB // 2}\ntotal_active_file 0\n"
    files = {"memory.limit_in_bytes": str(GIB), "memory.usage_in_bytes": str(GIB), "memory.stat": statistics}
    write(tmp_path / "v1/memory", files)
    assert container_limit(tmp_path / "v1", own) == HostMemory(GIB, GIB // 2, is_limited=True)


def test_a_limit_of_memory_and_swap_together_counts(tmp_path: Path, own: Path) -> None:
    together = {"memory.memsw.limit_in_bytes": str(GIB), "memory.memsw.usage_in_bytes": str(GIB // 2)}
    files = {"memory.limit_in_bytes": str(GIB), "memory.usage_in_bytes": "0"}
    write(tmp_path / "v1/memory", together | files)
    assert container_limit(tmp_path / "v1", own) == HostMemory(GIB, GIB // 2, is_limited=True)


def test_a_limit_of_the_process_leaves_what_its_engine_does_not_take() -> None:
    assert process_limit(MemoryLimit("ulimit -v", GIB, 0)) == HostMemory(GIB, GIB - (448 << 20), is_limited=True)


@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
@pytest.mark.skipif(sys.platform != "linux", reason="no other system enforces these limits")
def test_this_machine_has_no_more_than_a_limit_of_the_process(limit: str) -> None:
    program = f"""
import resource
resource.setrlimit(resource.{limit}, (1 << 29, 1 << 29))
from offload.devices.host import host_memory
memory = host_memory()
assert memory.is_limited and memory.total_bytes <= 1 << 29 and memory.free_bytes < 1 << 28, memory
"""
    subprocess.run([sys.executable, "-c", program], check=True)
