from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.engine.load.machine_file import model_key
from app.engine.load.run_history import RunHistory, RunRecord, machine_key
from app.protocol.plan import MeasuredRun, PlanRequest
from app.service.models.library import MachineCache, PlanService, machine_for_reload
from app.service.pool.memory import LoadedModel
from app.settings.settings import Settings
from offload.devices.machine import Device, DeviceKind, Machine
from offload.speed.cost_model import Work
from quantizer.gguf.header import read_header
from quantizer.system.errors import UsageError
from tests.app.external_folders import add_ollama_layers, ollama_model_that_sees
from tests.quantizer.gguf_adapters import lora
from tests.quantizer.gguf_files import tiny_llama
from tests.quantizer.gguf_projectors import tiny_projector

CARD = ("RTX 3060=12GiB",)
RAM = "32GiB@45GB/s"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data", cache_dir=tmp_path / "cache", idle_tune=False)


def elsewhere(model: Path, **fields: object) -> PlanRequest:
    return PlanRequest(model=str(model), vram=CARD, ram=RAM, **fields)


def test_a_plan_for_another_machine_surveys_none_and_places_as_requested(tiny_model: Path, settings: Settings) -> None:
    plan = PlanService(settings).plan(elsewhere(tiny_model, n_ctx=1024, gpu_layers={"RTX 3060": 1}))
    assert {device.name: device.layers for device in plan.devices} == {"RTX 3060": 1, "CPU": 2}
    assert (plan.setting.ctx, plan.gpu_layers, plan.measured) == (1024, {"RTX 3060": 1}, ())
    assert not plan.is_full


@pytest.mark.slow
def test_a_full_plan_gets_compute_buffers_from_llama_cpp(tiny_model: Path, settings: Settings) -> None:
    planner = PlanService(settings)
    quick, full = (planner.plan(elsewhere(tiny_model, is_full=is_full)) for is_full in (False, True))
    assert quick.devices[0].weights_bytes == full.devices[0].weights_bytes
    assert full.devices[0].compute_bytes > 0
    assert (quick.is_full, full.is_full) == (False, True)


def test_a_plan_has_the_projector_that_is_kept_with_the_model(settings: Settings, tmp_path: Path) -> None:
    model, planner = tiny_llama(tmp_path / "m.gguf"), PlanService(settings)
    assert planner.plan(elsewhere(model)).extras == ()
    tiny_projector(tmp_path / "mmproj-m.gguf")
    [extra] = planner.plan(elsewhere(model)).extras
    assert (extra.what, extra.picture_tokens) == ("projector mmproj-m.gguf", 4)
    assert PlanService(replace(settings, projector="none")).plan(elsewhere(model)).extras == ()


def test_a_plan_counts_the_adapters_that_a_model_has_in_ollama_now(home: Path, settings: Settings) -> None:
    manifest = "registry.ollama.ai/library/tuned/latest"
    base, _ = ollama_model_that_sees(home / "ollama", manifest)
    add_ollama_layers(home / "ollama", manifest, base)
    planner, wanted = PlanService(settings), PlanRequest(model="tuned", vram=CARD, ram=RAM)
    assert planner.plan(wanted).extras == ()
    adapter = lora(home / "adapter.gguf")
    add_ollama_layers(home / "ollama", manifest, base, adapter=adapter)
    [extra] = planner.plan(wanted).extras
    assert extra.what.startswith("adapter sha256-")
    assert extra.weights_bytes == sum(tensor.n_bytes for tensor in read_header(adapter).tensors)


