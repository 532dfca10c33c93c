"""HunYuan, dense and with experts: norms of single heads after their rotation, whose base a fixed factor stretches.

Every layer with experts has a shared one of the same width. Hy 3, which gguf lacks: dense layers first, norms before
the rotation, experts chosen by biased sigmoids.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from quantizer.architectures.architecture import Architecture, Hyperparameter
from quantizer.architectures.families.windowed_experts import leading_dense, n_dense
from quantizer.architectures.metadata_rows import (
    DECODER,
    EXPERTS,
    RMS_NORM,
    integer,
    kind_of,
    rope_base,
    rope_of,
)
from quantizer.architectures.shapes import (
    ATTENTION,
    EXPERT_FEED_FORWARD,
    FUSED_EXPERTS,
    GATED_FEED_FORWARD,
    HEAD_NORMS,
    NUMBERED_EXPERTS,
    PRE_NORMS,
    Dimensions,
    head_size,
)
from quantizer.checkpoint.config import Config
from quantizer.checkpoint.errors import CheckpointError
from quantizer.convert.derived_tensors import whole_tensor

_MAX_ALPHA = 1e6


def _stretched_base(config: Config) -> float:
    """Return the base of the frequencies, multiplied by a power of `alpha` as transformers does."""
    alpha = rope_of(config).optional_number("alpha") if kind_of(config) == "dynamic" else None
    if alpha is None:
        return rope_base(config)
    size = head_size(config)
    if size <= 2 or not 1 <= alpha <= _MAX_ALPHA:
        raise CheckpointError(f"config.json stretches its rotations by {alpha}.", "Check rope_parameters.")
    return rope_base(config) * math.pow(alpha, size / (size - 2))


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
        raise CheckpointError("config.json has layers with other numbers of experts.", "Choose another model.")
    return Config({"moe_topk": of_layers[0]}).integer("moe_topk")


_ROWS = (
    *(row for row in DECODER if row.key != "rope.freq_base"),
    Hyperparameter("rope.freq_base", "f32", _stretched_base),
    *RMS_NORM,
)
_LAYER = {**PRE_NORMS, **ATTENTION, **HEAD_NORMS}
_ASSUMED: dict[str, Callable[[Config], Any]] = {
    "hidden_act": lambda _config: "silu",
    "attention_bias": lambda _config: False,
    "mlp_bias": lambda _config: False,
    "use_qk_norm": lambda _config: True,
    "use_cla": lambda _config: False,
}
_FEED_FORWARD_LENGTH = integer("intermediate_size")

_HY_3_N_DENSE = n_dense(1)


def _hy_3_layer(config: Config, i: int) -> Dimensions:
    if i < _HY_3_N_DENSE(config):
        return {**_LAYER, **GATED_FEED_FORWARD}
    width = _hy_3_shared_width(config)
    return {
        **_LAYER,
        **EXPERT_FEED_FORWARD,
        "exp_probs_b": ("n_expert",),  # without an ending here
        "ffn_gate_shexp.weight": ("n_embd", width),
        "ffn_up_shexp.weight": ("n_embd", width),
        "ffn_down_shexp.weight": (width, "n_embd"),
    }


def _hy_3_shared_width(config: Config) -> int:
    return config.integer("num_shared_experts") * config.integer("moe_intermediate_size")


_HY_3 = Architecture(
    hf_classes=("HYV3ForCausalLM",),
    gguf_name="hy_v3",
    names_of="dots1",
    hyperparameters=(
        *(DECODER + RMS_NORM + EXPERTS),
        Hyperparameter("expert_feed_forward_length", "u32", integer("moe_intermediate_size")),
        Hyperparameter("expert_shared_feed_forward_length", "u32", _hy_3_shared_width),
        Hyperparameter("expert_gating_func", "u32", lambda _config: 2),  # sigmoid
        Hyperparameter("expert_weights_norm", "bool", lambda _config: True),
        Hyperparameter("expert_weights_scale", "f32", lambda config: config.number("router_scaling_factor")),
    ),
    layer_tensors=_hy_3_layer,
    stacks=NUMBERED_EXPERTS,
    splits={".e_score_correction_bias": {".expert_bias": whole_tensor}, **FUSED_EXPERTS},
    leaves_later_layers=True,
    defaults={"rope_theta": 11_158_840.0, "router_scaling_factor": 2.826, "num_shared_experts": 1, "head_dim": 128},
    assumed={
        "hidden_act": lambda _config: "silu",
        "attention_bias": lambda _config: False,
        "mlp_bias": lambda _config: False,
        "route_norm": lambda _config: True,
        "first_k_dense_replace": _HY_3_N_DENSE,
        "mlp_layer_types": leading_dense,
    },
)

HUNYUAN = (
    _HY_3,
    Architecture(
        hf_classes=("HunYuanDenseV1ForCausalLM",),
        gguf_name="hunyuan-dense",
        hyperparameters=_ROWS,
        layer_tensors={**_LAYER, **GATED_FEED_FORWARD},
        assumed=_ASSUMED,
    ),
    Architecture(
        hf_classes=("HunYuanMoEV1ForCausalLM",),
        gguf_name="hunyuan-moe",
        hyperparameters=(
            *_ROWS,
            EXPERTS[0],
            Hyperparameter("expert_used_count", "u32", _experts_per_token),
            Hyperparameter("expert_feed_forward_length", "u32", _FEED_FORWARD_LENGTH),
            Hyperparameter("expert_shared_count", "u32", lambda _config: 1),
            Hyperparameter("expert_shared_feed_forward_length", "u32", _FEED_FORWARD_LENGTH),
        ),
        layer_tensors={
            **_LAYER,
            "ffn_gate_inp.weight": ("n_embd", "n_expert"),
            **{
                name.replace(".weight", f"_{kind}.weight"): (*extents, *more)
                for kind, more in (("exps", ("n_expert",)), ("shexp", ()))
                for name, extents in GATED_FEED_FORWARD.items()
            },
        },
        stacks=NUMBERED_EXPERTS,
        splits=FUSED_EXPERTS,
        assumed={
            **_ASSUMED,
            "moe_intermediate_size": _as_everywhere(
                "moe_intermediate_size", lambda config: config.integer("intermediate_size")
            ),
            "num_shared_expert": _as_everywhere("num_shared_expert", lambda _config: 1),
            "norm_topk_prob": lambda _config: True,
        },
    ),
)
