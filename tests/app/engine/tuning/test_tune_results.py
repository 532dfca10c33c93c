from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.fake import FakeBackend
from app.engine.load.machine_file import model_key
from app.engine.tuning.tune_results import (
    DEFAULT_WORKLOAD,
    RuntimeSettings,
    SpeedMeasurement,
    TuneFile,
    Workload,
    default_setting,
    fastest,
    seconds,
    tune_key,
    with_kv_type,
)
from app.engine.tuning.tuner import QUICK, THOROUGH, first_settings, measure, refinements
from quantizer.gguf.file_types import file_type_named
from quantizer.gguf.header import read_header
from quantizer.write.quantize import execute
from tests.bench.models.make_model import plan_random_model

PLAIN = RuntimeSettings(2, flash_attention=False, extra_buffers=False)
FUSED = RuntimeSettings(2, flash_attention=True, extra_buffers=False)
FAST_PREFILL = SpeedMeasurement(FUSED, 219.0, ((0, 15.0), (512, 12.0), (1792, 6.5)), ((1, 1.0),))
FAST_DECODE = SpeedMeasurement(PLAIN, 134.0, ((0, 19.0), (512, 17.6), (1792, 14.1)), ((1, 1.0),))


def test_chat_takes_the_setting_that_decodes_fast() -> None:
    assert fastest([FAST_PREFILL, FAST_DECODE], DEFAULT_WORKLOAD) is FAST_DECODE


def test_work_that_is_mostly_prompts_takes_the_setting_that_prefills_fast() -> None:
    assert fastest([FAST_PREFILL, FAST_DECODE], Workload(n_prefill=4000, n_decode=40, depth=2000)) is FAST_PREFILL


def test_speed_between_measured_depths_is_linear_and_beyond_them_constant() -> None:
    middle = Workload(n_prefill=0, n_decode=100, depth=256)
    beyond = Workload(n_prefill=0, n_decode=100, depth=9999)
    assert seconds(FAST_DECODE, middle) == pytest.approx(100 / 18.3)
    assert seconds(FAST_DECODE, beyond) == pytest.approx(100 / 14.1)


def test_a_cpu_begins_without_fused_attention_and_a_gpu_with_it() -> None:
    assert not default_setting(2, has_gpu=False, extra_buffers_are_safe=True).flash_attention
    assert default_setting(2, has_gpu=True, extra_buffers_are_safe=True).flash_attention


def test_a_cache_of_quantized_values_brings_fused_attention_with_it() -> None:
    assert with_kv_type(PLAIN, "q8_0") == RuntimeSettings(2, flash_attention=True, extra_buffers=False, kv_type="q8_0")
    assert not with_kv_type(PLAIN, "q8_0,f16").flash_attention


def test_measurements_are_found_by_machine_and_model(tmp_path: Path) -> None:
    cache_dir = tmp_path / "cache"
    results = TuneFile(cache_dir, "this machine")
    results.store("model", "name.gguf", [FAST_PREFILL, FAST_DECODE])
    results.record_use("model", Workload(1, 2, 3), {1: 1.0, 16: 4.0})
    assert TuneFile(cache_dir, "this machine").measured("model") == (FAST_PREFILL, FAST_DECODE)
    assert TuneFile(cache_dir, "this machine").work("model") == Workload(1, 2, 3)
    assert TuneFile(cache_dir, "this machine").step_ratios("model") == {1: 1.0, 16: 4.0}
    assert results.names() == {"model": "name.gguf"}
    assert TuneFile(cache_dir, "another machine").measured("model") == ()
    assert TuneFile(cache_dir, "another machine").work("model") == DEFAULT_WORKLOAD


def test_a_damaged_file_counts_as_empty_and_is_rewritten(tmp_path: Path) -> None:
    (tmp_path / "tune.json").write_text("{")
    file = TuneFile(tmp_path, "machine")
    assert file.measured("model") == ()
    file.store("model", "name", [FAST_DECODE])
    assert file.measured("model") == (FAST_DECODE,)


@given(st.integers(0, 5000), st.integers(1, 5000), st.integers(0, 4000))
def test_no_other_setting_is_faster_than_the_chosen_one(n_prefill: int, n_decode: int, depth: int) -> None:
    work = Workload(n_prefill, n_decode, depth)
    best = fastest([FAST_PREFILL, FAST_DECODE], work)
    assert all(seconds(best, work) <= seconds(other, work) for other in (FAST_PREFILL, FAST_DECODE))


