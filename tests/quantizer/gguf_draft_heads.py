"""A tiny Llama, and draft heads of each kind that belong to it: EAGLE-3, DFlash, DFlash 2 and DSpark.

The byte tokens stand on a circle, and each is mostly followed by the next one. A token's embedding holds its place as
waves of many frequencies, so that a rotation moves it on by any number of places: that is what the heads compute. Noise
in the model's layers makes it leave the circle at times, where a draft is rejected.

Weights are named as in published checkpoints (source: conversion/llama.py and conversion/qwen.py of llama.cpp as
vendored in llama-cpp-python 0.3.36); the GGUF has the tensors that its converter makes of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from tests.quantizer.gguf_files import Edit, byte_level_tokens, write_gguf

__all__ = [
    "BLOCK_SIZE",
    "HEADS",
    "MASK_TOKEN",
    "TARGET",
    "DraftHead",
    "deep_head",
    "draft_head",
    "drafted_model",
    "published_config",
]

Weights = dict[str, NDArray[Any]]

N_VOCAB, N_CIRCLE, N_DRAFT_VOCAB = 272, 258, 192
N_EMBD, N_WAVES, N_FF, N_HEADS, N_KV_HEADS, HEAD_DIM, N_LAYERS = 64, 24, 96, 4, 2, 16, 4
TARGET_LAYERS = (1, 2, 3)
MASK_TOKEN, BLOCK_SIZE = 264, 5
N_TAPS, N_GROUP, N_CANDIDATES = 3, 16, 7  # of DFlash 2; a row of the head has room for its candidates and their pairs
_CONSTANT, _MASK = N_EMBD - 1, N_EMBD - 2  # elements that all tokens have, and that only the mask has
_TARGET_NOISE, _HEAD_NOISE = 0.9, 0.1
_LOGIT_SCALE = 0.3
_RMS_EPSILON = 1e-5


@dataclass(frozen=True)
class DraftHead:
    """One kind of head: what its config.json says more than a model's, and its weights by their published names."""

    architecture: str
    config: dict[str, Any]
    weights: Callable[[], Weights]
    describe: Edit


def drafted_model(path: Path, edit: Edit | None = None) -> Path:
    """Write the Llama that the heads belong to; `edit` may add or change metadata before it is written."""
    writer = gguf.GGUFWriter(path, "llama")
    _add_hyperparameters(writer, TARGET)
    if edit is not None:
        edit(writer)
    write_gguf(writer, _named(TARGET.weights(), is_interleaved=True))
    return path


def draft_head(path: Path, kind: str, edit: Edit | None = None, weights: Weights | None = None) -> Path:
    """Write a head of one of `HEADS`; `edit` and `weights`, by published names, may make it one that fits no model."""
    head = HEADS[kind]
    writer = gguf.GGUFWriter(path, head.architecture)
    _add_hyperparameters(writer, head)
    head.describe(writer)
    if edit is not None:
        edit(writer)
    write_gguf(writer, _named(weights or head.weights(), is_interleaved=head.architecture == "eagle3"))
    return path


