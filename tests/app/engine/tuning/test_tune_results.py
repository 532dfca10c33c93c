from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from quantizer.gguf.header import read_header

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
def test_no_other_setting_is_clearly_faster_than_the_chosen_one(n_prefill: int, n_decode: int, depth: int) -> None:
    work = Workload(n_prefill, n_decode, depth)
    best = fastest([FAST_PREFILL, FAST_DECODE], work)
    assert all(seconds(best, work) <= 1.02 * seconds(other, work) for other in (FAST_PREFILL, FAST_DECODE))


def test_of_settings_that_are_as_fast_the_one_is_taken_that_decodes_several_answers_faster() -> None:
    alone = replace(FAST_DECODE, batched_decode=30.0)
    together = replace(FAST_DECODE, setting=FUSED, prefill=133.0, batched_decode=33.0)
    slower = replace(together, prefill=80.0, batched_decode=40.0)
    assert fastest([alone, together, slower], DEFAULT_WORKLOAD) is together


def test_a_new_measurement_replaces_that_of_the_same_setting(tmp_path: Path) -> None:
    results = TuneFile(tmp_path, "this machine")
    results.add("model", "name.gguf", FAST_PREFILL)
    results.add("model", "name.gguf", FAST_DECODE)
    again = SpeedMeasurement(PLAIN, 1.0, FAST_DECODE.decode, FAST_DECODE.step_ratios)
    results.add("model", "name.gguf", again)
    assert results.measured("model") == (FAST_PREFILL, again)


def test_measurements_that_were_made_in_another_way_are_not_found(tiny_model: Path) -> None:
    assert tune_key(read_header(tiny_model)) == tune_key(read_header(tiny_model))
    assert tune_key(read_header(tiny_model)) != model_key(tiny_model)  # the key of earlier versions


def test_dropped_measurements_count_no_more_and_are_not_listed(tmp_path: Path) -> None:
    results = TuneFile(tmp_path, "this machine")
    results.store("model", "name.gguf", [FAST_PREFILL])
    results.record_use("model", Workload(1, 2, 3), {1: 1.0, 16: 4.0})
    results.drop("model")
    results.drop("another")
    assert results.measured("model") == ()
    assert results.step_ratios("model") == {}
    assert not results.names()
