from __future__ import annotations

import os
import subprocess
import sys
from bisect import bisect_left
from dataclasses import replace
from pathlib import Path

import pytest

from app.engine.messages import EngineConfig, UnfitPolicy
from app.library.local.resolve import GUIDE, resolve
from app.protocol.errors import UnfitError
from app.service.pool.memory import LoadedModel, MachineMemory, private_bytes, resident_bytes
from app.settings.settings import Settings
from offload.devices.machine import Device, DeviceKind
from offload.placement.search import margin_bytes
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.errors import EngineError, UsageError
from tests.app.client.scripted_client import PLAN
from tests.app.service.pool.memory_fake import host_with
from tests.quantizer.gguf_draft_heads import draft_head, drafted_model
from tests.quantizer.gguf_projectors import tiny_projector

GIB = 1 << 30
MORE_THAN_ANY = 1 << 60
CONFIG = EngineConfig(n_sequences=8)


def _memory(tmp_path: Path, max_memory: str = "") -> MachineMemory:
    return MachineMemory(Settings(cache_dir=tmp_path, gpu=False, max_memory=max_memory))


def _loaded(n_bytes: int, pid: int | None = None) -> LoadedModel:
    return LoadedModel(path=Path("x.gguf"), worker_pid=pid, held_bytes={"CPU": n_bytes})


@pytest.fixture
def guide(tmp_path: Path) -> Path:
    return resolve(GUIDE, Settings(data_dir=tmp_path)).path


def test_memory_that_a_plan_reserves_is_not_free_though_the_system_counts_it(tmp_path: Path) -> None:
    free = _memory(tmp_path).machine((_loaded(MORE_THAN_ANY),)).host.free_bytes
    assert free == pytest.approx(-MORE_THAN_ANY, rel=0.01)


def test_memory_that_a_worker_has_allocated_is_not_counted_twice(tmp_path: Path) -> None:
    free = _memory(tmp_path).machine((_loaded(1000, os.getpid()),)).host.free_bytes
    assert free > 0


def test_a_limit_is_for_all_models_together(tmp_path: Path) -> None:
    memory = _memory(tmp_path, "64MiB")
    machine = memory.machine((_loaded(1000),))
    assert memory.is_limited
    assert machine.host.free_bytes - margin_bytes(machine.host) == (64 << 20) - 1000
    assert not _memory(tmp_path).is_limited


@pytest.mark.parametrize("limit", ["much", "0", "-1GiB"])
def test_an_invalid_limit_is_refused(tmp_path: Path, limit: str) -> None:
    with pytest.raises(UsageError):
        _memory(tmp_path, limit)


def test_the_plan_has_the_bytes_of_each_device(tmp_path: Path, guide: Path) -> None:
    (cpu,) = PLAN.devices
    gpu = replace(cpu, name="CUDA0", weights_bytes=5, kv_bytes=3, compute_bytes=1)
    plan = replace(PLAN, devices=(gpu, replace(cpu, weights_bytes=2, kv_bytes=0, compute_bytes=0, extras_bytes=7)))
    memory = _memory(tmp_path)
    assert memory.held_bytes(guide, plan) == {"CUDA0": 9, "CPU": 9}
    assert memory.held_bytes(guide, None) == {"CPU": guide.stat().st_size}
    assert memory.held_bytes(guide, replace(PLAN, devices=())) == {"CPU": guide.stat().st_size}


def test_a_model_runs_only_where_there_is_memory_for_it(tmp_path: Path, guide: Path) -> None:
    demand = _memory(tmp_path).demand(guide, CONFIG)
    assert demand(host_with(4 * GIB)) > 0
    assert demand(host_with(0)) == demand(host_with(-GIB)) == 0


def test_a_reload_with_a_smaller_kv_cache_needs_less_memory(tmp_path: Path, guide: Path) -> None:
    def least_bytes(kv_type: str) -> int:
        demand = _memory(tmp_path).demand(guide, replace(CONFIG, kv_type=kv_type))
        return bisect_left(range(4 * GIB), True, key=lambda n_bytes: demand(host_with(n_bytes)) > 0)

    assert least_bytes("f16") < least_bytes("f32")


def test_layers_that_the_user_chose_for_a_gpu_need_its_memory(tmp_path: Path, guide: Path) -> None:
    memory = _memory(tmp_path)
    gpu = Device(name="CUDA0", kind=DeviceKind.GPU, total_bytes=4 * GIB, free_bytes=4 * GIB)
    free = replace(host_with(8 * GIB), gpus=(gpu,))
    full = replace(free, gpus=(replace(gpu, free_bytes=0),))
    chosen = replace(CONFIG, gpu_layers={"CUDA0": 1})
    assert memory.demand(guide, CONFIG)(full) > 0
    assert memory.demand(guide, chosen)(free) > 0
    assert memory.demand(guide, chosen)(full) == 0


