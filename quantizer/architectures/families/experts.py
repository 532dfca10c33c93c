"""Decoders with experts, one of a kind each.

MiniMax M2: norms of whole queries and keys, a part of each head rotated, experts chosen by biased sigmoids. Llama 4:
rotated by neighbours, chunked attention but in every fourth layer, which does without rotation; experts stored with
their outputs as columns. OLMoE: norms of whole queries and keys. Dots 1: dense layers first, as DeepSeek's. AFMoE
(Trinity): gated attention, windowed and rotated but in every fourth layer, four norms per layer. MiMo V2: windowed
layers have sinks and twice the heads of keys, whose values are narrower and scaled. GPT-OSS: attention with sinks,
every other layer windowed, and experts that lie interleaved in one tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from quantizer.architectures import metadata_rows as rows
from quantizer.architectures import shapes
from quantizer.architectures.architecture import Architecture, Layout, RequiredTensors, Settings, TensorNames, Value
from quantizer.checkpoint.config import Config
from quantizer.convert.derived_tensors import Cut, TransposedTensor, whole_tensor
from quantizer.convert.source_model import FileTensor, RearrangedTensor, SourceTensor

_SILU: dict[str, Any] = {"hidden_act": "silu"}
_WIDTH_OF_EXPERTS = rows.u32("expert_feed_forward_length", "moe_intermediate_size", "intermediate_size")
_WHOLE_NORMS: shapes.Dimensions = {"attn_q_norm.weight": ("n_query",), "attn_k_norm.weight": ("n_kv",)}


_MINIMAX_M2 = Architecture(
    hf_classes=("MiniMaxM2ForCausalLM",),
    gguf_name="minimax-m2",
    hyperparameters=(
        *(rows.DECODER + rows.RMS_NORM + rows.VOCABULARY + rows.EXPERTS),
        _WIDTH_OF_EXPERTS,
        rows.BY_SIGMOID,
        rows.u32(
            "rope.dimension_count",
            lambda config: config.optional_integer("rotary_dim") or rows.partly_rotated(1.0)(config),
        ),
    ),
    tensors=RequiredTensors(
        layer={**shapes.NORMED_ATTENTION, **_WHOLE_NORMS, **shapes.BIASED_EXPERTS}, needs_output=True
    ),
    names=TensorNames(leaves_later_layers=True),
    layout=Layout(stacks=shapes.NUMBERED_EXPERTS, splits={**shapes.CHOICE_CORRECTION, **shapes.FUSED_EXPERTS}),
    settings=Settings(
        defaults={"rope_theta": 5e6},
        assumed={**_SILU, "scoring_func": "sigmoid", "use_qk_norm": True, "qk_norm_type": "per_layer"},
    ),
)


_N_EXPERTS_WITHOUT_HEAD_NORMS = 128  # llama.cpp tells Maverick from Scout by it
_DENSE_EVERY = 4
_CHUNK = 8192


def _has_experts(config: Config, i: int) -> bool:
    return (i + 1) % max(1, config.integer("interleave_moe_layer_step")) == 0


def _llama_4_layer(config: Config, i: int) -> shapes.Dimensions:
    if not _has_experts(config, i):
        return {**shapes.NORMED_ATTENTION, **shapes.feed_forward(config.integer("intermediate_size_mlp"))}
    shared = shapes.feed_forward(config.integer("intermediate_size"), "_shexp")
    return {**shapes.NORMED_ATTENTION, **shapes.EXPERT_FEED_FORWARD, **shared}


def _half(first: bool) -> Cut:
    # of experts whose outputs are columns, the gates or the ups
    def half(matrix: FileTensor, name: str, _config: Config) -> RearrangedTensor:
        n_rows = matrix.shape[0] // 2
        order = np.arange(n_rows) if first else np.arange(n_rows, 2 * n_rows)
        return RearrangedTensor(TransposedTensor(matrix, name), name, (matrix.shape[1], n_rows), order)

    return shapes.each_matrix(half)


_LLAMA_4 = Architecture(
    hf_classes=("Llama4ForCausalLM", "Llama4ForConditionalGeneration"),
    gguf_name="llama4",
    hyperparameters=(
        *rows.without(rows.DIVIDED_DECODER, "feed_forward_length"),
        *(rows.RMS_NORM + rows.VOCABULARY + rows.EXPERTS),
        rows.u32("feed_forward_length", "intermediate_size_mlp"),
        rows.u32("rope.dimension_count", rows.partly_rotated(1.0)),
        rows.u32("interleave_moe_layer_step", "interleave_moe_layer_step"),
        rows.u32("expert_feed_forward_length", "intermediate_size"),
    ),
    tensors=RequiredTensors(layer=_llama_4_layer, generate=rows.frequency_divisors),
    names=TensorNames(skipped_modules=("vision_model.", "multi_modal_projector.")),
    layout=Layout(
        splits={
            ".experts.gate_up_proj": {
                ".experts.gate_proj.weight": _half(first=True),
                ".experts.up_proj.weight": _half(first=False),
            },
            ".experts.down_proj": {
                ".experts.down_proj.weight": shapes.each_matrix(lambda matrix, name, _: TransposedTensor(matrix, name))
            },
        }
    ),
    settings=Settings(
        defaults={"interleave_moe_layer_step": 1, "rope_theta": 5e5, "head_dim": 128},
        assumed={
            **_SILU,
            "attention_bias": False,
            "attention_chunk_size": _CHUNK,
            "floor_scale": _CHUNK,
            "attn_scale": 0.1,
            # published with numbers, too
            "attn_temperature_tuning": lambda config: config.values.get("attn_temperature_tuning") or True,
            "use_qk_norm": lambda config: config.integer("num_local_experts") != _N_EXPERTS_WITHOUT_HEAD_NORMS,
            "no_rope_layer_interval": _DENSE_EVERY,
            # an empty list means the same to transformers
            "no_rope_layers": lambda config: (
                []
                if config.values.get("no_rope_layers") == []
                else [int((i + 1) % _DENSE_EVERY != 0) for i in range(config.integer("num_hidden_layers"))]
            ),
            "layer_types": rows.each_layer(
                lambda _config, i: "chunked_attention" if (i + 1) % _DENSE_EVERY else "full_attention"
            ),
            "moe_layers": lambda config: [
                i for i in range(config.integer("num_hidden_layers")) if _has_experts(config, i)
            ],
        },
    ),
)


_OLMOE = Architecture(
    hf_classes=("OlmoeForCausalLM",),
    gguf_name="olmoe",
    hyperparameters=rows.DECODER + rows.RMS_NORM + rows.EXPERTS,
    tensors=RequiredTensors(
        layer={**shapes.NORMED_ATTENTION, **_WHOLE_NORMS, **shapes.EXPERT_FEED_FORWARD}, needs_output=True
    ),
    layout=Layout(stacks=shapes.NUMBERED_EXPERTS, splits=shapes.FUSED_EXPERTS),
    settings=Settings(
        assumed={
            **_SILU,
            "attention_bias": False,
            "clip_qkv": None,
            "norm_topk_prob": False,
            "num_key_value_heads": rows.integer("num_attention_heads"),
            "head_dim": shapes.even_head_size,
        }
    ),
)


def _has_groups(config: Config) -> bool:
    return (config.optional_integer("n_group") or 1) > 1


def _dense_first(setting: str, attention: shapes.Dimensions) -> Callable[[Config, int], shapes.Dimensions]:
    """Return what a layer has where the first ones, as many as `setting` says, do without experts."""

    def layer(config: Config, i: int) -> shapes.Dimensions:
        if i < config.integer(setting):
            return {**attention, **shapes.GATED_FEED_FORWARD}
        shared = shapes.SHARED_EXPERTS if config.integer("n_shared_experts") else {}
        return {**attention, **shapes.BIASED_EXPERTS, **shared}

    return layer


_ROUTED_ROWS = (
    *(rows.DECODER + rows.RMS_NORM + rows.VOCABULARY + rows.EXPERTS),
    _WIDTH_OF_EXPERTS,
    rows.BY_SIGMOID,
    rows.u32("expert_shared_count", "n_shared_experts"),
)

_DOTS_1 = Architecture(
    hf_classes=("Dots1ForCausalLM",),
    gguf_name="dots1",
    hyperparameters=(
        *_ROUTED_ROWS,
        rows.u32("leading_dense_block_count", "first_k_dense_replace"),
        rows.flag("expert_weights_norm", "norm_topk_prob"),
        rows.f32("expert_weights_scale", rows.number("routed_scaling_factor")),
        *rows.where(_has_groups, rows.GROUPS),
    ),
    tensors=RequiredTensors(
        layer=_dense_first("first_k_dense_replace", {**shapes.NORMED_ATTENTION, **shapes.HEAD_NORMS}),
        needs_output=True,
    ),
    layout=Layout(stacks=shapes.NUMBERED_EXPERTS, splits={**shapes.CHOICE_CORRECTION, **shapes.FUSED_EXPERTS}),
    settings=Settings(
        defaults={"first_k_dense_replace": 0, "max_window_layers": 62},
        assumed={
            **_SILU,
            "attention_bias": False,
            "scoring_func": "sigmoid",
            "num_key_value_heads": rows.integer("num_attention_heads"),
            # windows would begin behind this layer
            "max_window_layers": lambda config: max(
                config.integer("max_window_layers"), config.integer("num_hidden_layers")
            ),
            "layer_types": lambda config: ["full_attention"] * config.integer("num_hidden_layers"),
        },
    ),
)

_AFMOE = Architecture(
    hf_classes=("AfmoeForCausalLM",),
    gguf_name="afmoe",
    hyperparameters=(
        *(_ROUTED_ROWS + rows.WINDOW),
        rows.u32("leading_dense_block_count", "num_dense_layers"),
        rows.boolean("expert_weights_norm", True),
        rows.f32("expert_weights_scale", rows.number("route_scale")),
    ),
    tensors=RequiredTensors(
        layer=_dense_first(
            "num_dense_layers",
            {
                **shapes.PRE_NORMS,
                **shapes.POST_NORMS,
                **shapes.ATTENTION,
                **shapes.HEAD_NORMS,
                "attn_gate.weight": ("n_embd", "n_query"),
            },
        )
    ),
    layout=Layout(
        stacks=shapes.NUMBERED_EXPERTS,
        splits={".expert_bias": {".expert_bias.bias": whole_tensor}, **shapes.FUSED_EXPERTS},
    ),
    settings=Settings(
        aliases={"num_shared_experts": "n_shared_experts"},
        defaults={"mup_enabled": False, "n_shared_experts": 2, "num_dense_layers": 1, "head_dim": 128},
        assumed={
            **_SILU,
            "attention_bias": False,
            "mup_enabled": True,
            "route_norm": True,
            "score_func": "sigmoid",
            "n_group": 1,
            "global_attn_every_n_layers": _DENSE_EVERY,
            "layer_types": rows.windows_but_every(_DENSE_EVERY),
        },
    ),
)


def _has_window(config: Config, i: int) -> bool:
    """Return whether layer `i` has a window, by the list of transformers, the published one, or the class's default."""
    kinds = config.values.get("layer_types", config.values.get("hybrid_layer_pattern"))
    if not isinstance(kinds, list) or i >= len(kinds):
        return i > 0 and (i + 1) % _MIMO_FULL_EVERY != 0
    return kinds[i] in ("sliding_attention", 1)


