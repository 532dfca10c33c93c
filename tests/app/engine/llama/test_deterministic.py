"""One question several times to a real model: beside others, after others, with other numbers of threads."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quantizer.gguf.tensor_types import file_type_named
from quantizer.write.quantize import execute
from quantizer.write.quantize_plan import plan

REAL = Path(__file__).with_name("real_deterministic.py")
GUIDE = Path(__file__).parents[4] / "assets" / "guide" / "guide-Q8_0.gguf"


@pytest.fixture(scope="module", params=["Q4_1", "Q4_K_M"])
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of it with types whose kernels differ by the size of a step."""
    model = tmp_path_factory.mktemp("model") / f"guide-{request.param}.gguf"
    execute(plan(GUIDE, file_type_named(request.param), model), 1, False, lambda _done: None)
    run = subprocess.run([sys.executable, str(REAL), str(model)], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    results: dict[str, Any] = json.loads(run.stdout)
    return results


@pytest.mark.slow
def test_deterministic_answers_have_the_same_probabilities_to_the_bit(played: dict[str, Any]) -> None:
    assert set(played["deterministic"].values()) == {1}
    assert played["n_cached"] > 0, "and some of them reuse the prompt of another"


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="other processors have other kernels")
def test_usual_answers_have_several(played: dict[str, Any]) -> None:
    assert max(played["usual"].values()) > 1
