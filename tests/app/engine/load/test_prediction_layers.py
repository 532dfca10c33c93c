from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from app.engine.load.auxiliary_models import read_auxiliary_models
from app.engine.load.head_file import find_head, is_head, read_head
from app.engine.load.prediction_layers import has_mtp_layers, mtp_layer_bytes
from app.engine.speculative.draft_heads import HeadKind
from offload.footprint.model import PlannedModel, RunConfig
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.header import read_header
from quantizer.gguf.validation import tensors_of, validate_gguf
from tests.quantizer.gguf_assistants import assistant, assisted_model
from tests.quantizer.gguf_heads import (
    PREDICTING,
    first_predicting,
    n_predicting,
    predicting_model,
    predicting_weights,
    split_model,
)


def found(path: Path) -> int | None:
    return mtp_layer_bytes(validate_gguf(path))


@pytest.mark.parametrize("architecture", PREDICTING)
def test_a_layer_costs_its_own_bytes_and_those_of_the_output_matrix(tmp_path: Path, architecture: str) -> None:
    layer = found(predicting_model(tmp_path / "m.gguf", architecture))
    weights, first = predicting_weights(architecture), first_predicting(architecture)
    blocks = tuple(f"blk.{first + i}." for i in range(n_predicting(architecture)))
    own = sum(array.nbytes for name, array in weights.items() if name.startswith(blocks))
    assert layer == own // n_predicting(architecture) + weights["output.weight"].nbytes


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
        ("bailingmoe3", lambda w: w.add_nextn_predict_layers(2)),
        ("nemotron_h_moe", lambda w: w.add_nextn_predict_layers(2)),
        ("nemotron_h_moe", lambda w: w.add_moe_latent_size(32)),
        ("mimo2", lambda w: w.add_nextn_predict_layers(3)),
        ("step35", lambda w: w.add_nextn_predict_layers(3)),
    ],
)
def test_layers_that_llama_cpp_cannot_run_do_not_draft(
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


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        *(("glm4moe", name) for name in ("nextn.eh_proj.weight", "nextn.hnorm.weight", "ffn_gate_inp.weight")),
        ("glm4moe", "attn_k.weight"),
        ("deepseek32", "indexer.k_norm.bias"),
        ("bailingmoe3", "layer_output_norm.weight"),
        ("bailingmoe3", "attn_q_b.weight"),
        ("nemotron_h_moe", "nextn.shared_head_norm.weight"),
        ("cohere2moe", "ffn_up_shexp.weight"),
        ("cohere2moe", "ffn_up_exps.weight"),
        ("mimo2", "ffn_gate.weight"),
        ("step35", "ffn_down_shexp.weight"),
    ],
)
def test_a_declared_layer_with_missing_tensors_does_not_draft(tmp_path: Path, architecture: str, name: str) -> None:
    weights = predicting_weights(architecture)
    del weights[f"blk.{first_predicting(architecture)}.{name}"]
    assert found(predicting_model(tmp_path / "m.gguf", architecture, weights=weights)) is None


@pytest.mark.parametrize("index", range(3))
def test_all_layers_that_take_turns_must_be_whole(tmp_path: Path, index: int) -> None:
    weights = predicting_weights("mimo2-chained")
    del weights[f"blk.{first_predicting('mimo2-chained') + index}.nextn.enorm.weight"]
    assert found(predicting_model(tmp_path / "m.gguf", "mimo2-chained", weights=weights)) is None


@pytest.mark.parametrize("architecture", ["glm4moe", "qwen35", "mimo2-chained"])
def test_layers_in_a_file_of_their_own_are_a_head(tmp_path: Path, architecture: str) -> None:
    model, head = map(validate_gguf, split_model(tmp_path, architecture))
    assert not is_head(model)
    assert is_head(head)
    assert mtp_layer_bytes(model) is None
    spec = read_head(head, model)
    assert (spec.kind, spec.target_layers) == (HeadKind.MTP, (first_predicting(architecture),))
    assert spec.n_layers == n_predicting(architecture)


def test_layers_beside_a_model_without_them_are_found_and_others_stay_unused(tmp_path: Path) -> None:
    model, head = split_model(tmp_path, "glm4moe")
    assert find_head(validate_gguf(model)) == (head, ())
    whole = predicting_model(tmp_path / "whole.gguf")
    assert find_head(validate_gguf(whole)) == (None, ())
    (tmp_path / "other").mkdir()
    trunk, _ = split_model(tmp_path / "other", "glm4moe")
    other = predicting_model(trunk, "qwen35", lambda w: w.add_nextn_predict_layers(2))  # in its place
    path, (reason,) = find_head(validate_gguf(other))
    assert path is None
    assert "it has layers of glm4moe models" in reason


def test_an_assistant_beside_its_model_is_found(tmp_path: Path) -> None:
    model, head = assisted_model(tmp_path / "m.gguf"), assistant(tmp_path / "mtp-m.gguf")
    assert find_head(validate_gguf(model)) == (head, ())


def test_layers_in_a_file_of_their_own_take_the_memory_of_layers_in_the_model(tmp_path: Path) -> None:
    model, head = split_model(tmp_path, "mimo2-chained")
    whole = validate_gguf(predicting_model(tmp_path / "whole.gguf", "mimo2-chained"))
    (beside,), (own,) = (
        PlannedModel(header, tensors_of(header), auxiliary=read_auxiliary_models(header, draft_path=path))
        .profile(RunConfig(n_ctx=2048, n_cells=2048))
        .extras
        for header, path in ((validate_gguf(model), str(head)), (whole, ""))
    )
    assert beside.cache_bytes == own.cache_bytes
    assert beside.compute_bytes == own.compute_bytes


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda w: w.add_block_count(3), "it follows 2 layers, and this model has 1"),
        (lambda w: w.add_embedding_length(128), "hidden states of 128 numbers"),
    ],
)
def test_layers_in_a_file_of_their_own_must_belong_to_the_model(
    tmp_path: Path, edit: Callable[[gguf.GGUFWriter], None], words: str
) -> None:
    model, head = split_model(tmp_path, "glm4moe")
    weights = {name: array for name, array in predicting_weights().items() if not name.startswith("blk.0.")}
    other = predicting_model(tmp_path / "other.gguf", edit=edit, weights=weights)
    with pytest.raises(ModelFileError, match=words):
        read_head(validate_gguf(other), validate_gguf(model))
    with pytest.raises(ModelFileError, match="layers of glm4moe models"):
        read_head(validate_gguf(head), validate_gguf(predicting_model(tmp_path / "q.gguf", "qwen35")))


def test_matrices_that_llama_cpp_reads_separately_or_as_one_may_be_either(tmp_path: Path) -> None:
    weights = predicting_weights("step35")
    block = f"blk.{first_predicting('step35')}."
    whole = {name: weights.pop(f"{block}attn_{name}.weight") for name in "qkv"}
    assert found(predicting_model(tmp_path / "m.gguf", "step35", weights=weights)) is None
    weights[f"{block}attn_qkv.weight"] = np.concatenate([*whole.values()])
    assert found(predicting_model(tmp_path / "n.gguf", "step35", weights=weights)) is not None