def _n_mimo_kv_heads(config: Config, i: int) -> int:
    return config.integer("num_key_value_heads") * (2 if _has_window(config, i) else 1)


def _mimo_layer(config: Config, i: int) -> shapes.Dimensions:
    n_embd, n_value = config.integer("hidden_size"), config.integer("v_head_dim")
    n_heads, n_kv_heads = config.integer("num_attention_heads"), _n_mimo_kv_heads(config, i)
    kinds = config.values.get("mlp_layer_types", config.values.get("moe_layer_freq"))
    is_dense = kinds[i] in ("dense", 0) if isinstance(kinds, list) and i < len(kinds) else i == 0
    return {
        **shapes.PRE_NORMS,
        "attn_q.weight": (n_embd, "n_query"),
        "attn_k.weight": (n_embd, n_kv_heads * shapes.head_size(config)),
        "attn_v.weight": (n_embd, n_kv_heads * n_value),
        "attn_output.weight": (n_heads * n_value, n_embd),
        **({"attn_sinks.weight": (n_heads,)} if _has_window(config, i) else {}),
        **(shapes.GATED_FEED_FORWARD if is_dense else shapes.BIASED_EXPERTS),
    }


def _mimo_window(config: Config) -> Value:
    before = config.optional_integer("sliding_window_size")  # leaves the token itself out
    return config.integer("sliding_window") if before is None else before + 1


