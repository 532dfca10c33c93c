from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantizer.gguf.adapters import read_control_vector, validate_adapter
from quantizer.gguf.gguf_reader import ModelFileError
from tests.quantizer.gguf_adapters import control_vector, lora, lora_weights
from tests.quantizer.gguf_files import N_EMBD, N_LAYERS, N_TOKENS, tiny_llama, tiny_weights

OUTPUT = "blk.0.attn_output.weight"
EMBEDDING = "token_embd.weight"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf")


def pair(name: str, a: tuple[int, ...], b: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {f"{name}.lora_a": np.zeros(a, np.float32), f"{name}.lora_b": np.zeros(b, np.float32)}


def test_an_adapter_that_fits_is_let_through(tmp_path: Path, model: Path) -> None:
    assert len(validate_adapter(lora(tmp_path / "a.gguf"), model).tensors) == len(lora_weights())


def test_the_matrices_of_an_embedding_lie_the_other_way(tmp_path: Path) -> None:
    weights = tiny_weights() | {"output.weight": np.zeros((N_TOKENS, N_EMBD), np.float32)}
    untied = tiny_llama(tmp_path / "untied.gguf", tensors=weights)
    assert validate_adapter(lora(tmp_path / "a.gguf", pair(EMBEDDING, (N_TOKENS, 4), (N_EMBD, 4))), untied)


def test_an_adapter_of_an_embedding_that_is_the_output_is_refused(tmp_path: Path, model: Path) -> None:
    with pytest.raises(ModelFileError, match="which is the output of this model too"):
        validate_adapter(lora(tmp_path / "a.gguf", pair(EMBEDDING, (N_TOKENS, 4), (N_EMBD, 4))), model)


def test_a_model_is_no_adapter(model: Path) -> None:
    with pytest.raises(ModelFileError, match="is not a LoRA adapter"):
        validate_adapter(model, model)


@pytest.mark.parametrize(
    ("tensors", "cause"),
    [
        ({}, "changes no weight"),
        (pair("blk.7.attn_output.weight", (4, N_EMBD), (N_EMBD, 4)), "the model has no tensor"),
        (pair(OUTPUT, (4, 32), (N_EMBD, 4)), "other shapes"),
        (pair(OUTPUT, (4, N_EMBD), (32, 4)), "other shapes"),
        (pair(OUTPUT, (8, N_EMBD), (N_EMBD, 4)), "other shapes"),
        (pair(OUTPUT, (2, 4, N_EMBD), (2, N_EMBD, 4)), "other shapes"),
        (pair("output_norm.weight", (4, N_EMBD), (N_EMBD, 4)), "other shapes"),
        (pair(EMBEDDING, (N_TOKENS, 4), (N_EMBD, 8)), "other shapes"),
        ({f"{OUTPUT}.lora_a": np.zeros((4, N_EMBD), np.float32)}, "is missing"),
        ({"blk.0.strange": np.zeros(4, np.float32)}, "is not part of a LoRA"),
        (
            {f"{OUTPUT}.lora_a": np.zeros((4, N_EMBD), np.int8), f"{OUTPUT}.lora_b": np.zeros((N_EMBD, 4), np.float32)},
            "a type that adapters do not use",
        ),
    ],
)
def test_matrices_that_fit_no_weight_are_refused(
    tmp_path: Path, model: Path, tensors: dict[str, np.ndarray], cause: str
) -> None:
    with pytest.raises(ModelFileError, match=cause):
        validate_adapter(lora(tmp_path / "a.gguf", tensors), model)


@pytest.mark.parametrize(
    ("metadata", "cause"),
    [
        ({"general_type": "model"}, "is not a LoRA adapter"),
        ({"adapter_type": "other"}, "is not a LoRA adapter"),
        ({"architecture": "qwen3"}, "is an adapter for 'qwen3' models"),
        ({"edit": lambda writer: writer.add_string("adapter.lora.alpha", "8")}, "is not a number"),
        ({"edit": lambda writer: writer.add_float32("adapter.lora.alpha", float("nan"))}, "is not a number"),
        ({"edit": lambda writer: writer.add_float64("adapter.lora.alpha", 8.0)}, "is not a number"),
        ({"edit": lambda writer: writer.add_array("adapter.alora.invocation_tokens", [1, 2])}, "aLoRA"),
    ],
)
def test_metadata_for_something_else_or_that_llamacpp_would_choke_on_or_we_do_not_serve_is_refused(
    tmp_path: Path, model: Path, metadata: dict[str, Any], cause: str
) -> None:
    with pytest.raises(ModelFileError, match=cause):
        validate_adapter(lora(tmp_path / "a.gguf", **metadata), model)


def test_directions_lie_in_the_rows_of_their_layers(tmp_path: Path, model: Path) -> None:
    directions = read_control_vector(control_vector(tmp_path / "v.gguf"), model)
    assert directions.shape == (N_LAYERS - 1, N_EMBD)
    np.testing.assert_array_equal(directions[0], np.random.default_rng(5).standard_normal(N_EMBD).astype(np.float32))


def test_a_model_is_no_control_vector(model: Path) -> None:
    with pytest.raises(ModelFileError, match="is not a control vector"):
        read_control_vector(model, model)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"n_embd": 32}, "32 numbers for layer 1"),
        ({"layers": (N_LAYERS,)}, f"for layer {N_LAYERS}"),
        ({"layers": (0,)}, "is not a direction"),
        ({"layers": ()}, "contains no direction"),
        ({"size": float("nan")}, "NaN or infinite"),
        ({"kind": "llama"}, "is not a control vector"),
    ],
)
def test_a_vector_for_another_model_or_for_none_is_refused(
    tmp_path: Path, model: Path, changes: dict[str, object], cause: str
) -> None:
    with pytest.raises(ModelFileError, match=cause):
        read_control_vector(control_vector(tmp_path / "v.gguf", **changes), model)  # type: ignore[arg-type]
