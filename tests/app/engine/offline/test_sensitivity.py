from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.model_task import TaskProgress
from app.engine.offline.evaluation import EvalRequest, EvalResult, divergence, evaluate, log_softmax
from app.engine.offline.imatrix import ImatrixRequest, collect
from app.engine.offline.sensitivity import (
    MIN_WINDOWS,
    ReadingPlan,
    Reference,
    SensitivityRequest,
    cached_sensitivities,
    measure_sensitivities,
    reading_plan,
)
from quantizer.gguf.tensor_types import tensor_type_named
from quantizer.mix.imatrix import read_imatrix
from quantizer.mix.search import Sensitivity
from quantizer.system.errors import EngineError
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


@pytest.mark.slow
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
        # the text has no 16 windows of N_CTX, so that all of half the length are read
        assert measured[name].n_ctx == N_CTX // 2
        *_, result = evaluate(EvalRequest((str(path), str(tiny_model)), TEXT, N_CTX // 2, measured[name].n_windows, 1))
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


TEXTS = st.integers(32, 200_000)
CONTEXTS = st.sampled_from([16, 32, 48, 64, 256, 512])
VOCABULARIES = st.integers(1, 300_000)
AFFORDABLE = st.floats(0, 1e9)
MEMORY = st.integers(1 << 16, 1 << 30)


@given(TEXTS, CONTEXTS, VOCABULARIES, AFFORDABLE, MEMORY)
def test_a_reading_has_sixteen_windows_within_text_time_and_memory(
    n_tokens: int, n_ctx: int, n_vocab: int, n_affordable: float, max_bytes: int
) -> None:
    plan = reading_plan(n_tokens, n_ctx, n_vocab, n_affordable, max_bytes)
    shortest = reading_plan(0, n_ctx, n_vocab, 0).n_ctx
    n_read = plan.n_windows * plan.n_ctx
    assert shortest <= plan.n_ctx <= n_ctx
    assert n_read <= max(n_tokens, shortest)
    assert n_read <= max(n_affordable, MIN_WINDOWS * shortest)
    assert plan.n_windows >= min(MIN_WINDOWS, max(1, n_tokens // shortest))
    assert 1 <= plan.n_kept <= n_vocab
    n_bytes = 8 * plan.n_kept * plan.n_windows * max(1, plan.n_ctx - plan.n_ctx // 2 - 1)
    assert plan.n_kept == 1 or n_bytes <= max_bytes


@given(TEXTS, CONTEXTS, st.tuples(VOCABULARIES, VOCABULARIES), st.tuples(AFFORDABLE, AFFORDABLE))
def test_a_vocabulary_costs_no_window_and_more_time_reads_no_less(
    n_tokens: int, n_ctx: int, vocabularies: tuple[int, int], times: tuple[float, float]
) -> None:
    short, long = (reading_plan(n_tokens, n_ctx, vocabularies[0], time) for time in sorted(times))
    assert short.n_windows * short.n_ctx <= long.n_windows * long.n_ctx
    assert short.n_ctx <= long.n_ctx
    other = reading_plan(n_tokens, n_ctx, vocabularies[1], sorted(times)[0])
    assert (other.n_ctx, other.n_windows) == (short.n_ctx, short.n_windows)


@pytest.mark.parametrize(
    ("n_tokens", "n_vocab", "n_affordable", "expected"),
    [
        (4472, 262_144, 1e6, ReadingPlan(256, 17, 15_541)),  # Gemma 3 on the calibration text
        (4472, 262_144, 2100, ReadingPlan(128, 16, 33_288)),
        (4472, 262_144, 0, ReadingPlan(32, 16, 139_810)),
        (8064, 4096, 1e6, ReadingPlan(256, 31, 4096)),  # the guide: all of it
        (2000, 4096, 1e6, ReadingPlan(64, 31, 4096)),  # a short text
        (100, 4096, 1e6, ReadingPlan(32, 3, 4096)),
    ],
)
def test_readings_of_known_texts(n_tokens: int, n_vocab: int, n_affordable: float, expected: ReadingPlan) -> None:
    assert reading_plan(n_tokens, 256, n_vocab, n_affordable) == expected


def rows(seed: int, n_vocab: int, spread: float) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, spread, (5, n_vocab)).astype(np.float32)


@given(st.integers(0, 1000), st.integers(1, 300), st.floats(0.1, 9), st.floats(0.01, 1))
def test_what_is_kept_of_a_prediction_diverges_as_all_of_it_but_for_the_rest(
    seed: int, n_kept: int, spread: float, noise: float
) -> None:
    logits = rows(seed, 300, spread)
    changed = logits + rows(seed + 1, 300, noise)
    q, p = log_softmax(logits), log_softmax(changed)
    whole = divergence(q, p)
    kept = Reference.of(logits, n_kept).divergences(changed)
    likeliest = np.argsort(-logits, axis=1)[:, :n_kept]
    is_rest = np.ones(logits.shape, bool)
    np.put_along_axis(is_rest, likeliest, values=False, axis=1)
    rests = [np.where(is_rest, np.exp(logs), 0) for logs in (q, p)]
    within = [rest / np.maximum(rest.sum(axis=1, keepdims=True), 1e-300) for rest in rests]
    logs = np.log(np.maximum(within[0], 1e-300) / np.maximum(within[1], 1e-300))
    among_rest = rests[0].sum(axis=1) * np.where(is_rest, within[0] * logs, 0).sum(axis=1)
    assert kept == pytest.approx(whole - among_rest, rel=1e-5, abs=1e-6)


def test_a_prediction_that_is_not_a_number_is_an_error() -> None:
    logits = rows(1, 300, 1)
    broken = logits.copy()
    broken[2, 299] = np.nan
    with pytest.raises(EngineError, match="NaN"):
        Reference.of(broken, 10)
    with pytest.raises(EngineError, match="NaN"):
        Reference.of(logits, 10).divergences(broken)