def deep_head(path: Path, n_layers: int, n_taps: int, block_size: int = BLOCK_SIZE, edit: Edit | None = None) -> Path:
    """Write a DFlash 2 head whose convolutions have `n_taps` places each. Its first layer drafts, the others add a
    little to what that says."""
    weights = HEADS["dflash2"].weights()
    for name in ("attention_conv", "mlp_conv"):
        base, projection = f"layers.0.{name}.base_kernel", f"layers.0.{name}.kernel_projection.weight"
        taps = [weights[base][:, :1], *[weights[base][:, 1:2]] * (n_taps - 1)]
        weights[base] = np.ascontiguousarray(np.concatenate(taps, axis=1))
        weights[projection] = np.resize(weights[projection], (2 * n_taps * N_EMBD // N_GROUP, N_EMBD))
    of_layer = {name: array for name, array in weights.items() if name.startswith("layers.0.")}
    for index in range(1, n_layers):
        for name, array in of_layer.items():
            share = 0.1 if "o_proj" in name or "down_proj" in name else 1.0
            weights[name.replace("layers.0.", f"layers.{index}.")] = _f32(share * array)

    def describe(writer: gguf.GGUFWriter) -> None:
        writer.add_block_count(n_layers)
        writer.add_uint32("dflash.conv_kernel_size", n_taps)
        writer.add_uint32("dflash.block_size", block_size)
        if edit is not None:
            edit(writer)

    return draft_head(path, "dflash2", describe, weights)


def published_config(head: DraftHead) -> dict[str, Any]:
    """Return what its config.json holds."""
    return _CONFIG | head.config


def _add_hyperparameters(writer: gguf.GGUFWriter, head: DraftHead) -> None:
    config = published_config(head)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(N_VOCAB)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(byte_level_tokens(N_VOCAB))
    writer.add_token_types([1] * N_CIRCLE + [3] * (N_VOCAB - N_CIRCLE))
    writer.add_token_merges(["t h", "h e"])
    writer.add_eos_token_id(259)
    writer.add_add_bos_token(value=False)


def _circle() -> tuple[Weights, NDArray[np.float64]]:
    """The embedding and output matrix, and the rotation that moves an embedding on by one place, (N_EMBD, N_EMBD)."""
    rng = np.random.default_rng(5)
    order = rng.permutation(N_CIRCLE)
    angles = 2 * np.pi / N_CIRCLE * (1 + rng.permutation(N_CIRCLE // 2 - 1)[:N_WAVES])
    phases = np.arange(N_CIRCLE)[:, None] * angles
    embedding = 0.05 * rng.standard_normal((N_VOCAB, N_EMBD))
    embedding[order, :N_WAVES], embedding[order, N_WAVES : 2 * N_WAVES] = np.cos(phases), np.sin(phases)
    embedding[:, : 2 * N_WAVES] *= np.sqrt(2)
    embedding[:, _CONSTANT], embedding[:, _MASK] = 2.0, 0.0
    embedding[MASK_TOKEN, _MASK] = 6.0
    output = np.zeros_like(embedding)
    output[np.roll(order, -1), : 2 * N_WAVES] = _LOGIT_SCALE * embedding[order, : 2 * N_WAVES]
    rotation = np.zeros((N_EMBD, N_EMBD))
    waves = np.arange(N_WAVES)
    rotation[waves, waves] = rotation[waves + N_WAVES, waves + N_WAVES] = np.cos(angles)
    rotation[waves + N_WAVES, waves], rotation[waves, waves + N_WAVES] = np.sin(angles), -np.sin(angles)
    return {"model.embed_tokens.weight": _f32(embedding), "lm_head.weight": _f32(output)}, rotation


def _target_weights() -> Weights:
    rng = np.random.default_rng(7)
    weights = _circle()[0] | {"model.norm.weight": np.ones(N_EMBD, np.float32)}
    n_q, n_kv = N_HEADS * HEAD_DIM, N_KV_HEADS * HEAD_DIM
    for layer in (f"model.layers.{index}." for index in range(N_LAYERS)):
        weights |= {
            f"{layer}self_attn.q_proj.weight": _drawn(rng, n_q, N_EMBD),
            f"{layer}self_attn.k_proj.weight": _drawn(rng, n_kv, N_EMBD),
            f"{layer}self_attn.v_proj.weight": _drawn(rng, n_kv, N_EMBD),
            f"{layer}self_attn.o_proj.weight": _drawn(rng, N_EMBD, n_q, _TARGET_NOISE),
        }
        weights |= _feed_forward(rng, layer, _TARGET_NOISE) | _ones(layer, "input_layernorm")
    return weights


def _eagle3_weights() -> Weights:
    """Attention to the same token, of which it adds the embedding and takes the state before away."""
    rng = np.random.default_rng(9)
    waves = np.diag([1.0] * (2 * N_WAVES) + [0.0] * (N_EMBD - 2 * N_WAVES))
    nothing = np.zeros_like(waves)
    layer = "midlayer."
    return {
        "fc.weight": _f32(np.concatenate([waves / 3] * 3, axis=1) + _HEAD_NOISE * _drawn(rng, N_EMBD, 3 * N_EMBD)),
        f"{layer}self_attn.q_proj.weight": _f32(np.concatenate([1.5 * waves, nothing], axis=1)),
        f"{layer}self_attn.k_proj.weight": _f32(np.concatenate([1.5 * waves, nothing], axis=1)),
        f"{layer}self_attn.v_proj.weight": _f32(np.concatenate([waves, -waves], axis=1)),
        f"{layer}self_attn.o_proj.weight": _f32(waves),
        **_feed_forward(rng, layer, _HEAD_NOISE),
        **_ones(layer, "input_layernorm", "hidden_norm"),
        "norm.weight": np.ones(N_EMBD, np.float32),
    }


def _eagle3_small_vocabulary_weights() -> Weights:
    """The same with matrices of its own: an embedding, and an output of the tokens that it drafts."""
    return _eagle3_weights() | {
        "input_norm.weight": np.ones(3 * N_EMBD, np.float32),
        "embed_tokens.weight": _circle()[0]["model.embed_tokens.weight"],
        **_small_output(),
    }


def _small_output() -> Weights:
    """An output of some of the tokens, in order, and how far each stands from its place in the model's vocabulary."""
    drafted = np.sort(np.random.default_rng(3).permutation(N_CIRCLE)[:N_DRAFT_VOCAB])
    return {
        "lm_head.weight": _circle()[0]["lm_head.weight"][drafted],
        "d2t": drafted.astype(np.int64) - np.arange(N_DRAFT_VOCAB),
    }


def _block_weights(n_ahead: int) -> Weights:
    """Heads that look back by 1 to 4 places, and move what they find on to `n_ahead` places after themselves."""
    rng = np.random.default_rng(11)
    rotation = _circle()[1]
    waves = np.diag([1.0] * (2 * N_WAVES) + [0.0] * (N_EMBD - 2 * N_WAVES))
    queries, keys = np.zeros((N_HEADS * N_EMBD, N_EMBD)), np.zeros((N_EMBD, N_EMBD))
    half = N_EMBD // 2
    for pair in range(0, 16, 4):  # the frequencies that tell near places apart
        keys[pair, _CONSTANT] = 1.0
        for index in range(N_HEADS):
            angle = -(index + 1) * 10_000.0 ** (-pair / half)
            queries[index * N_EMBD + pair, _CONSTANT] = np.cos(angle)
            queries[index * N_EMBD + half + pair, _CONSTANT] = np.sin(angle)
    moved = [np.linalg.matrix_power(rotation, index + n_ahead) @ waves for index in range(N_HEADS)]
    layer = "layers.0."
    return {
        "fc.weight": _f32(np.concatenate([np.eye(N_EMBD) / 3] * 3, axis=1)),
        "hidden_norm.weight": np.ones(N_EMBD, np.float32),
        f"{layer}self_attn.q_proj.weight": _f32(queries),
        f"{layer}self_attn.k_proj.weight": _f32(keys),
        f"{layer}self_attn.v_proj.weight": _f32(waves),
        f"{layer}self_attn.o_proj.weight": _f32(np.concatenate(moved, axis=1)),
        f"{layer}self_attn.q_norm.weight": np.full(N_EMBD, 4.0, np.float32),
        f"{layer}self_attn.k_norm.weight": np.ones(N_EMBD, np.float32),
        **_feed_forward(rng, layer, _HEAD_NOISE),
        **_ones(layer, "input_layernorm"),
        "norm.weight": np.ones(N_EMBD, np.float32),
    }


def _dflash2_weights() -> Weights:
    """A block whose places see those before them a little, and a selector that knows which token follows which."""
    rng = np.random.default_rng(15)
    matrices = _circle()[0]
    gate = np.zeros((2 * N_WAVES, N_EMBD))
    gate[:, _CONSTANT] = 1.0
    convolutions: Weights = {}
    for name in ("attention_conv", "mlp_conv"):
        base = 0.05 * rng.standard_normal((2, N_TAPS, N_EMBD))
        base[:, 0] += 1.0
        convolutions[f"layers.0.{name}.base_kernel"] = _f32(base)
        n_rows = 2 * N_TAPS * N_EMBD // N_GROUP
        convolutions[f"layers.0.{name}.kernel_projection.weight"] = _drawn(rng, n_rows, N_EMBD, _HEAD_NOISE)
    return _block_weights(n_ahead=0) | {
        **convolutions,
        "candidate_selector.predecessor_codebook": matrices["model.embed_tokens.weight"][:, : 2 * N_WAVES],
        "candidate_selector.successor_codebook": 0.3 * matrices["lm_head.weight"][:, : 2 * N_WAVES],
        "candidate_selector.hidden_projection.weight": _f32(gate),
    }


def _dspark_weights() -> Weights:
    """A block whose first place drafts too, and a Markov head that knows which token follows which."""
    rng = np.random.default_rng(13)
    matrices = _circle()[0]
    return _block_weights(n_ahead=1) | {
        "markov_head.markov_w1.weight": matrices["model.embed_tokens.weight"][:, : 2 * N_WAVES],
        "markov_head.markov_w2.weight": 0.3 * matrices["lm_head.weight"][:, : 2 * N_WAVES],
        "confidence_head.proj.weight": 0.5 * _drawn(rng, 1, N_EMBD + 2 * N_WAVES),
        "confidence_head.proj.bias": np.ones(1, np.float32),
    }


def _dspark_small_vocabulary_weights() -> Weights:
    """One whose first place drafts nothing, with a small vocabulary and without a figure of confidence."""
    output = _small_output()
    return _block_weights(n_ahead=0) | {
        "markov_head.markov_w1.weight": _circle()[0]["model.embed_tokens.weight"][:, : 2 * N_WAVES],
        "markov_head.markov_w2.weight": 0.3 * output["lm_head.weight"][:, : 2 * N_WAVES],
        **output,
    }


def _feed_forward(rng: np.random.Generator, layer: str, gain: float) -> Weights:
    return {
        f"{layer}mlp.gate_proj.weight": _drawn(rng, N_FF, N_EMBD),
        f"{layer}mlp.up_proj.weight": _drawn(rng, N_FF, N_EMBD),
        f"{layer}mlp.down_proj.weight": _drawn(rng, N_EMBD, N_FF, gain),
        **_ones(layer, "post_attention_layernorm"),
    }


def _ones(layer: str, *names: str) -> Weights:
    return {f"{layer}{name}.weight": np.ones(N_EMBD, np.float32) for name in names}


def _drawn(rng: np.random.Generator, n_rows: int, n_columns: int, gain: float = 1.0) -> NDArray[np.float32]:
    return _f32(gain * rng.standard_normal((n_rows, n_columns)) / np.sqrt(n_columns))


def _f32(array: NDArray[Any]) -> NDArray[np.float32]:
    return array.astype(np.float32)


_GGUF_NAMES = (
    (r"midlayer\.", "layers.0."),
    (r"^model\.", ""),
    (r"^layers\.", "blk."),
    (r"self_attn\.o_proj", "attn_output"),
    (r"self_attn\.([qkv])_proj", r"attn_\1"),
    (r"self_attn\.([qk])_norm", r"attn_\1_norm"),
    (r"mlp\.(gate|up|down)_proj", r"ffn_\1"),
    (r"post_attention_layernorm", "ffn_norm"),
    (r"input_layernorm", "attn_norm"),
    (r"(?<=\d\.)hidden_norm", "attn_norm_2"),
    (r"^(hidden|input)_norm", "enc.output_norm"),
    (r"^norm\.", "output_norm."),
    (r"^embed_tokens", "token_embd"),
    (r"^lm_head", "output"),
    (r"^markov_head\.", ""),
    (r"^confidence_head\.proj", "conf_proj"),
    (r"attention_conv\.", "attn_conv_"),
    (r"mlp_conv\.", "ffn_conv_"),
    (r"conv_base_kernel", "conv_base"),
    (r"conv_kernel_projection", "conv_proj"),
    (r"^candidate_selector\.(\w+)_codebook", r"selector_\1.weight"),
    (r"^candidate_selector\.hidden_projection", "selector_hidden"),
)


def _named(weights: Weights, *, is_interleaved: bool) -> Weights:
    """Return `weights` by their names in GGUF, the order of queries and keys as the architecture's rope has it."""
    renamed = {}
    for name, weight in weights.items():
        tensor = weight
        if is_interleaved and re.search(r"[qk]_proj", name):
            tensor = weight.reshape(-1, 2, _head_dim(name) // 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
        if name == "d2t":
            tensor = weight + np.arange(weight.size)
        new = name
        for pattern, replacement in _GGUF_NAMES:
            new = re.sub(pattern, replacement, new)
        renamed[new] = np.ascontiguousarray(tensor)
    return renamed


def _head_dim(name: str) -> int:
    return N_EMBD if name.startswith("midlayer.") else HEAD_DIM


def _describe_eagle3(writer: gguf.GGUFWriter) -> None:
    writer.add_array("eagle3.target_layers", list(TARGET_LAYERS))
    writer.add_uint32("eagle3.target_hidden_size", N_EMBD)
    writer.add_bool("eagle3.norm_before_residual", False)
    writer.add_bool("eagle3.norm_before_fc", False)


def _describe_eagle3_small_vocabulary(writer: gguf.GGUFWriter) -> None:
    writer.add_array("eagle3.target_layers", list(TARGET_LAYERS))
    writer.add_uint32("eagle3.target_hidden_size", N_EMBD)
    writer.add_bool("eagle3.norm_before_residual", True)
    writer.add_bool("eagle3.norm_before_fc", True)


def _describe_dflash(writer: gguf.GGUFWriter) -> None:
    writer.add_array("dflash.target_layers", list(TARGET_LAYERS))
    writer.add_uint32("dflash.block_size", BLOCK_SIZE)
    writer.add_mask_token_id(MASK_TOKEN)


def _describe_dflash2(writer: gguf.GGUFWriter) -> None:
    _describe_dflash(writer)
    writer.add_uint32("dflash.conv_kernel_size", N_TAPS)
    writer.add_uint32("dflash.conv_group_size", N_GROUP)
    writer.add_uint32("dflash.selector_rank", 2 * N_WAVES)
    writer.add_uint32("dflash.selector_top_k", N_CANDIDATES)


def _describe_dspark(writer: gguf.GGUFWriter) -> None:
    _describe_dflash(writer)
    writer.add_bool("dflash.sample_from_anchor", True)
    writer.add_bool("dflash.has_confidence_head", True)


def _describe_dspark_small_vocabulary(writer: gguf.GGUFWriter) -> None:
    _describe_dflash(writer)
    writer.add_bool("dflash.sample_from_anchor", False)
    writer.add_bool("dflash.has_confidence_head", False)


_CONFIG: dict[str, Any] = {
    "hidden_size": N_EMBD,
    "intermediate_size": N_FF,
    "num_hidden_layers": 1,
    "num_attention_heads": N_HEADS,
    "num_key_value_heads": 1,
    "head_dim": N_EMBD,
    "max_position_embeddings": 512,
    "vocab_size": N_VOCAB,
    "rms_norm_eps": _RMS_EPSILON,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
_EAGLE3 = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "num_attention_heads": 1,
    "eagle_aux_hidden_state_layer_ids": list(TARGET_LAYERS),
    "target_hidden_size": N_EMBD,
}
_BLOCK = {"model_type": "qwen3", "block_size": BLOCK_SIZE}
_FEATURES = {"mask_token_id": MASK_TOKEN, "target_layer_ids": [layer - 1 for layer in TARGET_LAYERS]}
TARGET = DraftHead(
    "llama",
    {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": N_LAYERS,
        "num_key_value_heads": N_KV_HEADS,
        "head_dim": HEAD_DIM,
    },
    _target_weights,
    lambda writer: None,
)
HEADS = {
    "eagle3": DraftHead("eagle3", _EAGLE3 | {"draft_vocab_size": N_VOCAB}, _eagle3_weights, _describe_eagle3),
    "eagle3-small-vocabulary": DraftHead(
        "eagle3",
        _EAGLE3 | {"draft_vocab_size": N_DRAFT_VOCAB, "norm_before_residual": True, "norm_before_fc": True},
        _eagle3_small_vocabulary_weights,
        _describe_eagle3_small_vocabulary,
    ),
    "dflash": DraftHead(
        "dflash",
        _BLOCK | {"architectures": ["DFlashDraftModel"], "dflash_config": _FEATURES},
        lambda: _block_weights(n_ahead=0),
        _describe_dflash,
    ),
    "dflash2": DraftHead(
        "dflash",
        _BLOCK
        | {
            "architectures": ["DFlash2DraftModel"],
            "dflash_config": _FEATURES
            | {"conv_kernel_size": N_TAPS, "conv_group_size": N_GROUP}
            | {"selector_rank": 2 * N_WAVES, "selector_top_k": N_CANDIDATES},
        },
        _dflash2_weights,
        _describe_dflash2,
    ),
    "dspark": DraftHead(
        "dflash",
        _BLOCK | {"architectures": ["DSparkDraftModel"], "sample_from_anchor": True} | _FEATURES,
        _dspark_weights,
        _describe_dspark,
    ),
    "dspark-small-vocabulary": DraftHead(
        "dflash",
        _BLOCK
        | {"architectures": ["DSparkDraftModel"], "sample_from_anchor": False, "draft_vocab_size": N_DRAFT_VOCAB}
        | _FEATURES,
        _dspark_small_vocabulary_weights,
        _describe_dspark_small_vocabulary,
    ),
}