_MIMO_FULL_EVERY = 6
_SINKS: dict[str, Cut] = {".self_attn.attention_sink_bias.weight": whole_tensor}

_MIMO_2 = Architecture(
    hf_classes=("MiMoV2FlashForCausalLM",),
    gguf_name="mimo2",
    hyperparameters=(
        *rows.without(rows.DECODER, "attention.head_count_kv", "attention.value_length"),
        *(rows.RMS_NORM + rows.VOCABULARY + rows.EXPERTS),
        _WIDTH_OF_EXPERTS,
        rows.BY_SIGMOID,
        *rows.WINDOW_ROPE,
        rows.u32_list("attention.head_count_kv", rows.each_layer(_n_mimo_kv_heads)),
        rows.u32("attention.value_length", "v_head_dim"),
        rows.f32("attention.value_scale", "attention_value_scale"),
        rows.u32("attention.sliding_window", _mimo_window),
        rows.bool_list("attention.sliding_window_pattern", rows.each_layer(_has_window)),
        rows.u32("rope.dimension_count", rows.partly_rotated(0.334)),
        *rows.where(_has_groups, rows.GROUPS),
    ),
    tensors=RequiredTensors(layer=_mimo_layer, needs_output=True),
    names=TensorNames(unused=("model.mtp.",)),
    layout=Layout(
        stacks=shapes.NUMBERED_EXPERTS,
        splits={
            **shapes.CHOICE_CORRECTION,
            **shapes.FUSED_EXPERTS,
            ".self_attn.attention_sink_bias": _SINKS,
            ".self_attn.sinks": _SINKS,
        },
    ),
    settings=Settings(
        aliases={"layernorm_epsilon": "rms_norm_eps", "swa_rope_theta": "rope_local_base_freq"},
        defaults={"rope_theta": 5e6, "rope_local_base_freq": 1e4, "head_dim": 192, "v_head_dim": 128},
        assumed={
            **_SILU,
            "attention_bias": False,
            "add_full_attention_sink_bias": False,
            "add_swa_attention_sink_bias": True,
            "swa_num_key_value_heads": lambda config: 2 * config.integer("num_key_value_heads"),
            "swa_num_attention_heads": rows.integer("num_attention_heads"),
            "swa_head_dim": rows.integer("head_dim"),
            "swa_v_head_dim": rows.integer("v_head_dim"),
            "scoring_func": "sigmoid",
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.0,
        },
    ),
)

