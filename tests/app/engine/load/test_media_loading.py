from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.engine.load.media_loading import usable_projector
from app.engine.protocol.messages import EngineConfig
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.header import read_header
from tests.quantizer.gguf_projectors import tiny_projector

REAL_MEDIA = Path(__file__).with_name("real_media.py")
ROOT = Path(__file__).parents[4]
GUIDE = ROOT / "assets" / "guide" / "guide-Q8_0.gguf"
GUIDE_EMBD = 256


def load(projector: Path, cache: Path, *forgotten: str) -> dict[str, Any]:
    command = [sys.executable, str(REAL_MEDIA), str(GUIDE), str(projector), str(cache), *forgotten]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def loads(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What three loads with the same pictures found; before the third, their conversation is forgotten."""
    folder = tmp_path_factory.mktemp("media")
    projector = tiny_projector(folder / "mmproj.gguf", GUIDE_EMBD)
    return [load(projector, folder / "cache", *forgotten) for forgotten in ((), (), ("chat",))]


def test_a_projector_that_was_found_and_does_not_belong_is_left_out_with_the_reason(tmp_path: Path) -> None:
    wrong = tiny_projector(tmp_path / "mmproj.gguf", GUIDE_EMBD // 2)
    config, header = EngineConfig(projector_path=str(wrong)), read_header(GUIDE)
    left, projector, reason = usable_projector(config, header, tmp_path)
    assert (left.projector_path, projector) == ("", None)
    assert reason.startswith("The model takes no pictures or sounds: mmproj.gguf does not belong to guide-Q8_0.gguf")
    with pytest.raises(ModelFileError):
        usable_projector(replace(config, has_chosen_projector=True), header, tmp_path)


@pytest.mark.slow
def test_a_model_with_a_projector_sees(loads: list[dict[str, Any]]) -> None:
    assert (loads[0]["sees"], loads[0]["hears"]) == (True, False)
    assert loads[0]["shapes"] == [[4, GUIDE_EMBD]] * 2
    assert len(set(loads[0]["sums"])) == 2
    assert (loads[0]["n_laid_out"], loads[0]["n_encoded"]) == (2, 2)


@pytest.mark.slow
def test_a_restart_encodes_nothing_again(loads: list[dict[str, Any]]) -> None:
    assert loads[1]["sums"] == loads[0]["sums"]
    assert (loads[1]["n_laid_out"], loads[1]["n_encoded"]) == (0, 0)


@pytest.mark.slow
def test_a_forgotten_conversation_is_encoded_again(loads: list[dict[str, Any]]) -> None:
    assert loads[2]["sums"] == loads[0]["sums"]
    assert (loads[2]["n_laid_out"], loads[2]["n_encoded"]) == (2, 2)


@pytest.mark.slow
def test_a_projector_whose_marks_the_model_lacks_is_refused(tmp_path: Path) -> None:
    found = load(tiny_projector(tmp_path / "mmproj.gguf", GUIDE_EMBD, "idefics3"), tmp_path / "cache")
    assert found["error"] == "ModelFileError"
    assert "vocabulary lacks" in found["message"]
