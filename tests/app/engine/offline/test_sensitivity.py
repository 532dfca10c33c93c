from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from app.engine.model_task import TaskProgress
from app.engine.offline.evaluation import EvalRequest, EvalResult, evaluate
from app.engine.offline.imatrix import ImatrixRequest, collect
from app.engine.offline.sensitivity import SensitivityRequest, cached_sensitivities, measure_sensitivities
from quantizer.gguf.tensor_types import tensor_type_named
from quantizer.mix.imatrix import read_imatrix
from quantizer.mix.search import Sensitivity
from quantizer.write.dtype_conversion import encode, to_float32
from tests.quantizer.gguf_files import tiny_llama, tiny_weights

TEXT = "The other hen heard that the weather in the north gathers there. " * 6
N_CTX = 64
Q4_0 = tensor_type_named("Q4_0")
CHECKED = ("token_embd.weight", "blk.0.attn_k.weight", "blk.1.ffn_down.weight")  # first, within, last


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str]) -> None:
    for name in ("LOCALLLM_CACHE_DIR", "LOCALLLM_CONFIG"):
        monkeypatch.setenv(name, environment[name])


@pytest.fixture
def imatrix(tmp_path: Path, tiny_model: Path) -> Path:
    path = tmp_path / "matrix.gguf"
    list(collect(ImatrixRequest(str(tiny_model), TEXT, "text", N_CTX, 2, n_threads=1, output=str(path))))
    return path


def quantized(name: str, imatrix: Path) -> np.ndarray:
    """Return a weight of the tiny model, quantized to Q4_0 and back."""
    original = tiny_weights()[name].astype(np.float32)
    weights = read_imatrix(imatrix).weights(name, original.shape[::-1])
    parts = None if weights is None else weights.parts(0, len(original))
    return to_float32(encode(original, Q4_0, name, parts), Q4_0, original.shape[1]).astype(np.float16)


def test_the_sensitivity_of_a_tensor_is_the_divergence_of_a_file_with_it_alone_quantized(
    tmp_path: Path, tiny_model: Path, imatrix: Path
) -> None:
    steps: list[TaskProgress] = []

    def track(steps_of_child: Iterator[TaskProgress]) -> Iterator[TaskProgress]:
        for step in steps_of_child:
            steps.append(step)
            yield step

    request = SensitivityRequest(str(tiny_model), str(imatrix), TEXT, N_CTX, n_threads=1)
    measured = measure_sensitivities(request, track)
    matrices = {name for name, array in tiny_weights().items() if array.ndim == 2}
    assert set(measured) == matrices
    assert steps[-1].index + 1 == steps[-1].n_steps == len(steps)
    for name in CHECKED:
        path = tiny_llama(tmp_path / "quantized.gguf", tensors={**tiny_weights(), name: quantized(name, imatrix)})
        *_, result = evaluate(EvalRequest((str(path), str(tiny_model)), TEXT, N_CTX, 0, 1))
        assert isinstance(result, EvalResult)
        assert result.statistics.comparison is not None
        assert measured[name].kld == pytest.approx(result.statistics.comparison.mean_kld.value, rel=1e-3)
        assert measured[name].loss("Q4_0") == pytest.approx(measured[name].kld)
        assert measured[name].loss("Q8_0") < measured[name].loss("Q5_0") < measured[name].loss("Q4_0")


def test_results_are_cached_and_measured_again_when_the_file_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "key.json"
    stored = {"a": Sensitivity("a", "Q4_K", 0.5, {"Q4_K": 2.0, "F16": 0.0})}
    calls: list[int] = []

    def measure() -> dict[str, Sensitivity]:
        calls.append(1)
        return stored

    assert cached_sensitivities(path, measure) == cached_sensitivities(path, measure) == stored
    assert len(calls) == 1
    for damage in ("{", "[{}]", "[1]", json.dumps([{"name": "a"}])):
        path.write_text(damage, encoding="utf-8")
        assert cached_sensitivities(path, measure) == stored
    assert len(calls) == 5
    assert [file.name for file in path.parent.iterdir()] == ["key.json"]
