from __future__ import annotations

import subprocess
import sys
import time
import types
from collections import namedtuple
from pathlib import Path

import psutil
import pytest

from offload.devices import host
from offload.devices.host import (
    CpuTimes,
    HostMemory,
    LoadMeter,
    ProcessorLoad,
    container_limit,
    container_processors,
    cpu_model,
    cpu_name,
    has_avx2,
    host_memory,
    is_quiet,
    memory_stalled_share,
    others_share,
    performance_cores,
    process_limit,
    read_cpu_times,
    running_threads,
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
    monkeypatch.setattr(psutil, "cpu_count", lambda: 2)
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


CPU_QUOTAS: dict[str, tuple[dict[str, dict[str, str]], str, float | None]] = {
    "v2": ({"docker/abc": {"cpu.max": "150000 100000"}}, "0::/docker/abc\n", 1.5),
    "v2 without a quota": ({"docker/abc": {"cpu.max": "max 100000"}}, "0::/docker/abc\n", None),
    "v2 nested, the outer one tighter": (
        {"docker": {"cpu.max": "100000 100000"}, "docker/abc": {"cpu.max": "400000 100000"}},
        "0::/docker/abc\n",
        1.0,
    ),
    "v2 that sees only itself": ({"": {"cpu.max": "50000 100000"}}, "0::/\n", 0.5),
    "v1": (
        {"cpu/slice/y": {"cpu.cfs_quota_us": "200000", "cpu.cfs_period_us": "100000"}},
        "5:memory:/x\n4:cpu,cpuacct:/slice/y\n",
        2.0,
    ),
    "v1 nested": (
        {
            "cpu": {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"},
            "cpu/slice": {"cpu.cfs_quota_us": "30000", "cpu.cfs_period_us": "10000"},
            "cpu/slice/y": {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"},
        },
        "4:cpu,cpuacct:/slice/y\n",
        3.0,
    ),
    "of another controller": ({"memory/x": {"cpu.cfs_quota_us": "1", "cpu.cfs_period_us": "1"}}, "5:memory:/x\n", None),
    "damaged": ({"docker/abc": {"cpu.max": "lots"}}, "0::/docker/abc\n", None),
    "no period": ({"": {"cpu.max": "1 0"}}, "0::/\n", None),
    "none": ({}, "", None),
}


@pytest.mark.parametrize("name", CPU_QUOTAS)
def test_the_tightest_quota_of_processors_on_the_way_up_counts(tmp_path: Path, name: str) -> None:
    folders, groups, wanted = CPU_QUOTAS[name]
    for folder, files in folders.items():
        write(tmp_path / "root" / folder, files)
    (tmp_path / "own").write_text(groups, encoding="ascii")
    assert container_processors(tmp_path / "root", tmp_path / "own") == wanted


@pytest.mark.parametrize(
    ("quota", "n_threads"), [(None, 8), (0.2, 1), (1.0, 1), (1.4, 1), (1.5, 2), (3.0, 3), (64.0, 8)]
)
def test_threads_are_those_that_a_quota_can_feed(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, n_threads: int
) -> None:
    monkeypatch.setattr(host, "affinity", lambda: frozenset(range(16)))
    monkeypatch.setattr(host, "container_processors", lambda: quota)
    monkeypatch.setattr(host, "performance_cores", lambda _usable: 8)
    assert host.default_threads() == n_threads


def test_slow_cores_of_a_hybrid_processor_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four fast cores of two threads each, and eight slow ones."""
    monkeypatch.setattr(host, "sys", types.SimpleNamespace(platform="linux"))
    write(tmp_path / "cpu_core", {"cpus": "0-7\n"})
    for number in range(16):
        core = number // 2 if number < 8 else number
        topology = {"physical_package_id": "0", "core_id": f"{core}"}
        write(tmp_path / f"system/cpu/cpu{number}/topology", topology)
    assert performance_cores(range(16), tmp_path) == 4
    assert performance_cores([0, 1, 2, 9], tmp_path) == 2
    assert performance_cores([9, 10], tmp_path) is None
    assert performance_cores(range(16), tmp_path / "elsewhere") is None


@pytest.mark.parametrize(("output", "wanted"), [("4\n", 4), ("", None), ("sysctl: unknown oid", None)])
def test_a_mac_counts_its_performance_cores(monkeypatch: pytest.MonkeyPatch, output: str, wanted: int | None) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], _timeout_s: float) -> tuple[int, str, object]:
        commands.append(command)
        return 0, output, None

    monkeypatch.setattr(host, "sys", types.SimpleNamespace(platform="darwin"))
    monkeypatch.setattr(host, "run_to_exit", run)
    host._apple_performance_cores.cache_clear()
    assert performance_cores(range(8)) == wanted
    host._apple_performance_cores.cache_clear()
    assert commands == [["/usr/sbin/sysctl", "-n", "hw.perflevel0.physicalcpu"]]


def test_a_meter_tells_what_happened_since_its_last_look() -> None:
    times = iter(
        [CpuTimes(10.0, 2.0, 3.0), CpuTimes(12.0, 2.5, 4.0), CpuTimes(12.0, 2.5, 4.0), CpuTimes(16.0, 6.5, 4.0)]
    )
    meter = LoadMeter(range(4), lambda: next(times))
    assert meter.read() is None
    assert meter.read() == ProcessorLoad(others=1.0, idle=1.0, n_processors=4)
    assert meter.read() is None  # the clock did not move
    assert meter.read() == ProcessorLoad(others=0.0, idle=4.0, n_processors=4)


@pytest.mark.parametrize(
    ("n_running", "n_threads", "has_room"),
    [(1, 4, True), (2, 4, False), (2, 3, True), (1, 5, False), (9, 1, False), (None, 1, False)],
)
def test_threads_have_room_where_each_would_find_a_processor_now(
    n_running: int | None, n_threads: int, has_room: bool
) -> None:
    meter = LoadMeter(range(4), lambda: CpuTimes(0.0, 0.0, 0.0), lambda: n_running)
    assert meter.has_room_now(n_threads) is has_room


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
def test_linux_tells_how_many_threads_run() -> None:
    n_running = running_threads()
    assert n_running is not None
    assert n_running >= 1


def test_a_real_meter_counts_this_process_as_ours() -> None:
    meter = LoadMeter()
    meter.read()
    begun_s = time.process_time()
    while time.process_time() < begun_s + 0.2:
        pass
    load = meter.read()
    assert load is not None
    assert load.others <= load.n_processors - load.idle
    assert load.others + load.idle < load.n_processors - 0.01


@pytest.mark.parametrize(
    ("files", "share"),
    [
        ({}, 0.0),
        ({"memory": "some avg10=12.50 avg60=3.00 avg300=0.00 total=9\nfull avg10=1.00 avg60=0.00 total=1\n"}, 0.125),
        ({"memory": "some avg10=0.00 avg60=90.00 avg300=9.00 total=9\n"}, 0.0),
        ({"memory": "some avg10=1.00 total=9\n", "memory.pressure": "some avg10=40.00 total=9\n"}, 0.4),
        ({"memory": "some avg10=1.00 total=9\n", "own/memory.pressure": "some avg10=30.00 total=9\n"}, 0.3),
        ({"memory": "nonsense", "memory.pressure": "some avg10=x"}, 0.0),
    ],
)
def test_programs_that_wait_for_memory_are_seen_on_the_machine_and_in_the_container(
    tmp_path: Path, files: dict[str, str], share: float
) -> None:
    (tmp_path / "own").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    own = tmp_path / "cgroup"
    own.write_text("0::/own\n")
    assert memory_stalled_share(tmp_path, own, tmp_path / "memory") == pytest.approx(share)
