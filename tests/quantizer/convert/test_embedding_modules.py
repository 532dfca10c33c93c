from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.convert.checkpoint_source import config_header
from quantizer.convert.embedding_modules import PROMPT, EmbeddingModules, is_yes_no_ranker, read_embedding_modules
from quantizer.gguf.header import Header, read_header
from quantizer.gguf.tensor_types import file_type_named
from quantizer.write.quantize import execute
from quantizer.write.quantize_plan import plan
from tests.quantizer.checkpoints import tokenizer, tokenizer_config, write_safetensors
from tests.quantizer.encoder_checkpoints import pooled_as

_NAMES = ("dense_2", "dense_3")
_IDENTITY = "torch.nn.modules.linear.Identity"


def read(folder: Path, *names: str) -> EmbeddingModules:
    return read_embedding_modules(folder, Config({"hidden_size": 8}), names)


def with_dense_modules(folder: Path, *widths: int, **settings: Any) -> Path:
    """Write a pooling and linear modules between the `widths`; their settings may be changed."""
    sizes = list(pairwise(widths))
    pooled_as(folder, {"pooling_mode": "mean"}, *["Dense"] * len(sizes), "Normalize")
    for number, (n_in, n_out) in enumerate(sizes, 2):
        module = folder / f"{number}_Dense"
        module.mkdir()
        own = {"in_features": n_in, "out_features": n_out, "bias": False, "activation_function": _IDENTITY}
        (module / "config.json").write_text(json.dumps(own | settings))
        write_safetensors(module / "model.safetensors", {"linear.weight": np.ones((n_out, n_in), np.float32)}, "F32")
    return folder


@pytest.mark.parametrize(
    ("settings", "number"),
    [
        ({"pooling_mode": "mean"}, 1),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, 2),
        ({"word_embedding_dimension": 8, "pooling_mode_lasttoken": True, "include_prompt": True}, 3),
    ],
)
def test_names_and_older_flags_become_the_number_of_llama_cpp(
    settings: dict[str, Any], number: int, tmp_path: Path
) -> None:
    pooled_as(tmp_path, settings, "Normalize")
    assert read(tmp_path).numbers == {"pooling_type": number}


def test_a_folder_without_modules_has_no_pooling(tmp_path: Path) -> None:
    assert read(tmp_path) == EmbeddingModules()


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"pooling_mode": "weightedmean"}, "weightedmean pooling"),
        ({"pooling_mode_max_tokens": True}, "pooling_mode_max_tokens pooling"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "cls and mean pooling"),
        ({"pooling_mode_cls_token": False}, "no pooling"),
    ],
)
def test_a_pooling_that_llama_cpp_has_not_is_named(settings: dict[str, Any], cause: str, tmp_path: Path) -> None:
    pooled_as(tmp_path, settings)
    with pytest.raises(CheckpointError, match=cause):
        read(tmp_path)


def test_layers_behind_the_pooling_are_refused(tmp_path: Path) -> None:
    pooled_as(tmp_path, {"pooling_mode": "mean"}, "Dense", "Normalize")
    with pytest.raises(CheckpointError, match="a Dense module behind it"):
        read(tmp_path)


def test_linear_modules_become_tensors_where_llama_cpp_has_names_for_them(tmp_path: Path) -> None:
    modules = read(with_dense_modules(tmp_path, 8, 24, 8), *_NAMES)
    assert {name: tensor.shape for name, tensor in modules.tensors.items()} == {
        "dense_2_out.weight": (8, 24),
        "dense_3_out.weight": (24, 8),
    }
    assert modules.numbers == {
        "pooling_type": 1,
        "dense_2_feat_in": 8,
        "dense_2_feat_out": 24,
        "dense_3_feat_in": 24,
        "dense_3_feat_out": 8,
    }


@pytest.mark.parametrize("widths", [(8, 8), (8, 8, 8, 8)])
def test_another_number_of_linear_modules_is_refused(widths: tuple[int, ...], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="a Dense module behind it"):
        read(with_dense_modules(tmp_path, *widths), *_NAMES)


