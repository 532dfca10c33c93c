from __future__ import annotations

from pathlib import Path

import pytest

from offload.devices.host_memory import HostMemory, container_limit, host_memory

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
