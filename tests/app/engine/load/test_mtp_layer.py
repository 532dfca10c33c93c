from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from app.engine.load.auxiliary_models import has_mtp_layers, mtp_layer_bytes
from quantizer.gguf.header import read_header
from quantizer.gguf.validation import validate_gguf
from tests.quantizer.gguf_heads import predicting_model, predicting_weights


def found(path: Path) -> int | None:
    return mtp_layer_bytes(validate_gguf(path))


@pytest.mark.parametrize(
    ("architecture", "index"), [("glm4moe", 1), ("deepseek2", 1), ("hy_v3", 1), ("qwen35", 2), ("qwen3next", 2)]
)
def test_a_layer_costs_its_own_bytes_and_those_of_the_output_matrix(
    tmp_path: Path, architecture: str, index: int
) -> None:
    layer = found(predicting_model(tmp_path / "m.gguf", architecture))
    weights = predicting_weights(architecture)
    own = sum(array.nbytes for name, array in weights.items() if name.startswith(f"blk.{index}."))
    assert layer == own + weights["output.weight"].nbytes


def test_a_model_without_such_layers_has_none(tiny_model: Path) -> None:
    header = validate_gguf(tiny_model)
    assert not has_mtp_layers(header)
    assert mtp_layer_bytes(header) is None


# Files with which llama.cpp would end the process if it ran the layer.
@pytest.mark.parametrize(
    ("architecture", "edit"),
    [
        ("glm4moe", lambda w: w.add_nextn_predict_layers(2)),
        ("glm4moe", lambda w: w.add_leading_dense_block_count(2)),
        ("deepseek2", lambda w: w.add_q_lora_rank(0)),
        ("deepseek2", lambda w: w.add_float32("deepseek2.attention.temperature_scale", 0.1)),
    ],
)
def test_a_layer_that_llama_cpp_cannot_run_does_not_draft(
    tmp_path: Path, architecture: str, edit: Callable[[gguf.GGUFWriter], None]
) -> None:
    assert found(predicting_model(tmp_path / "m.gguf", architecture, edit)) is None


@pytest.mark.parametrize(("n_trunk", "is_found"), [(25, True), (26, False), (27, False), (28, True), (48, False)])
def test_a_deepseek_that_is_read_without_latent_queries_does_not_draft(
    tmp_path: Path, n_trunk: int, is_found: bool
) -> None:
    weights = {
        name.replace("blk.1.", f"blk.{n_trunk}."): array for name, array in predicting_weights("deepseek2").items()
    }
    path = predicting_model(
        tmp_path / "m.gguf", "deepseek2", lambda writer: writer.add_block_count(n_trunk + 1), weights
    )
    assert (mtp_layer_bytes(read_header(path)) is not None) == is_found


@pytest.mark.parametrize("name", ["nextn.eh_proj", "nextn.hnorm", "ffn_gate_inp"])
def test_a_declared_layer_with_missing_tensors_does_not_draft(tmp_path: Path, name: str) -> None:
    weights = predicting_weights()
    del weights[f"blk.1.{name}.weight"]
    assert found(predicting_model(tmp_path / "m.gguf", weights=weights)) is None
