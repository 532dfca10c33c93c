from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.cli.quantization.calibration import Runnable
from tests.quantizer.checkpoints import TinyLlama

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def test_what_a_conversion_takes_stands_on_a_line_of_its_own_above_the_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # so that there is a bar
    monkeypatch.setenv("LOCALLLM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCALLLM_CONFIG", str(tmp_path / "config.toml"))
    checkpoint = TinyLlama(n_embd=64, n_ff=96).write(tmp_path / "tiny")
    with Runnable(checkpoint, "F16", 1) as running:
        assert running.path.is_file()
    rows = re.split(r"[\r\n]+", _CONTROL.sub("", capsys.readouterr().err))
    (told,) = (row for row in rows if "to run the checkpoint in F16" in row)
    assert told.startswith("Takes ")
    assert any(row.startswith("Reading headers") for row in rows)
