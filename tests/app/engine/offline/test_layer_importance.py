from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest

from app.engine.offline.evaluation import EvalRequest, EvalResult, evaluate
from app.engine.offline.layer_importance import LayerDistances, LayerRequest, measure_layers
from quantizer.convert.layer_removal import layers_to_remove
from quantizer.convert.source_model import open_gguf
from quantizer.gguf.tensor_types import file_type_named
from quantizer.system.errors import EngineError
from quantizer.write.plan_options import PlanOptions
from quantizer.write.quantize import execute
from quantizer.write.quantize_plan import plan
from tests.quantizer.gguf_files import N_EMBD, N_HEADS, tiny_llama, tiny_weights
from tests.quantizer.gguf_heads import predicting_model, predicting_weights

TEXT = "The other hen heard that the weather in the north gathers there. " * 6
N_CTX, N_WINDOW = 64, 16
WRITES = ("attn_output.weight", "ffn_down.weight", "ssm_out.weight")  # what a layer adds comes from these


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str]) -> None:
    for name in ("LOCALLLM_CACHE_DIR", "LOCALLLM_CONFIG"):
        monkeypatch.setenv(name, environment[name])


def layer_of(weights: Mapping[str, np.ndarray], layer: int) -> dict[str, np.ndarray]:
    prefix = f"blk.{layer}."
    return {name.removeprefix(prefix): array for name, array in weights.items() if name.startswith(prefix)}


def stacked(weights: Mapping[str, np.ndarray], order: list[int], idle: int, seed: int = 3) -> dict[str, np.ndarray]:
    """Weights of as many layers as `order` names of those in `weights`, each with noise; layer `idle` adds nothing."""
    rng = np.random.default_rng(seed)
    stack = {name: array for name, array in weights.items() if not name.startswith("blk.")}
    for layer, origin in enumerate(order):
        for name, array in layer_of(weights, origin).items():
            noisy = array * rng.uniform(0.5, 1.5, array.shape).astype(array.dtype)
            if array.ndim > 1 and name in WRITES:
                noisy = noisy * (0 if layer == idle else 4)
            stack[f"blk.{layer}.{name}"] = noisy.astype(array.dtype)
    return stack


def tiny_plain(path: Path) -> Path:
    return tiny_llama(path, lambda writer: writer.add_block_count(4), stacked(tiny_weights(), [0, 1, 0, 1], idle=1))


def tiny_windows(path: Path) -> Path:
    """A Gemma 3 whose layer 5 sees everything, being the sixth, and whose layer 2 adds nothing."""
    weights = tiny_weights()
    for layer in range(2):
        for name in ("attn_q_norm", "attn_k_norm"):
            weights[f"blk.{layer}.{name}.weight"] = np.ones(N_EMBD // N_HEADS, np.float32)
        for name in ("post_attention_norm", "post_ffw_norm"):
            weights[f"blk.{layer}.{name}.weight"] = np.ones(N_EMBD, np.float32)

    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_block_count(7)
        writer.add_sliding_window(N_WINDOW)
        writer.add_key_length(N_EMBD // N_HEADS)
        writer.add_value_length(N_EMBD // N_HEADS)

    return tiny_llama(path, edit, stacked(weights, [0, 1, 0, 1, 0, 1, 0], idle=2), "gemma3")


def tiny_hybrid(path: Path) -> Path:
    """A Qwen 3.5 of states and attention in turn and a prediction layer, whose layer 2, a state, adds nothing."""
    weights = predicting_weights("qwen35")
    stack = stacked(weights, [0, 1, 0, 1, 2], idle=2)
    return predicting_model(path, "qwen35", lambda writer: writer.add_block_count(5), stack)


@pytest.mark.slow
@pytest.mark.parametrize(("make", "idle"), [(tiny_plain, 1), (tiny_windows, 2), (tiny_hybrid, 2)])
def test_the_layer_that_adds_nothing_is_found_and_the_model_without_it_predicts_the_same(
    tmp_path: Path, make: Callable[[Path], Path], idle: int
) -> None:
    source = make(tmp_path / "model.gguf")
    layers = measure_layers(LayerRequest(str(source), TEXT, N_CTX, 1), lambda steps: steps)
    distances = [layer.distance for layer in layers]
    assert [layer.layer for layer in layers] == list(range(len(layers)))
    assert distances[idle] == pytest.approx(0, abs=1e-6)
    assert all(distance > 1e-3 for layer, distance in enumerate(distances) if layer != idle)
    removed = layers_to_remove(open_gguf(source), distances, 1)
    assert removed == (idle,)
    output = tmp_path / "pruned.gguf"
    execute(
        plan(source, file_type_named("F32"), output, PlanOptions(removed_layers=removed)), 1, True, lambda _event: None
    )
    assert divergence(output, source) < 1e-6
    other = tmp_path / "other.gguf"
    options = PlanOptions(removed_layers=(0,))
    execute(plan(source, file_type_named("F32"), other, options), 1, True, lambda _event: None)
    assert divergence(other, source) > 1e-4


def divergence(path: Path, reference: Path) -> float:
    *_, result = evaluate(EvalRequest((str(path), str(reference)), TEXT, N_CTX, 0, 1))
    assert isinstance(result, EvalResult)
    assert result.statistics.comparison is not None
    return float(result.statistics.comparison.mean_kld.value)


def test_the_distance_is_of_directions_not_of_lengths() -> None:
    distances = LayerDistances(2)
    before = np.array([[1, 0], [0, 2]], np.float32)
    distances.add(0, before, 3 * before)
    distances.add(1, before, np.array([[0, 1], [0, -5]], np.float32))
    assert [layer.distance for layer in distances.means()] == pytest.approx([0, 1.5])


def test_a_layer_that_is_never_seen_and_one_that_computes_nan_are_errors() -> None:
    distances = LayerDistances(2)
    rows = np.ones((1, 2), np.float32)
    distances.add(0, rows, rows)
    with pytest.raises(EngineError, match="does not name the output of layer 1"):
        distances.means()
    with pytest.raises(EngineError, match="layer 1 is not finite"):
        distances.add(1, rows, rows * np.nan)
