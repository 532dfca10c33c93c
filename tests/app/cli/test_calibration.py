from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.cli.calibration import PrunedRequest, Runnable, print_layers
from app.engine.offline.layer_importance import LayerDistance
from quantizer.write.job import JobRequest
from tests.quantizer.checkpoints import TinyLlama


@pytest.mark.parametrize(("removed", "is_said"), [((0,), False), ((1,), True)])
def test_a_layer_that_stays_although_it_changes_less_is_explained(
    capsys: pytest.CaptureFixture[str], removed: tuple[int, ...], is_said: bool
) -> None:
    request = JobRequest("m.gguf", "F16", "o.gguf", 1, is_overwriting=False, removed_layers=removed)
    print_layers(PrunedRequest(request, [LayerDistance(0, 0.1), LayerDistance(1, 0.2)]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1 + removed[0]].split() == [str(removed[0]), f"{0.1 + 0.1 * removed[0]:.4f}", "left", "out"]
    assert any("stays, whatever its distance" in line for line in lines) == is_said


_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.mark.slow
def test_what_a_conversion_takes_stands_on_a_line_of_its_own_above_the_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # so that there is a bar
    monkeypatch.setenv("COLUMNS", "500")  # the line names a folder, and a long one would be wrapped
    monkeypatch.setenv("LOCALLLM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCALLLM_CONFIG", str(tmp_path / "config.toml"))
    checkpoint = TinyLlama(n_embd=64, n_ff=96).write(tmp_path / "tiny")
    with Runnable(checkpoint, "F16", 1) as running:
        assert running.path.is_file()
    rows = re.split(r"[\r\n]+", _CONTROL.sub("", capsys.readouterr().err))
    (told,) = (row for row in rows if "to run the checkpoint in F16" in row)
    assert told.startswith("Needs ")
    assert any(row.startswith("Reading headers") for row in rows)
