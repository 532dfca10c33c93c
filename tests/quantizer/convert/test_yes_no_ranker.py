from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from quantizer.checkpoint.config import Config
from quantizer.checkpoint.errors import CheckpointError
from quantizer.convert.checkpoint_source import config_header
from quantizer.convert.yes_no_ranker import PROMPT, is_yes_no_ranker
from quantizer.gguf.file_types import file_type_named
from quantizer.gguf.header import Header, read_header
from quantizer.write.quantize import execute
from quantizer.write.quantize_plan import plan
from tests.quantizer.checkpoints import tokenizer, tokenizer_config, write_safetensors

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
    with pytest.raises(CheckpointError, match=r"lacks .* a token for yes and no"):
        converted(tmp_path / "qwen3-reranker")


def test_a_planned_ranker_has_no_output(tmp_path: Path) -> None:
    untied = QWEN | {"tie_word_embeddings": False}
    for name, expected in (("Qwen3-Reranker-8B", False), ("Qwen3-8B", True)):
        assert ("output.weight" in {tensor.name for tensor in config_header(untied, name).tensors}) is expected
