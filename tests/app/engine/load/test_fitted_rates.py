from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.engine.load.run_history import RunHistory, fitted_rates, machine_key
from app.engine.load.speed_sampler import RunRecorder, SpeedSample
from offload.devices.machine import HOST_NAME, Device, DeviceKind, Machine
from offload.footprint.kv_cache import KvTypes
from offload.footprint.model import PlannedModel
from offload.footprint.profile import RunConfig
from offload.placement.search import ALL_ON_HOST
from offload.speed.cost_model import decode_s, expected_rates, prefill_s
from quantizer.gguf.header import read_header
from quantizer.gguf.validation import tensors_of

MACHINE = Machine(Device(name=HOST_NAME, kind=DeviceKind.CPU, total_bytes=0, free_bytes=0, bytes_per_s=1e9))
ANSWER = SpeedSample(decode_tps=5.0, depth=100, n_cells=600, prefill_tps=50.0, prefill_depth=90, others_share=0.0)


def recorder(cache_dir: Path, model: Path, *, is_fused: bool = False) -> RunRecorder:
    header = read_header(model)
    return RunRecorder(
        history=RunHistory(cache_dir),
        n_threads=2,
        fingerprint="a",
        model=PlannedModel(header, tensors_of(header)),
        setting=RunConfig(n_ctx=128, n_cells=128, kv_types=KvTypes(), is_fused=is_fused),
        devices=MACHINE,
        placement=ALL_ON_HOST,
    )


def test_recorded_speeds_are_predicted_afterwards(tmp_path: Path, tiny_model: Path) -> None:
    recorder(tmp_path / "first", tiny_model).record(ANSWER)
    decode, prefill = RunHistory(tmp_path / "first").records()
    expected = 1 / decode_s(decode.work, expected_rates(MACHINE))
    recorder(tmp_path, tiny_model).record(replace(ANSWER, decode_tps=expected / 2))
    rates = fitted_rates(MACHINE, tmp_path, n_threads=2)
    assert 1 / decode_s(decode.work, rates) == pytest.approx(expected / 2, rel=0.02)
    assert 1 / prefill_s(prefill.work, rates, "CPU", prefill.n_ubatch) == pytest.approx(50.0, rel=0.02)


def test_a_single_slow_run_changes_little(tmp_path: Path, tiny_model: Path) -> None:
    recorder(tmp_path, tiny_model).record(replace(ANSWER, decode_tps=0.01))
    rates = fitted_rates(MACHINE, tmp_path, n_threads=2)
    (decode, _) = RunHistory(tmp_path).records()
    assert 1 / decode_s(decode.work, rates) > 0.1
    assert rates.uncertainty > 0.9


def test_runs_with_other_threads_or_on_another_machine_change_nothing(tmp_path: Path, tiny_model: Path) -> None:
    recorder(tmp_path, tiny_model).record(ANSWER)
    card = Device(name="GPU0", kind=DeviceKind.GPU, total_bytes=1, free_bytes=1, description="another")
    other = Machine(MACHINE.host, (card,))
    assert fitted_rates(MACHINE, tmp_path, n_threads=3) == expected_rates(MACHINE)
    assert fitted_rates(other, tmp_path, n_threads=2) == expected_rates(other)
    assert machine_key(other) != machine_key(MACHINE)


def test_unfused_attention_is_as_deep_as_all_cells_in_use(tmp_path: Path, tiny_model: Path) -> None:
    recorder(tmp_path, tiny_model).record(ANSWER)
    recorder(tmp_path, tiny_model, is_fused=True).record(ANSWER)
    plain, fused = (record.depth for record in RunHistory(tmp_path).records() if record.kind == "decode")
    assert (plain, fused) == (600, 100)