class CountedTime:
    """A clock that its backend moves on."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class TimedBackend(FakeBackend):
    """A batch of n tokens takes 10 + n ms, and `cell_s` for each cell that it attends to."""

    def __init__(self, clock: CountedTime, cell_s: float = 0.0, **shape: int) -> None:
        super().__init__(**shape)
        self._clock = clock
        self._cell_s = cell_s

    def decode(self, chunks: list) -> object:
        n_attended = sum(self.n_attended(chunk.sequence_id) for chunk in chunks)
        self._clock.now_s += 0.010 + 0.001 * sum(len(chunk.tokens) for chunk in chunks) + self._cell_s * n_attended
        return super().decode(chunks)


def test_measured_speeds_are_those_of_the_backend() -> None:
    clock = CountedTime()
    found = measure(TimedBackend(clock, n_sequences=20), PLAIN, THOROUGH, clock)
    assert found.prefill == pytest.approx(512 / 0.522)
    assert tuple(depth for depth, _ in found.decode) == THOROUGH.depths
    assert all(speed == pytest.approx(1 / 0.011) for _, speed in found.decode)
    assert [n_tokens for n_tokens, _ in found.step_ratios] == [1, *THOROUGH.step_sizes]
    assert dict(found.step_ratios)[16] == pytest.approx(26 / 11)


def test_depth_counts_the_cells_that_the_measured_sequence_attends_to() -> None:
    clock = CountedTime()
    found = measure(TimedBackend(clock, cell_s=1e-5, n_sequences=20), PLAIN, THOROUGH, clock)
    for depth, speed in found.decode:
        assert 1 / speed == pytest.approx(0.011 + 1e-5 * (depth + 64))


def test_depths_that_the_cache_cannot_hold_are_left_out() -> None:
    clock = CountedTime()
    found = measure(TimedBackend(clock, n_sequences=20, n_cells=1000, n_ctx=1000), PLAIN, THOROUGH, clock)
    assert [depth for depth, _ in found.decode] == [0, 512]


def test_quick_tuning_takes_less_than_half_of_thorough_tuning() -> None:
    spent = {}
    for effort in (QUICK, THOROUGH):
        clock = CountedTime()
        measure(TimedBackend(clock, n_sequences=20), PLAIN, effort, clock)
        spent[effort] = clock.now_s
    assert spent[QUICK] < 0.45 * spent[THOROUGH]


def test_settings_that_share_loaded_weights_come_one_after_the_other() -> None:
    repacked = [setting.extra_buffers for setting in first_settings(2, extra_buffers_are_safe=True)]
    assert repacked == sorted(repacked)
    assert not any(setting.extra_buffers for setting in first_settings(2, extra_buffers_are_safe=False))


def test_a_refinement_changes_one_setting_and_those_it_requires() -> None:
    found = refinements(RuntimeSettings(4, flash_attention=True, extra_buffers=True), n_processors=8)
    assert [setting.n_threads for setting in found if setting.n_threads != 4] == [2, 8]
    assert {setting.n_ubatch for setting in found} == {128, 256, 512}
    assert {setting.kv_type for setting in found} == {"f16", "q8_0", "q4_0"}
    assert all(setting.extra_buffers for setting in found)


def test_a_new_measurement_replaces_that_of_the_same_setting(tmp_path: Path) -> None:
    results = TuneFile(tmp_path, "this machine")
    results.add("model", "name.gguf", FAST_PREFILL)
    results.add("model", "name.gguf", FAST_DECODE)
    again = SpeedMeasurement(PLAIN, 1.0, FAST_DECODE.decode, FAST_DECODE.step_ratios)
    results.add("model", "name.gguf", again)
    assert results.measured("model") == (FAST_PREFILL, again)


def test_only_models_with_states_are_measured_under_a_key_of_their_own(tiny_model: Path, tmp_path: Path) -> None:
    state_model = tmp_path / "lfm2.gguf"
    plan = plan_random_model("tiny-lfm2", file_type_named("F16"), state_model)
    execute(plan, 1, is_overwriting=False, report=lambda _event: None)
    assert tune_key(read_header(tiny_model)) == model_key(tiny_model)
    assert tune_key(read_header(state_model)) != model_key(state_model)


def test_dropped_measurements_count_no_more_and_are_not_listed(tmp_path: Path) -> None:
    results = TuneFile(tmp_path, "this machine")
    results.store("model", "name.gguf", [FAST_PREFILL])
    results.record_use("model", Workload(1, 2, 3), {1: 1.0, 16: 4.0})
    results.drop("model")
    results.drop("another")
    assert results.measured("model") == ()
    assert results.step_ratios("model") == {}
    assert not results.names()
