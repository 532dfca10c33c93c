from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from app.engine.tuning.tune_results import RuntimeSettings, SpeedMeasurement, TuneFile, tune_key
from quantizer.gguf.header import read_header
from tests.app.cli.in_process import run_localllm


def _measured(speed: float, *, is_fused: bool) -> SpeedMeasurement:
    setting = RuntimeSettings(n_threads=2, flash_attention=is_fused, extra_buffers=False)
    return SpeedMeasurement(setting, 100.0 * speed, ((0, 10.0 * speed), (512, 9.0 * speed)), ((16, 4.0),))


def test_a_figure_that_a_setting_lacks_leaves_its_place_empty(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALLLM_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("LOCALLLM_CONFIG", str(tmp_path / "config.toml"))
    whole, short = _measured(2.0, is_fused=True), _measured(1.0, is_fused=False)
    short = replace(short, decode=short.decode[:1])
    TuneFile(tmp_path).store(tune_key(read_header(tiny_model)), "tiny", [short, whole])
    shown = run_localllm(os.environ, "tune", tiny_model, "--show").stdout
    rows = [line for line in shown.splitlines() if "f16" in line]
    assert [row.rindex("4.00") for row in rows] == [shown.splitlines()[1].rindex("of 16") + 1] * 2


def test_the_fastest_setting_is_marked_where_nothing_is_bold(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALLLM_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("LOCALLLM_CONFIG", str(tmp_path / "config.toml"))
    slow, fast = _measured(1.0, is_fused=False), _measured(2.0, is_fused=True)
    TuneFile(tmp_path).store(tune_key(read_header(tiny_model)), "tiny", [slow, fast])
    shown = run_localllm(os.environ, "tune", tiny_model, "--show").stdout
    (marked,) = (line for line in shown.splitlines() if line.lstrip().startswith("* ") and "tokens" not in line)
    assert marked.split()[1] == "fused"
    assert "* is fastest" in shown
