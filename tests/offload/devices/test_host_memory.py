from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from offload.devices.host_memory import HostMemory, container_limit, host_memory, process_limit
from quantizer.system.memory_limit import MemoryLimit

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
from offload.devices.host_memory import host_memory
memory = host_memory()
assert memory.is_limited and memory.total_bytes <= 1 << 29 and memory.free_bytes < 1 << 28, memory
"""
    subprocess.run([sys.executable, "-c", program], check=True)
