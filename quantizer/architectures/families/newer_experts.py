"""Decoders with experts whose names gguf lacks or that came late: Mellum 2, Cohere 2 with experts, Laguna, HunYuan.

Cohere 2 with experts (North): attention and feed-forward side by side after one norm, rotated only where there is a
window and in the first, dense layers. Laguna: gated attention, whose heads differ in number from layer to layer, and
another share of a head rotated where there is a window. Mellum 2: Qwen 3's experts, whose full layers may stretch their
positions by YaRN. HunYuan, dense and with experts: norms of single heads after their rotation, whose base a fixed
factor stretches; every layer with experts has a shared one of the same width. Hy 3: dense layers first, norms before
the rotation, experts chosen by biased sigmoids.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from quantizer.architectures import metadata_rows as rows
from quantizer.architectures import shapes
from quantizer.architectures.architecture import Architecture, Layout, RequiredTensors, Settings, TensorNames, Value
from quantizer.checkpoint.config import CheckpointError, Config
from quantizer.convert.derived_tensors import whole_tensor

_NAMES_OF = "dots1"  # all but Laguna's gates
_SILU: dict[str, Any] = {"hidden_act": "silu"}


def _listed(config: Config, name: str) -> list[Any]:
    """Return a list with an entry for each layer, empty where there is none. Raises CheckpointError for a short one."""
    values = config.values.get(name) or []
    n_layers = config.integer("num_hidden_layers")
    if not isinstance(values, list) or 0 < len(values) < n_layers:
        raise CheckpointError(f"{name} in config.json is shorter than the number of layers.", "Check config.json.")
    return values[:n_layers]


def n_dense(default: int) -> Callable[[Config], int]:
    """Return a function that counts the layers without experts, `default` where config.json does not."""

    def count(config: Config) -> int:
        if kinds := _listed(config, "mlp_layer_types"):
            return kinds.count("dense")
        stated = config.optional_integer("first_k_dense_replace")
        return min(default if stated is None else stated, config.integer("num_hidden_layers"))

    return count


def leading_dense(config: Config) -> list[str]:
    """Return the kinds of layers, those without experts first: nothing else can be told llama.cpp."""
    kinds = config.values.get("mlp_layer_types") or []
    return sorted(kinds, key=lambda kind: str(kind) != "dense")


def _windows(config: Config) -> list[bool]:
    return [kind == "sliding_attention" for kind in _listed(config, "layer_types")]


_PATTERN = "attention.sliding_window_pattern"
_WINDOW = rows.where(lambda config: any(_windows(config)), (*rows.WINDOW, rows.bool_list(_PATTERN, _windows)))


def _unscaled_windows(config: Config) -> Any:
    """Return the rope settings, those of windows without a scaling, which llama.cpp would leave out."""
    settings = config.section("rope_parameters")
    windowed = settings.section("sliding_attention")
    if not windowed.values:
        return config.values.get("rope_parameters")
    return {**settings.values, "sliding_attention": {**windowed.values, "rope_type": "default"}}


def _same_base(config: Config) -> Any:
    """Return the rope settings with one base of frequencies, which is all that llama.cpp computes Mellum with."""
    settings = _unscaled_windows(config)
    if not isinstance(settings, dict) or "sliding_attention" not in settings:
        return settings
    return {**settings, "sliding_attention": {**settings["sliding_attention"], "rope_theta": rows.rope_base(config)}}


_MELLUM = Architecture(
    hf_classes=("MellumForCausalLM",),
    gguf_name="mellum",
    hyperparameters=(
        *(rows.DECODER + rows.RMS_NORM + rows.EXPERTS + _WINDOW + rows.UNSCALED_WINDOW_ROPE),
        rows.u32("expert_feed_forward_length", "moe_intermediate_size"),
    ),
    tensors=RequiredTensors(layer={**shapes.NORMED_ATTENTION, **shapes.HEAD_NORMS, **shapes.EXPERT_FEED_FORWARD}),
    names=TensorNames(map_of=_NAMES_OF, unused=("mtp.",)),
    layout=Layout(stacks=shapes.NUMBERED_EXPERTS, splits=shapes.FUSED_EXPERTS),
    settings=Settings(
        assumed={
            **_SILU,
            "attention_bias": False,
            "tie_word_embeddings": False,
            "norm_topk_prob": True,
            "mlp_layer_types": lambda config: ["sparse"] * config.integer("num_hidden_layers"),
            "rope_parameters": _same_base,
        }
    ),
)


_COHERE_N_DENSE = n_dense(0)


def _cohere_layer(config: Config, i: int) -> shapes.Dimensions:
    attention: shapes.Dimensions = {"attn_norm.weight": ("n_embd",), **shapes.ATTENTION}
    if i < _COHERE_N_DENSE(config):
        return {**attention, **shapes.feed_forward(config.integer("prefix_dense_intermediate_size"))}
    n_shared = config.optional_integer("num_shared_experts") or 0
    shared = shapes.feed_forward(n_shared * config.integer("intermediate_size"), "_shexp") if n_shared else {}
    return {**attention, **shapes.EXPERT_FEED_FORWARD, **shared}


def _cohere_windows(config: Config) -> list[bool]:
    """Return which layers have a window, without a list as transformers lays them out: dense layers have none, of the
    others every fourth."""
    if listed := _windows(config):
        return listed
    n_dense = config.optional_integer("first_k_dense_replace") or 0
    every = config.optional_integer("sliding_window_pattern") or 4
    return [i >= n_dense and (i - n_dense + 1) % every != 0 for i in range(config.integer("num_hidden_layers"))]


_CHOICE = rows.gating("expert_selection_fn", "softmax")


def _of_shared(factor: Callable[[Config], int]) -> Callable[[Config], Value]:
    return lambda config: (config.optional_integer("num_shared_experts") or 0) * factor(config) or None


_COHERE = Architecture(
    hf_classes=("Cohere2MoeForCausalLM",),
    gguf_name="cohere2moe",
    hyperparameters=(
        *rows.without(rows.DECODER, "feed_forward_length", "rope.scaling."),
        *(rows.VOCABULARY + rows.EXPERTS + rows.WINDOW),
        rows.bool_list(_PATTERN, _cohere_windows),
        rows.u32(
            "feed_forward_length", lambda config: config.integer("prefix_dense_intermediate_size", "intermediate_size")
        ),
        rows.f32("attention.layer_norm_epsilon", "layer_norm_eps"),
        rows.f32("attention.layer_norm_rms_epsilon", lambda config: config.optional_number("rms_norm_eps")),
        rows.u32("rope.dimension_count", shapes.head_size),
        rows.string("rope.scaling.type", rows.no_scaling),
        rows.f32("logit_scale", "logit_scale"),
        rows.u32("leading_dense_block_count", _COHERE_N_DENSE),
        rows.u32("expert_feed_forward_length", "intermediate_size"),
        _CHOICE,
        # the weights of chosen experts add up to one, as a softmax of theirs always does
        rows.boolean(
            "expert_weights_norm",
            lambda config: _CHOICE.read(config) != rows.BY_SIGMOID.value or config.flag("norm_topk_prob") is not False,
        ),
        rows.u32("expert_shared_count", _of_shared(lambda _config: 1)),
        rows.u32("expert_shared_feed_forward_length", _of_shared(lambda config: config.integer("intermediate_size"))),
        *rows.PREDICTION_ROW,
    ),
    tensors=RequiredTensors(layer=_cohere_layer),
    names=TensorNames(map_of=_NAMES_OF, leaves_later_layers=True, n_prediction_layers=1),
    layout=Layout(stacks=shapes.NUMBERED_EXPERTS, splits=shapes.FUSED_EXPERTS),
    settings=Settings(
        defaults={
            "tie_word_embeddings": True,
            "logit_scale": 0.0625,
            "layer_norm_eps": 1e-5,
            "head_dim": 128,
            "sliding_window": 4096,
        },
        assumed={
            **_SILU,
            "attention_bias": False,
            "prefix_dense_sliding_window_pattern": 1,
            "shared_expert_combination_strategy": "average",
            "mlp_layer_types": leading_dense,
        },
    ),
)


_LAGUNA_N_DENSE = n_dense(1)
_PER_HEAD = (True, "per-head")


def _heads(config: Config) -> list[int]:
    n_layers = config.integer("num_hidden_layers")
    listed = config.sizes("num_attention_heads_per_layer")
    heads = list(listed[:n_layers]) if listed else [config.integer("num_attention_heads")] * n_layers
    if len(heads) < n_layers:
        raise CheckpointError("num_attention_heads_per_layer in config.json is too short.", "Check config.json.")
    return heads


def _laguna_layer(config: Config, i: int) -> shapes.Dimensions:
    n_heads = _heads(config)[i]
    n_query = n_heads * shapes.head_size(config)
    attention: shapes.Dimensions = {
        **shapes.NORMED_ATTENTION,
        **shapes.HEAD_NORMS,
        "attn_q.weight": ("n_embd", n_query),
        "attn_output.weight": (n_query, "n_embd"),
        "attn_gate.weight": ("n_embd", n_heads if config.values.get("gating") in _PER_HEAD else n_query),
    }
    if i < _LAGUNA_N_DENSE(config):
        return {**attention, **shapes.GATED_FEED_FORWARD}
    shared = shapes.feed_forward(config.integer("shared_expert_intermediate_size"), "_shexp")
    return {**attention, **shapes.BIASED_EXPERTS, **shared}


def _rotated_in_windows(config: Config) -> Value:
    windowed = config.section("rope_parameters").section("sliding_attention")
    share = windowed.optional_number("partial_rotary_factor")
    return int(shapes.head_size(config) * (1.0 if share is None else share)) if windowed.values else None


_LAGUNA = Architecture(
    hf_classes=("LagunaForCausalLM",),
    gguf_name="laguna",
    hyperparameters=(
        *rows.without(rows.DECODER, "attention.head_count"),
        *(rows.RMS_NORM + rows.VOCABULARY + rows.EXPERTS + _WINDOW + rows.UNSCALED_WINDOW_ROPE),
        rows.u32_list("attention.head_count", _heads),
        rows.u32("rope.dimension_count", rows.partly_rotated(1.0)),
        rows.u32("rope.dimension_count_swa", _rotated_in_windows),
        rows.u32("leading_dense_block_count", _LAGUNA_N_DENSE),
        rows.u32("expert_feed_forward_length", "moe_intermediate_size"),
        rows.u32("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
        rows.BY_SIGMOID,
        rows.boolean("expert_weights_norm", True),
        rows.f32("expert_weights_scale", "moe_routed_scaling_factor"),
    ),
    tensors=RequiredTensors(layer=_laguna_layer),
    names=TensorNames(
        map_of=_NAMES_OF,
        own={
            "model.layers.{bid}.self_attn.g_proj": "blk.{bid}.attn_gate",
            "model.layers.{bid}.mlp.experts.e_score_correction": "blk.{bid}.exp_probs_b",
        },
    ),
    layout=Layout(
        # before those of experts, which it looks like
        splits={"e_score_correction_bias": {"e_score_correction.bias": whole_tensor}, **shapes.FUSED_EXPERTS},
        stacks=shapes.NUMBERED_EXPERTS,
    ),
    settings=Settings(
        defaults={"gating": True, "moe_routed_scaling_factor": 1.0, "head_dim": 128},
        assumed={
            **_SILU,
            "attention_bias": False,
            "gating": lambda config: config.values["gating"] if config.values["gating"] in _PER_HEAD else "per-element",
            "moe_apply_router_weight_on_input": False,
            "moe_router_logit_softcapping": 0.0,
            "mlp_layer_types": leading_dense,
            "rope_parameters": _unscaled_windows,
        },
    ),
)

WINDOWED_EXPERTS = (_MELLUM, _COHERE, _LAGUNA)


_MAX_ALPHA = 1e6


def _stretched_base(config: Config) -> float:
    """Return the base of the frequencies, multiplied by a power of `alpha` as transformers does."""
    alpha = rows.rope_of(config).optional_number("alpha") if rows.kind_of(config) == "dynamic" else None
    if alpha is None:
        return rows.rope_base(config)
    size = shapes.head_size(config)
    if size <= 2 or not 1 <= alpha <= _MAX_ALPHA:
        raise CheckpointError(f"config.json has an invalid rope scaling: alpha = {alpha}.", "Check rope_parameters.")
    return rows.rope_base(config) * math.pow(alpha, size / (size - 2))


def _as_everywhere(name: str, value: Callable[[Config], int]) -> Callable[[Config], Any]:
    """Return what `name` must be: `value`, or a list of it for all layers."""

    def expected(config: Config) -> Any:
        n_layers = config.integer("num_hidden_layers")
        return [value(config)] * n_layers if isinstance(config.values.get(name), list) else value(config)

    return expected


def _experts_per_token(config: Config) -> int:
    """Return the number of experts that answer in each layer. Raises CheckpointError when layers differ."""
    of_layers = config.values.get("moe_topk")
    if not isinstance(of_layers, list):
        return config.integer("moe_topk", "num_experts_per_tok")
    if len(set(map(str, of_layers))) != 1:
        raise CheckpointError(
            "config.json has layers with different numbers of experts, which llama.cpp does not support.",
            "Choose another model.",
        )
    return Config({"moe_topk": of_layers[0]}).integer("moe_topk")


_HUNYUAN_ROWS = (
    *rows.without(rows.DECODER, "rope.freq_base"),
    rows.f32("rope.freq_base", _stretched_base),
    *rows.RMS_NORM,
)
_HUNYUAN_LAYER = {**shapes.NORMED_ATTENTION, **shapes.HEAD_NORMS}
_HUNYUAN_ASSUMED: dict[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "use_qk_norm": True,
    "use_cla": False,
}
_HY_3_N_DENSE = n_dense(1)
_N_CHAINED = 8  # layers that predict, which take turns; the published model has one


def _hy_3_layer(config: Config, i: int) -> shapes.Dimensions:
    if i < _HY_3_N_DENSE(config):
        return {**_HUNYUAN_LAYER, **shapes.GATED_FEED_FORWARD}
    shared = shapes.feed_forward(_hy_3_shared_width(config), "_shexp")
    # the bias is without an ending here
    return {**_HUNYUAN_LAYER, **shapes.EXPERT_FEED_FORWARD, "exp_probs_b": ("n_expert",), **shared}


def _hy_3_shared_width(config: Config) -> int:
    return config.integer("num_shared_experts") * config.integer("moe_intermediate_size")


_HY_3 = Architecture(
    hf_classes=("HYV3ForCausalLM",),
    gguf_name="hy_v3",
    hyperparameters=(
        *(rows.DECODER + rows.RMS_NORM + rows.EXPERTS),
        rows.u32("expert_feed_forward_length", "moe_intermediate_size"),
        rows.u32("expert_shared_feed_forward_length", _hy_3_shared_width),
        rows.BY_SIGMOID,
        rows.boolean("expert_weights_norm", True),
        rows.f32("expert_weights_scale", "router_scaling_factor"),
        *rows.PREDICTION_ROW,
    ),
    tensors=RequiredTensors(layer=_hy_3_layer),
    names=TensorNames(
        map_of="dots1",
        leaves_later_layers=True,
        n_prediction_layers=_N_CHAINED,
        renames={r"^(model\.layers\.\d+)\.final_layernorm\.": r"\1.shared_head.norm."},
    ),
    layout=Layout(
        stacks=shapes.NUMBERED_EXPERTS,
        splits={".e_score_correction_bias": {".expert_bias": whole_tensor}, **shapes.FUSED_EXPERTS},
    ),
    settings=Settings(
        defaults={"rope_theta": 11_158_840.0, "router_scaling_factor": 2.826, "num_shared_experts": 1, "head_dim": 128},
        assumed={
            **_SILU,
            "attention_bias": False,
            "mlp_bias": False,
            "route_norm": True,
            "first_k_dense_replace": _HY_3_N_DENSE,
            "mlp_layer_types": leading_dense,
        },
    ),
)

HUNYUAN = (
    _HY_3,
    Architecture(
        hf_classes=("HunYuanDenseV1ForCausalLM",),
        gguf_name="hunyuan-dense",
        hyperparameters=_HUNYUAN_ROWS,
        tensors=RequiredTensors(layer={**_HUNYUAN_LAYER, **shapes.GATED_FEED_FORWARD}),
        settings=Settings(assumed=_HUNYUAN_ASSUMED),
    ),
    Architecture(
        hf_classes=("HunYuanMoEV1ForCausalLM",),
        gguf_name="hunyuan-moe",
        hyperparameters=(
            *_HUNYUAN_ROWS,
            rows.EXPERTS[0],
            rows.u32("expert_used_count", _experts_per_token),
            rows.u32("expert_feed_forward_length", "intermediate_size"),
            rows.u32("expert_shared_count", 1),
            rows.u32("expert_shared_feed_forward_length", "intermediate_size"),
        ),
        tensors=RequiredTensors(
            layer={
                **_HUNYUAN_LAYER,
                "ffn_gate_inp.weight": ("n_embd", "n_expert"),
                **{
                    name.replace(".weight", f"_{kind}.weight"): (*extents, *more)
                    for kind, more in (("exps", ("n_expert",)), ("shexp", ()))
                    for name, extents in shapes.GATED_FEED_FORWARD.items()
                },
            }
        ),
        layout=Layout(stacks=shapes.NUMBERED_EXPERTS, splits=shapes.FUSED_EXPERTS),
        settings=Settings(
            assumed={
                **_HUNYUAN_ASSUMED,
                "moe_intermediate_size": _as_everywhere(
                    "moe_intermediate_size", lambda config: config.integer("intermediate_size")
                ),
                "num_shared_expert": _as_everywhere("num_shared_expert", lambda _config: 1),
                "norm_topk_prob": True,
            }
        ),
    ),
)
