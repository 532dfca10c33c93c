from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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