def test_layers_for_a_gpu_that_is_not_here_are_refused(tmp_path: Path, guide: Path) -> None:
    demand = _memory(tmp_path).demand(guide, replace(CONFIG, gpu_layers={"CUDA0": 1}))
    with pytest.raises(UsageError, match="no GPU called CUDA0"):
        demand(host_with(4 * GIB))


def test_too_large_a_model_is_refused_by_the_planner_unless_the_user_confirms(tmp_path: Path, guide: Path) -> None:
    memory = _memory(tmp_path)
    with pytest.raises(EngineError, match="it needs"):
        memory.check(guide, CONFIG, host_with(1))
    with pytest.raises(UnfitError):
        memory.check(guide, EngineConfig(when_unfit=UnfitPolicy.ASK), host_with(1))
    memory.check(guide, EngineConfig(when_unfit=UnfitPolicy.LOAD), host_with(1))
    memory.check(guide, CONFIG, host_with(4 * GIB))


def test_a_model_beyond_max_memory_is_refused_with_both_numbers(tmp_path: Path, guide: Path) -> None:
    memory = _memory(tmp_path, "200MiB")
    with pytest.raises(EngineError, match=r"needs \d+ MiB, and models may take 200 MiB together"):
        memory.check(guide, CONFIG, memory.machine(()))
    memory.check(guide, EngineConfig(when_unfit=UnfitPolicy.LOAD), memory.machine(()))


def test_a_head_beside_a_model_is_counted_and_gives_way_where_memory_is_short(tmp_path: Path) -> None:
    model = drafted_model(tmp_path / "m.gguf")
    draft_head(tmp_path / "dspark-m.gguf", "dspark")
    memory, finding = _memory(tmp_path), replace(CONFIG, finds_head=True)

    def is_accepted(config: EngineConfig, n_bytes: int) -> bool:
        try:
            memory.check(model, config, host_with(n_bytes))
        except EngineError:
            return False
        return True

    def least_bytes(config: EngineConfig) -> tuple[int, int]:
        demand, sizes = memory.demand(model, config), range(4 * GIB)
        wanted = bisect_left(sizes, True, key=lambda n_bytes: demand(host_with(n_bytes)) > 0)
        return wanted, bisect_left(sizes, True, key=lambda n_bytes: is_accepted(config, n_bytes))

    plain, named = least_bytes(CONFIG), least_bytes(replace(CONFIG, draft_path=str(tmp_path / "dspark-m.gguf")))
    assert all(one < other for one, other in zip(plain, named, strict=True))
    assert least_bytes(finding) == plain


def test_a_projector_that_was_found_is_counted_and_gives_way_where_memory_is_short(tmp_path: Path) -> None:
    model, projector = drafted_model(tmp_path / "m.gguf"), tiny_projector(tmp_path / "mmproj-m.gguf")
    memory = _memory(tmp_path)

    def least_bytes(config: EngineConfig) -> int:
        demand = memory.demand(model, config)
        return bisect_left(range(4 * GIB), True, key=lambda n_bytes: demand(host_with(n_bytes)) > 0)

    found = replace(CONFIG, projector_path=str(projector))
    chosen = replace(found, has_chosen_projector=True)
    assert least_bytes(CONFIG) == least_bytes(found) < least_bytes(chosen)


def test_a_projector_that_was_found_and_does_not_belong_counts_nothing(tmp_path: Path) -> None:
    model = drafted_model(tmp_path / "m.gguf")
    wrong = tiny_projector(tmp_path / "mmproj-m.gguf", n_embd=96)
    config = replace(CONFIG, projector_path=str(wrong))
    assert _memory(tmp_path).demand(model, config)(host_with(4 * GIB)) > 0
    with pytest.raises(ModelFileError, match="its embeddings are 96 wide"):
        _memory(tmp_path).demand(model, replace(config, has_chosen_projector=True))


def test_an_invalid_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "no.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelFileError):
        _memory(tmp_path).demand(tmp_path / "no.gguf", CONFIG)


def test_private_memory_excludes_mapped_files() -> None:
    assert 0 < private_bytes(os.getpid()) <= resident_bytes(os.getpid())


def test_none_and_an_ended_process_hold_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    assert [of(pid) for of in (private_bytes, resident_bytes) for pid in (None, ended.pid)] == [0] * 4
