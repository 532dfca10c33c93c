from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.engine.load import quick_types
from app.engine.tuning import tuner
from app.engine.tuning.tune_results import RuntimeSettings, SpeedMeasurement
from app.engine.tuning.tuner import first_settings, refinements, undisturbed
from app.settings.settings import Settings
from offload.devices.host import CpuTimes
from quantizer.gguf.header import read_header
from tests.quantizer.gguf_files import tiny_llama

BOTH = RuntimeSettings(2, flash_attention=False, extra_buffers=True, plain_from=24)


def test_what_was_measured_beside_other_programs_is_not_kept() -> None:
    measured = [SpeedMeasurement(RuntimeSettings(n, False, False), 1.0, ((0, 1.0),), ((1, 1.0),)) for n in (1, 2, 3)]
    readings = iter([(0, 0), (10, 9), (10, 9), (20, 12), (20, 12), (30, 21), (30, 21)])  # total and idle seconds

    def read() -> CpuTimes:
        total_s, idle_s = next(readings)
        return CpuTimes(float(total_s), float(idle_s), 0.0)

    assert [speeds.setting.n_threads for speeds in undisturbed(measured, read)] == [1, 3]


@pytest.mark.parametrize(
    "default", [BOTH, replace(BOTH, plain_from=0), replace(BOTH, extra_buffers=False, plain_from=0)]
)
def test_the_default_comes_first_and_then_settings_that_share_its_weights(default: RuntimeSettings) -> None:
    found = first_settings(default, extra_buffers_are_safe=True, plain_from=BOTH.plain_from)
    assert found[0] == default
    assert len(found) == len(set(found)) == 6
    shares = [setting.extra_buffers == default.extra_buffers for setting in found]
    assert shares == sorted(shares, reverse=True)


def test_a_build_that_cannot_run_repacked_weights_is_measured_without_them() -> None:
    default = RuntimeSettings(2, flash_attention=False, extra_buffers=False)
    found = first_settings(default, extra_buffers_are_safe=False, plain_from=24)
    assert found == [default, replace(default, flash_attention=True)]


def test_a_refinement_changes_one_setting_and_those_it_requires() -> None:
    found = refinements(RuntimeSettings(4, flash_attention=True, extra_buffers=True), n_processors=8)
    assert [setting.n_threads for setting in found if setting.n_threads != 4] == [2, 8]
    assert {setting.n_ubatch for setting in found} == {128, 256, 512}
    assert {setting.kv_type for setting in found} == {"f16", "q8_0", "q4_0"}
    assert all(setting.extra_buffers for setting in found)


def test_types_that_alone_gain_by_repacking_are_tried_so_without_a_gpu_and_on_a_sound_build() -> None:
    apart = replace(BOTH, plain_from=0, repacked_types=("Q4_0",))
    found = first_settings(BOTH, extra_buffers_are_safe=True, plain_from=24, repacked_types=("Q4_0",))
    assert [setting for setting in found if setting.repacked_types] == [apart]
    on_gpu = replace(BOTH, flash_attention=True)
    for default, is_safe in ((on_gpu, True), (BOTH, False)):
        found = first_settings(default, extra_buffers_are_safe=is_safe, plain_from=24, repacked_types=("Q4_0",))
        assert not any(setting.repacked_types for setting in found)


def test_copies_for_prompts_are_compared_with_none() -> None:
    copied = replace(BOTH, copies=(("Q4_1", "BF16"),))
    found = first_settings(copied, extra_buffers_are_safe=True, plain_from=BOTH.plain_from)
    assert found[0] == copied
    assert len(found) == len(set(found)) == 8
    assert {replace(BOTH, flash_attention=flash) for flash in (False, True)} == {
        setting for setting in found if not setting.copies
    }


def test_what_is_tuned_before_the_first_load_has_the_copies_that_a_load_finds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A load measures the types of its model first; a default with other copies would not count for it."""
    monkeypatch.setattr(tuner, "run_self_test", lambda _: SimpleNamespace(is_safe=True))
    monkeypatch.setattr(tuner, "LoadDevices", lambda *_: SimpleNamespace(has_gpu=False))
    is_measured: list[bool] = []
    monkeypatch.setattr(quick_types, "measure_prompts", lambda *_, **__: is_measured.append(True))
    monkeypatch.setattr(quick_types, "copies_of", lambda *_, **__: (("Q6_K", "F16"),) if is_measured else ())
    header = read_header(tiny_llama(tmp_path / "tiny.gguf"))
    _, _, (default, *_), _ = tuner._prepare(header, 0, Settings(cache_dir=tmp_path / "cache"))
    assert default.copies == (("Q6_K", "F16"),)