SINGLE_EXPERTS = (_MINIMAX_M2, _LLAMA_4, _OLMOE, _DOTS_1, _AFMOE, _MIMO_2)


_GATES, _UPS = 0, 1  # the first row of each; from there every other row

_GPT_OSS_WEIGHTS: shapes.Dimensions = {**shapes.ATTENTION, **shapes.EXPERT_FEED_FORWARD}


def _outputs_as_rows(matrix: FileTensor) -> SourceTensor:
    # MXFP4 is stored so, plain weights are transposed
    return matrix if matrix.stored.name == "MXFP4" else TransposedTensor(matrix, matrix.name)


def _every_other_row(first: int) -> Cut:
    def half(matrix: FileTensor, name: str, _config: Config) -> RearrangedTensor:
        turned = _outputs_as_rows(matrix)
        n_columns, n_rows = turned.shape
        order = np.arange(first, n_rows, 2)
        return RearrangedTensor(turned, name, (n_columns, len(order)), order)

    return shapes.each_matrix(half)


def _every_other_number(first: int) -> Cut:
    def cut(tensor: FileTensor, name: str, _config: Config) -> RearrangedTensor:
        n_numbers = math.prod(tensor.shape)
        chosen = np.arange(n_numbers).reshape(-1, tensor.shape[0])[:, first::2]
        numbers = replace(tensor, shape=(1, n_numbers))
        return RearrangedTensor(numbers, name, (chosen.shape[1], *tensor.shape[1:]), chosen.reshape(-1))

    return cut


def _ramp(config: Config) -> tuple[str, ...]:
    if not rows.has_fractional_ramp(config):
        return ()
    return ("The model blends its rotations over a range with fractions; llama.cpp rounds it to whole numbers.",)


GPT_OSS = Architecture(
    hf_classes=("GptOssForCausalLM",),
    gguf_name="gpt-oss",
    hyperparameters=(
        *(rows.DECODER + rows.RMS_NORM + rows.EXPERTS + rows.WINDOW),
        rows.windows_unless_every(2, setting=""),
        rows.u32("expert_feed_forward_length", "intermediate_size"),
    ),
    tensors=RequiredTensors(
        layer={
            **shapes.NORMS_OF_ATTENTION,
            "attn_sinks.weight": ("n_heads",),
            **_GPT_OSS_WEIGHTS,
            **shapes.biases(_GPT_OSS_WEIGHTS),
        },
        needs_output=True,
        # the ramp is rounded, with a warning
        generate=lambda config: [] if rows.has_fractional_ramp(config) else rows.no_divisors(config),
    ),
    layout=Layout(
        splits={
            ".sinks": {".sinks.weight": whole_tensor},
            ".gate_up_proj": {".gate_proj.weight": _every_other_row(_GATES), ".up_proj.weight": _every_other_row(_UPS)},
            ".gate_up_proj_bias": {
                ".gate_proj.bias": _every_other_number(_GATES),
                ".up_proj.bias": _every_other_number(_UPS),
            },
            ".down_proj": {".down_proj.weight": shapes.each_matrix(lambda matrix, *_: _outputs_as_rows(matrix))},
            ".down_proj_bias": {".down_proj.bias": whole_tensor},
        }
    ),
    settings=Settings(
        assumed={
            "attention_bias": True,
            "hidden_act": "silu",
            "swiglu_alpha": 1.702,
            "swiglu_limit": 7.0,
        }
    ),
    approximations=_ramp,
)