def test_a_file_that_changed_is_read_again_and_no_other(
    tiny_model: Path, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    from app.library.hub import selection as lookup

    find = lookup.find_model
    monkeypatch.setattr(lookup, "find_model", lambda name, *others: (read.append(name), find(name, *others))[1])
    model = tmp_path / "model.gguf"
    model.write_bytes(tiny_model.read_bytes())
    planner = PlanService(settings)
    for _ in range(3):
        planner.plan(elsewhere(model))
    assert len(read) == 1
    os.utime(model, (time.time() + 10, time.time() + 10))
    planner.plan(elsewhere(model))
    assert len(read) == 2


def test_measured_speeds_are_in_the_plan(tiny_model: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Device(name="CPU", kind=DeviceKind.CPU, total_bytes=32 << 30, free_bytes=28 << 30, bytes_per_s=40e9)
    monkeypatch.setattr("app.engine.load.machine.survey", lambda *_: SimpleNamespace(machine=Machine(host)))
    record = RunRecord(
        machine=machine_key(Machine(host)),
        n_threads=2,
        model=model_key(tiny_model),
        kind="decode",
        depth=128,
        tokens_per_s=12.5,
        work=Work(read_bytes={"CPU": 1e9}),
        at_s=1000.0,
        gpu_layers=0,
    )
    RunHistory(settings.cache_dir).add([record, replace(record, model="another")])
    plan = PlanService(settings).plan(PlanRequest(model=str(tiny_model)))
    assert plan.measured == (
        MeasuredRun(kind="decode", depth=128, tps=12.5, gpu_layers=0, at_s=1000.0, is_quiet=False),
    )


@pytest.mark.parametrize(
    "nonsense",
    [{"kv_type": "q9"}, {"vram": ("nothing",)}, {"ram": "much"}, {"gpu_layers": {"RTX 3060": 99}}],
    ids=lambda wish: next(iter(wish)),
)
def test_invalid_plan_requests_are_refused(tiny_model: Path, settings: Settings, nonsense: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        PlanService(settings).plan(replace(elsewhere(tiny_model), **nonsense))


GIB = 1 << 30
HOST = Device(name="CPU", kind=DeviceKind.CPU, total_bytes=32 * GIB, free_bytes=1)
GPU = Device(name="CUDA0", kind=DeviceKind.GPU, total_bytes=12 * GIB, free_bytes=4 * GIB)
MODEL = Path("/models/a.gguf")


class Looks:
    """Counts how often the machine was looked at."""

    def __init__(self, machine: Machine) -> None:
        self.n_looks = 0
        self._machine = machine

    def __call__(self) -> Machine:
        self.n_looks += 1
        return self._machine


def loaded(pid: int, path: Path = MODEL) -> LoadedModel:
    return LoadedModel(path=path, worker_pid=pid, held_bytes={"CUDA0": 7 * GIB})


def test_a_machine_is_surveyed_once_and_its_free_memory_every_time() -> None:
    looks, free = Looks(Machine(HOST)), iter((5 * GIB, 6 * GIB))
    look = MachineCache(looks, lambda: next(free))
    assert [look.machine(()).host.free_bytes for _ in range(2)] == [5 * GIB, 6 * GIB]
    assert looks.n_looks == 1


def test_gpus_are_surveyed_again_when_other_processes_hold_them() -> None:
    looks = Looks(Machine(HOST, (GPU,)))
    look = MachineCache(looks, lambda: GIB)
    for models in ((), (loaded(1),), (loaded(1),), (loaded(2),)):
        look.machine(models)
    assert looks.n_looks == 3


def test_without_gpus_a_new_worker_is_no_reason_for_a_survey() -> None:
    looks = Looks(Machine(HOST))
    look = MachineCache(looks, lambda: GIB)
    look.machine(())
    look.machine((loaded(1),))
    assert looks.n_looks == 1
    look.machine((), is_fresh=True)
    assert looks.n_looks == 2


def test_a_models_memory_is_free_for_reloading_it_and_for_no_other() -> None:
    machine = Machine(replace(HOST, free_bytes=GIB), (GPU,))
    with_room = machine_for_reload(machine, MODEL, [loaded(os.getpid())])
    assert with_room.gpus[0].free_bytes == 11 * GIB
    assert with_room.host.free_bytes > GIB
    assert machine_for_reload(machine, Path("/models/b.gguf"), [loaded(os.getpid())]) == machine


def test_no_device_becomes_freer_than_it_is_large() -> None:
    machine = Machine(HOST, (replace(GPU, free_bytes=10 * GIB),))
    assert machine_for_reload(machine, MODEL, [loaded(2**22 + 1)]).gpus[0].free_bytes == 12 * GIB