def test_a_linear_module_before_the_pooling_is_refused(tmp_path: Path) -> None:
    with_dense_modules(tmp_path, 8, 24, 8)
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules.insert(1, modules.pop(2))
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointError, match="a Dense module behind it"):
        read(tmp_path, *_NAMES)


def test_a_module_of_another_kind_is_refused_beside_linear_ones(tmp_path: Path) -> None:
    pooled_as(tmp_path, {"pooling_mode": "mean"}, "Dense", "Dense", "LayerNorm")
    with pytest.raises(CheckpointError, match="a LayerNorm module behind it"):
        read(tmp_path, *_NAMES)


@pytest.mark.parametrize(
    ("widths", "settings", "cause"),
    [
        ((8, 24, 8), {"activation_function": "torch.nn.modules.activation.Tanh"}, "an activation or a bias"),
        ((8, 24, 8), {"activation_function": None}, "an activation or a bias"),
        ((8, 24, 8), {"out_features": 23}, "has 24 × 8 weights, where 23 × 8 are needed"),
        ((9, 24, 8), {}, "has 24 × 9 weights, where 24 × 8 are needed"),
        ((8, 24, 9), {}, "outputs 9 numbers"),
    ],
)
def test_linear_modules_that_llama_cpp_would_compute_otherwise_are_refused(
    widths: tuple[int, ...], settings: dict[str, Any], cause: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=cause):
        read(with_dense_modules(tmp_path, *widths, **settings), *_NAMES)


def test_a_linear_module_with_a_bias_is_refused(tmp_path: Path) -> None:
    with_dense_modules(tmp_path, 8, 24, 8)
    weights = {"linear.weight": np.ones((24, 8), np.float32), "linear.bias": np.ones(24, np.float32)}
    write_safetensors(tmp_path / "2_Dense" / "model.safetensors", weights, "F32")
    with pytest.raises(CheckpointError, match="an activation or a bias"):
        read(tmp_path, *_NAMES)


def test_a_linear_module_without_weights_is_named(tmp_path: Path) -> None:
    (with_dense_modules(tmp_path, 8, 24, 8) / "3_Dense" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no \.safetensors files in .*3_Dense"):
        read(tmp_path, *_NAMES)


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege on Windows")
def test_the_weights_of_a_module_may_be_a_link_of_the_hub_cache(tmp_path: Path) -> None:
    folder = tmp_path / "models--a--b" / "snapshots" / "0123"
    folder.mkdir(parents=True)
    weights = with_dense_modules(folder, 8, 24, 8) / "2_Dense" / "model.safetensors"
    blob, secret = tmp_path / "models--a--b" / "blobs" / "4567", tmp_path / "secret.safetensors"
    blob.parent.mkdir()
    for target in (blob, secret):
        weights.rename(target)
        weights.symlink_to(target)
        if target == blob:
            assert read(folder, *_NAMES).tensors
            weights.unlink()
            target.rename(weights)
    with pytest.raises(CheckpointError, match="symlink out of the checkpoint folder"):
        read(folder, *_NAMES)


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        *(
            ([{"type": "sentence_transformers.models.Pooling", "path": path}], "outside the checkpoint folder")
            for path in ("../1_Pooling", "/etc", "1_Pooling/..", "..")
        ),
        *(
            (no_modules, "not a list of modules")
            for no_modules in ({}, [1], [{"type": 5, "path": ""}], [{"type": "P"}])
        ),
    ],
)
def test_modules_outside_their_folder_and_what_is_no_module_are_refused(
    modules: object, words: str, tmp_path: Path
) -> None:
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointError, match=words):
        read(tmp_path)


