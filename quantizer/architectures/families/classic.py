"""Decoders of the first generation: layer norms, feed-forwards without a gate, most with biases everywhere.

BLOOM and MPT: positions as ALiBi's distances, which llama.cpp computes; BLOOM normalises its embeddings too. DBRX:
experts after layer norms without biases. GPT-2 and StarCoder (GPTBigCode): learned positions; GPT-2's matrices are
stored with rows as columns, StarCoder's heads share one key. GPT-NeoX (Pythia): attention and feed-forward side by
side, each behind a norm of its own; Phi 1 and 2: both behind the same one. BLOOM and GPT-NeoX store queries, keys and
values head by head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from quantizer.architectures import metadata_rows as rows
from quantizer.architectures import shapes
from quantizer.architectures.architecture import Architecture, Layout, RequiredTensors, Settings, TensorNames
from quantizer.checkpoint.config import Config
from quantizer.convert import derived_tensors as derive
from quantizer.convert.source_model import FileTensor

_FEED_FORWARD: shapes.Dimensions = {
    "ffn_up.weight": ("n_embd", "n_ff_wide"),
    "ffn_down.weight": ("n_ff_wide", "n_embd"),
}
_WEIGHTS: shapes.Dimensions = {**shapes.PRE_NORMS, **shapes.FUSED_ATTENTION, **_FEED_FORWARD}
_LEARNED_POSITIONS: shapes.Dimensions = {"position_embd.weight": ("n_embd", "n_positions")}


# llama.cpp computes the approximation with tanh, also for the exact function, which is at most 5e-4 from it
_GELUS = ("gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu")


def _gelu(key: str) -> Callable[[Config], Any]:
    return lambda config: config.values.get(key) if config.values.get(key) in _GELUS else _GELUS[0]


_UNROTATED = (
    *rows.without(rows.DECODER, "rope.", "feed_forward_length"),
    rows.u32("feed_forward_length", shapes.DIMENSIONS["n_ff_wide"]),
    *rows.LAYER_NORM,
)
_ROTATED = (*rows.without(rows.DECODER, "rope.scaling."), *(rows.LAYER_NORM + rows.UNSCALED))
_GPT_NAMES = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
}
_GPT_DEFAULTS = {"tie_word_embeddings": True, "layer_norm_eps": 1e-5, "max_position_embeddings": 1024}

_GPT_2 = Architecture(
    hf_classes=("GPT2LMHeadModel",),
    gguf_name="gpt2",
    hyperparameters=_UNROTATED,
    tensors=RequiredTensors(
        model=lambda config: {**shapes.decoder_with_bias(config), **_LEARNED_POSITIONS},
        layer={**_WEIGHTS, **shapes.biases(_WEIGHTS)},
    ),
    names=TensorNames(ignored=(".attn.bias", ".attn.masked_bias"), prefix="transformer."),
    layout=Layout(
        splits={
            ending: {ending: derive.transposed_tensor}
            for ending in (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")
        }
    ),
    settings=Settings(
        aliases=_GPT_NAMES,
        defaults=_GPT_DEFAULTS,
        assumed={
            "activation_function": _gelu("activation_function"),
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False,
        },
    ),
)

_STARCODER = replace(
    _GPT_2,
    hf_classes=("GPTBigCodeForCausalLM",),
    gguf_name="starcoder",
    layout=replace(_GPT_2.layout, splits={}),
    settings=replace(
        _GPT_2.settings,
        defaults={**_GPT_DEFAULTS, "num_key_value_heads": 1},
        assumed={
            "activation_function": _gelu("activation_function"),
            "multi_query": True,
            "num_key_value_heads": 1,
            "scale_attn_weights": True,
            "add_cross_attention": False,
        },
    ),
)

_NEOX = Architecture(
    hf_classes=("GPTNeoXForCausalLM",),
    gguf_name="gptneox",
    hyperparameters=(
        *_ROTATED,
        rows.u32("rope.dimension_count", rows.partly_rotated(0.25)),
        rows.boolean("use_parallel_residual", lambda config: config.flag("use_parallel_residual")),
    ),
    tensors=RequiredTensors(
        model=shapes.decoder_with_bias, layer={**_WEIGHTS, **shapes.biases(_WEIGHTS)}, needs_output=True
    ),
    layout=Layout(row_orders={"ATTN_QKV": derive.ungrouped}),
    settings=Settings(
        aliases={"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"},
        defaults={"layer_norm_eps": 1e-5, "use_parallel_residual": True},
        assumed={
            "hidden_act": _gelu("hidden_act"),
            "attention_bias": True,
            # keys are not shared
            "num_key_value_heads": rows.integer("num_attention_heads"),
        },
    ),
)

_PHI_WEIGHTS: shapes.Dimensions = {"attn_norm.weight": ("n_embd",), **shapes.ATTENTION, **_FEED_FORWARD}
_PHI_2 = Architecture(
    hf_classes=("PhiForCausalLM",),
    gguf_name="phi2",
    hyperparameters=(*_ROTATED, rows.u32("rope.dimension_count", rows.partly_rotated(0.5))),
    tensors=RequiredTensors(
        model=lambda config: {**shapes.decoder_with_bias(config), "output.bias": ("n_vocab",)},
        layer={**_PHI_WEIGHTS, **shapes.biases(_PHI_WEIGHTS)},
        needs_output=True,
    ),
    settings=Settings(
        defaults={"layer_norm_eps": 1e-5},
        assumed={"hidden_act": _gelu("hidden_act"), "qk_layernorm": False},
    ),
)

_BLOOM = Architecture(
    hf_classes=("BloomForCausalLM", "BloomModel"),
    gguf_name="bloom",
    hyperparameters=_UNROTATED,
    tensors=RequiredTensors(
        model=lambda config: {
            **shapes.decoder_with_bias(config),
            "token_embd_norm.weight": ("n_embd",),
            "token_embd_norm.bias": ("n_embd",),
        },
        layer={**_WEIGHTS, **shapes.biases(_WEIGHTS)},
    ),
    names=TensorNames(prefix="transformer."),
    layout=Layout(row_orders={"ATTN_QKV": derive.ungrouped}),
    settings=Settings(
        aliases={
            "n_embed": "hidden_size",
            "n_head": "num_attention_heads",
            "n_layer": "num_hidden_layers",
            "seq_length": "max_position_embeddings",
            "layer_norm_epsilon": "layer_norm_eps",
        },
        # all of them were trained on 2,048 tokens (source: the BLOOM paper), which not every config says
        defaults={"tie_word_embeddings": True, "layer_norm_eps": 1e-5, "max_position_embeddings": 2048},
        assumed={
            "apply_residual_connection_post_layernorm": False,
            "num_key_value_heads": rows.integer("num_attention_heads"),
        },
    ),
)

_MPT = Architecture(
    hf_classes=("MptForCausalLM", "MPTForCausalLM"),
    gguf_name="mpt",
    hyperparameters=(
        *_UNROTATED,
        rows.f32("attention.clamp_kqv", rows.number("clip_qkv")),
        rows.f32("attention.max_alibi_bias", rows.number("alibi_bias_max")),
    ),
    tensors=RequiredTensors(layer=_WEIGHTS),
    settings=Settings(
        sections=("attn_config",),
        aliases={
            "d_model": "hidden_size",
            "n_heads": "num_attention_heads",
            "n_layers": "num_hidden_layers",
            "max_seq_len": "max_position_embeddings",
            "layer_norm_epsilon": "layer_norm_eps",
        },
        defaults={"tie_word_embeddings": True, "layer_norm_eps": 1e-5, "alibi_bias_max": 8},
        assumed={
            "alibi": True,
            "attn_type": "multihead_attention",
            "expansion_ratio": 4,
            "no_bias": True,
            **dict.fromkeys(("qk_ln", "prefix_lm", "attn_uses_sequence_id"), False),
            **dict.fromkeys(("softmax_scale", "logit_scale"), None),
            "num_key_value_heads": rows.integer("num_attention_heads"),
        },
    ),
)


def _expert_stack(tensor: FileTensor, name: str, config: Config) -> FileTensor:
    """Return rows of all experts, one expert after another, as a matrix of each."""
    n_experts = shapes.DIMENSIONS["n_expert"](config)
    n_columns, n_rows = tensor.shape[0], tensor.shape[-1]
    return replace(tensor, name=name, shape=(n_columns, n_rows // max(1, n_experts), n_experts))


def _transposed_experts(tensor: FileTensor, name: str, config: Config) -> derive.StackedTensor:
    stack = shapes.matrices(_expert_stack(tensor, tensor.name, config))
    return derive.StackedTensor(name, tuple(derive.TransposedTensor(matrix, name) for matrix in stack))


_DBRX = Architecture(
    hf_classes=("DbrxForCausalLM",),
    gguf_name="dbrx",
    hyperparameters=(
        *(_ROTATED + rows.EXPERTS),
        rows.f32("attention.clamp_kqv", lambda config: config.optional_number("clip_qkv") or 0.0),
    ),
    tensors=RequiredTensors(
        model=shapes.decoder,
        layer={
            "attn_norm.weight": ("n_embd",),
            "attn_output_norm.weight": ("n_embd",),
            **shapes.FUSED_ATTENTION,
            **shapes.EXPERT_FEED_FORWARD,
        },
    ),
    layout=Layout(
        splits={
            ".experts.mlp.w1": {".experts.mlp.w1.weight": _expert_stack},
            ".experts.mlp.v1": {".experts.mlp.v1.weight": _expert_stack},
            ".experts.mlp.w2": {".experts.mlp.w2.weight": _transposed_experts},
        }
    ),
    settings=Settings(
        sections=("attn_config", "ffn_config"),
        aliases={
            "d_model": "hidden_size",
            "n_heads": "num_attention_heads",
            "n_layers": "num_hidden_layers",
            "max_seq_len": "max_position_embeddings",
            "kv_n_heads": "num_key_value_heads",
            "ffn_hidden_size": "intermediate_size",
            "moe_num_experts": "num_local_experts",
            "moe_top_k": "num_experts_per_tok",
        },
        defaults={"layer_norm_eps": 1e-5},
        assumed={"ffn_act_fn": {"name": "silu"}, "moe_normalize_expert_weights": 1, "tie_word_embeddings": False},
    ),
)

CLASSIC = (_GPT_2, _STARCODER, _NEOX, _PHI_2, _BLOOM, _MPT, _DBRX)
