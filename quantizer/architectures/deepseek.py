"""DeepSeek V2 Lite and V3: keys and values compressed to one latent head, dense layers before those of experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from quantizer.architectures.architecture import Architecture, Dimensions, Hyperparameter, Value
from quantizer.architectures.experts import FUSED_EXPERTS, NUMBERED_EXPERTS
from quantizer.architectures.rope import ROPE, rope_of
from quantizer.architectures.rows import EXPERTS, RMS_NORM, SIZES, VOCABULARY, integer, number
from quantizer.architectures.shapes import EXPERT_FEED_FORWARD, GATED_FEED_FORWARD, PRE_NORMS, decoder
from quantizer.composed import StackedTensor, TransposedTensor, renamed
from quantizer.config import Config
from quantizer.errors import CheckpointError
from quantizer.sources import FileTensor

__all__ = ["DEEPSEEK"]

_GATING = {"softmax": 1, "sigmoid": 2}  # llama.cpp's numbers


def _sum_of(*names: str) -> Callable[[Config], Value]:
    return lambda config: sum(config.integer(name) for name in names)


def _gating(config: Config) -> Value:
    name = config.text("scoring_func") or ""
    if name not in _GATING:
        raise CheckpointError(f"Experts chosen by {name[:32]!r} are not supported.", "Choose another model.")
    return _GATING[name]


def _sharpening(config: Config) -> Value:
    """llama.cpp reads a tenth of what the config says, and takes it times ten."""
    configured = rope_of(config).optional_number("mscale_all_dim")
    return None if configured is None else 0.1 * configured


_ROWS = (
    *SIZES,
    *ROPE,
    *RMS_NORM,
    *VOCABULARY,
    *EXPERTS,
    Hyperparameter("attention.head_count", "u32", integer("num_attention_heads")),
    # to llama.cpp all heads share the latent one
    Hyperparameter("attention.head_count_kv", "u32", lambda _config: 1),
    Hyperparameter("attention.key_length", "u32", _sum_of("kv_lora_rank", "qk_rope_head_dim")),
    Hyperparameter("attention.value_length", "u32", integer("kv_lora_rank")),
    Hyperparameter("attention.key_length_mla", "u32", _sum_of("qk_nope_head_dim", "qk_rope_head_dim")),
    Hyperparameter("attention.value_length_mla", "u32", integer("v_head_dim")),
    Hyperparameter("attention.kv_lora_rank", "u32", integer("kv_lora_rank")),
    Hyperparameter("attention.q_lora_rank", "u32", lambda config: config.optional_integer("q_lora_rank")),
    Hyperparameter("rope.dimension_count", "u32", integer("qk_rope_head_dim")),
    Hyperparameter("rope.scaling.yarn_log_multiplier", "f32", _sharpening),
    Hyperparameter("leading_dense_block_count", "u32", integer("first_k_dense_replace")),
    Hyperparameter("expert_feed_forward_length", "u32", integer("moe_intermediate_size")),
    Hyperparameter("expert_shared_count", "u32", integer("n_shared_experts")),
    Hyperparameter("expert_group_count", "u32", lambda config: config.optional_integer("n_group")),
    Hyperparameter("expert_group_used_count", "u32", lambda config: config.optional_integer("topk_group")),
    Hyperparameter("expert_gating_func", "u32", _gating),
    Hyperparameter("expert_weights_scale", "f32", number("routed_scaling_factor")),
    Hyperparameter("expert_weights_norm", "bool", lambda config: config.flag("norm_topk_prob") or None),
)

_ATTENTION: Dimensions = {
    **PRE_NORMS,
    "attn_kv_a_norm.weight": ("n_kv_rank",),
    "attn_kv_a_mqa.weight": ("n_embd", "n_kv_rank_and_rope"),
    "attn_k_b.weight": ("n_nope", "n_kv_rank", "n_heads"),
    "attn_v_b.weight": ("n_kv_rank", "n_value", "n_heads"),
    "attn_output.weight": ("n_values", "n_embd"),
}
_QUERIES: Dimensions = {"attn_q.weight": ("n_embd", "n_mla_query")}
_COMPRESSED_QUERIES: Dimensions = {
    "attn_q_a.weight": ("n_embd", "n_q_rank"),
    "attn_q_a_norm.weight": ("n_q_rank",),
    "attn_q_b.weight": ("n_q_rank", "n_mla_query"),
}
_EXPERTS: Dimensions = {
    **EXPERT_FEED_FORWARD,
    "ffn_gate_shexp.weight": ("n_embd", "n_ff_shared_experts"),
    "ffn_up_shexp.weight": ("n_embd", "n_ff_shared_experts"),
    "ffn_down_shexp.weight": ("n_ff_shared_experts", "n_embd"),
}


def _heads(tensor: FileTensor, config: Config) -> Iterator[tuple[FileTensor, FileTensor]]:
    """Of each head the rows that make its keys, and those that make its values."""
    n_nope, n_heads = config.integer("qk_nope_head_dim"), config.integer("num_attention_heads")
    n_rows = n_nope + config.integer("v_head_dim")
    if len(tensor.shape) != 2 or tensor.shape[1] != n_heads * n_rows:
        raise CheckpointError(f"{tensor.name} does not split into {n_heads} attention heads.", "Check config.json.")
    for start in range(0, n_heads * n_rows, n_rows):
        yield tensor.rows(start, start + n_nope), tensor.rows(start + n_nope, start + n_rows)


def _keys(tensor: FileTensor, name: str, config: Config) -> StackedTensor:
    return StackedTensor(name, tuple(TransposedTensor(keys) for keys, _ in _heads(tensor, config)))


def _values(tensor: FileTensor, name: str, config: Config) -> StackedTensor:
    return StackedTensor(name, tuple(values for _, values in _heads(tensor, config)))


_V3 = Architecture(
    hf_classes=("DeepseekV3ForCausalLM",),
    gguf_name="deepseek2",
    hyperparameters=_ROWS,
    model_tensors=decoder,
    layer_tensors={**_ATTENTION, **_COMPRESSED_QUERIES, **_EXPERTS},
    leading_tensors={**_ATTENTION, **_COMPRESSED_QUERIES, **GATED_FEED_FORWARD},
    n_leading=lambda config: config.integer("first_k_dense_replace"),
    splits={
        "kv_b_proj.weight": {"k_b_proj.weight": _keys, "v_b_proj.weight": _values},
        "e_score_correction_bias": {"e_score_correction.bias": renamed},
        **FUSED_EXPERTS,
    },
    stacks=NUMBERED_EXPERTS,
    leaves_later_layers=True,
    defaults={"scoring_func": "sigmoid"},
    assumed={
        "hidden_act": lambda _config: "silu",
        "rope_interleave": lambda _config: True,
        "topk_method": lambda _config: "noaux_tc",
        "moe_layer_freq": lambda _config: 1,
    },
)

DEEPSEEK = (
    _V3,
    replace(
        _V3,
        hf_classes=("DeepseekV2ForCausalLM",),
        layer_tensors={**_ATTENTION, **_QUERIES, **_EXPERTS},
        leading_tensors={**_ATTENTION, **_QUERIES, **GATED_FEED_FORWARD},
        defaults={"scoring_func": "softmax"},
        # the Lite, which does not compress its queries; llama.cpp tells it by its 27 layers, and loads no other
        assumed={
            "hidden_act": lambda _config: "silu",
            "topk_method": lambda _config: "greedy",
            "moe_layer_freq": lambda _config: 1,
            "q_lora_rank": lambda _config: None,
        },
    ),
)