QWEN: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "vocab_size": 272,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
SHAPES = {
    "model.embed_tokens.weight": (272, 32),
    "model.norm.weight": (32,),
    "model.layers.0.input_layernorm.weight": (32,),
    "model.layers.0.post_attention_layernorm.weight": (32,),
    "model.layers.0.self_attn.q_norm.weight": (16,),
    "model.layers.0.self_attn.k_norm.weight": (16,),
    "model.layers.0.self_attn.q_proj.weight": (32, 32),
    "model.layers.0.self_attn.k_proj.weight": (16, 32),
    "model.layers.0.self_attn.v_proj.weight": (16, 32),
    "model.layers.0.self_attn.o_proj.weight": (32, 32),
    "model.layers.0.mlp.gate_proj.weight": (64, 32),
    "model.layers.0.mlp.up_proj.weight": (64, 32),
    "model.layers.0.mlp.down_proj.weight": (32, 64),
}
NO, YES = 264, 265


def checkpoint(folder: Path, *, is_tied: bool = True, words: tuple[str, ...] = ("no", "yes")) -> dict[str, np.ndarray]:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN | {"tie_word_embeddings": is_tied}))
    tokens = tokenizer()
    tokens["added_tokens"] += [
        tokens["added_tokens"][0] | {"id": NO + i, "content": word, "special": False} for i, word in enumerate(words)
    ]
    (folder / "tokenizer.json").write_text(json.dumps(tokens))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config()))
    shapes = SHAPES if is_tied else SHAPES | {"lm_head.weight": (272, 32)}
    rng = np.random.default_rng(3)
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    write_safetensors(folder / "model.safetensors", weights, "F32")
    return weights


def converted(folder: Path) -> Header:
    output = folder.with_name("out.gguf")
    execute(plan(folder, file_type_named("F32"), output), 1, False, lambda _done: None)
    return read_header(output)


@pytest.mark.parametrize("is_tied", [True, False])
def test_the_rows_of_yes_and_no_are_what_ranks(tmp_path: Path, is_tied: bool) -> None:
    weights = checkpoint(tmp_path / "Qwen3-Reranker-0.6B", is_tied=is_tied)
    header = converted(tmp_path / "Qwen3-Reranker-0.6B")
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(header.path).tensors}
    source = weights["model.embed_tokens.weight" if is_tied else "lm_head.weight"]
    assert np.array_equal(tensors["cls.output.weight"].data, source[[YES, NO]])
    assert "output.weight" not in tensors
    assert header.metadata["qwen3.pooling_type"] == 4
    assert list(header.strings("qwen3.classifier.output_labels")) == [b"yes", b"no"]
    assert header.metadata["tokenizer.chat_template.rerank"] == PROMPT


def test_a_card_that_says_so_makes_a_ranker_whatever_its_folder_is_called(tmp_path: Path) -> None:
    checkpoint(tmp_path / "snapshot")
    assert not is_yes_no_ranker(tmp_path / "snapshot", Config(QWEN))
    (tmp_path / "snapshot" / "README.md").write_text("---\nlicense: x\n---\n\n# Qwen3-Reranker-4B\n")
    assert is_yes_no_ranker(tmp_path / "snapshot", Config(QWEN))
    assert not is_yes_no_ranker(tmp_path / "snapshot", Config(QWEN | {"architectures": ["Qwen3Model"]}))


def test_modules_that_only_compare_both_answers_do_not_matter(tmp_path: Path) -> None:
    folder = tmp_path / "qwen3-reranker"
    checkpoint(folder)
    modules = [{"type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore", "path": "1_LogitScore"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    assert converted(folder).metadata["qwen3.pooling_type"] == 4


def test_a_ranker_without_a_word_for_its_answers_is_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path / "qwen3-reranker", words=("nein", "ja"))
    with pytest.raises(CheckpointError, match=r"has no .* no tokens for yes and no"):
        converted(tmp_path / "qwen3-reranker")


def test_a_planned_ranker_has_no_output(tmp_path: Path) -> None:
    untied = QWEN | {"tie_word_embeddings": False}
    for name, expected in (("Qwen3-Reranker-8B", False), ("Qwen3-8B", True)):
        assert ("output.weight" in {tensor.name for tensor in config_header(untied, name).tensors}) is expected
