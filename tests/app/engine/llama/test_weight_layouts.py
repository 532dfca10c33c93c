"""Both layouts of one model's weights: each step computes with exactly one of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.engine.load.self_test import run_self_test

REAL = Path(__file__).with_name("real_weight_layouts.py")


def found(tmp_path: Path, kind: str) -> dict[str, Any]:
    model = tmp_path / f"tiny-{kind}.gguf"
    subprocess.run([sys.executable, "tests/bench/models/make_model.py", "tiny-llama", kind, model], check=True)
    done = subprocess.run([sys.executable, str(REAL), model], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_small_steps_compute_with_repacked_weights_and_large_ones_as_the_file_has_them(tmp_path: Path) -> None:
    if not run_self_test(tmp_path).is_safe:
        pytest.skip("this build crashes on this processor when it repacks quantized weights, and the app does not")
    answer = found(tmp_path, "Q4_0")
    if not answer["n_bytes"]:
        pytest.skip("this processor repacks no weights of this type")
    assert answer["same"] == {"few": True, "many": True, "few again": True, "a context beside it": True}
    assert answer["differ"], "else nothing shows which weights were used"


def test_a_model_without_repacked_weights_maps_none(tmp_path: Path) -> None:
    answer = found(tmp_path, "F16")
    assert answer["n_bytes"] == 0
    assert all(answer["same"].values())
