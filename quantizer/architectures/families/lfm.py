"""LFM 2: short convolutions in most layers, attention with normalised heads in the others; with experts after the
first dense layers.

llama.cpp calls the last norm one of the embeddings. The width of the feed-forward is two thirds of the configured one,
rounded up, unless the config has it otherwise; that of experts is as configured.
"""

from __future__ import annotations

from dataclasses import replace

from quantizer.architectures.architecture import Architecture, Hyperparameter, Value
from quantizer.architectures.metadata_rows import DECODER, EXPERTS, VOCABULARY, integer
from quantizer.architectures.shapes import (
    ATTENTION,
    DIMENSIONS,
    EXPERT_FEED_FORWARD,
    FUSED_EXPERTS,
    GATED_FEED_FORWARD,
    HEAD_NORMS,
    PRE_NORMS,
    Dimensions,
    Stack,
)
from quantizer.checkpoint.config import Config
from quantizer.checkpoint.errors import CheckpointError
from quantizer.convert.derived_tensors import whole_tensor

_SIGMOID = 2  # llama.cpp's number for it
_CONVOLUTION = {"conv", "short_conv"}


def _attends(config: Config, i: int) -> bool:
    """Return whether layer `i` attends; without any list all do."""
    kinds = config.values.get("layer_types")
    if kinds is None:
        chosen = config.values.get("full_attn_idxs")
        return not isinstance(chosen, list) or i in chosen
    if not isinstance(kinds, list) or len(kinds) < config.integer("num_hidden_layers"):
        raise CheckpointError("config.json does not list the kinds of all layers.", "Check layer_types.")
    return kinds[i] not in _CONVOLUTION


def _kv_heads(config: Config) -> Value:
    """Return the heads of each layer, none for convolutions."""
    n_heads = config.integer("num_key_value_heads")
    return [n_heads if _attends(config, i) else 0 for i in range(config.integer("num_hidden_layers"))]


def _width(config: Config) -> int:
    """Return the width of the feed-forward, as the HF class computes it."""
    width = config.integer("block_ff_dim", "intermediate_size")
    if config.flag("block_auto_adjust_ff_dim") is False:
        return width
    multiple = config.integer("block_multiple_of")
    width = int(config.number("block_ffn_dim_multiplier") * int(2 * width / 3))
    return -(-width // max(1, multiple)) * multiple


def _model(config: Config) -> Dimensions:
    tensors: Dimensions = {"token_embd.weight": ("n_embd", "n_vocab"), "token_embd_norm.weight": ("n_embd",)}
    is_tied = config.flag("tie_word_embeddings")
    return tensors if is_tied else {**tensors, "output.weight": ("n_embd", "n_vocab")}


def _mixer(config: Config, i: int) -> Dimensions:
    if _attends(config, i):
        return {**PRE_NORMS, **ATTENTION, **HEAD_NORMS}
    n_embd = config.integer("hidden_size")
    return {
        **PRE_NORMS,
        "shortconv.conv.weight": (config.integer("conv_L_cache"), n_embd),
        "shortconv.in_proj.weight": (n_embd, 3 * n_embd),
        "shortconv.out_proj.weight": (n_embd, n_embd),
    }


def _dense_layer(config: Config, i: int) -> Dimensions:
    n_embd, width = config.integer("hidden_size"), _width(config)
    return {
        **_mixer(config, i),
        "ffn_gate.weight": (n_embd, width),
        "ffn_up.weight": (n_embd, width),
        "ffn_down.weight": (width, n_embd),
    }


def _layer(config: Config, i: int) -> Dimensions:
    if i < config.integer("num_dense_layers"):
        return {**_mixer(config, i), **GATED_FEED_FORWARD}
    return {**_mixer(config, i), **EXPERT_FEED_FORWARD, "exp_probs_b.bias": ("n_expert",)}


_ROWS = (
    *(row for row in DECODER if row.key not in ("feed_forward_length", "attention.head_count_kv")),
    *VOCABULARY,
    Hyperparameter("attention.head_count_kv", "u32[]", _kv_heads),
    Hyperparameter("attention.layer_norm_rms_epsilon", "f32", lambda config: config.number("norm_eps")),
    Hyperparameter("shortconv.l_cache", "u32", integer("conv_L_cache")),
)
_DENSE = Architecture(
    hf_classes=("Lfm2ForCausalLM",),
    gguf_name="lfm2",
    hyperparameters=(*_ROWS, Hyperparameter("feed_forward_length", "u32", _width)),
    model_tensors=_model,
    layer_tensors=_dense_layer,
    reshaped=("SHORTCONV_CONV",),
    aliases={"tie_embedding": "tie_word_embeddings"},
    defaults={
        "tie_word_embeddings": True,
        "rope_theta": 1e6,
        "norm_eps": 1e-5,
        "conv_L_cache": 3,
        "block_multiple_of": 256,
        "block_ffn_dim_multiplier": 1.0,
    },
    assumed={
        "conv_bias": lambda _config: False,
        "head_dim": lambda config: config.integer("hidden_size") // max(1, config.integer("num_attention_heads")),
    },
)

LFM = (
    _DENSE,
    replace(
        _DENSE,
        hf_classes=("Lfm2MoeForCausalLM",),
        gguf_name="lfm2moe",
        hyperparameters=(
            *_ROWS,
            *EXPERTS,
            Hyperparameter("feed_forward_length", "u32", integer("intermediate_size")),
            Hyperparameter("leading_dense_block_count", "u32", integer("num_dense_layers")),
            Hyperparameter("expert_feed_forward_length", "u32", integer("moe_intermediate_size")),
            Hyperparameter("expert_gating_func", "u32", lambda _config: _SIGMOID),
        ),
        layer_tensors=_layer,
        splits={".expert_bias": {".expert_bias.bias": whole_tensor}, **FUSED_EXPERTS},
        # gguf's map has the experts under the names of Mixtral's
        stacks=(Stack(".feed_forward.experts.", ".block_sparse_moe.experts.", DIMENSIONS["n_expert"]),),
        defaults={**_DENSE.defaults, "num_dense_layers": 2},
        assumed={
            **_DENSE.assumed,
            "use_expert_bias": lambda _config: True,
            "norm_topk_prob": lambda _config: True,
            "routed_scaling_factor": lambda _config: 1.0,
        },
    ),
)
