"""EXAONE 3 and 3.5, Llama's layers under names of their own; EXAONE 4 and K-EXAONE: norms of single heads, and
rotations in layers with a window only, where there are any.

EXAONE 4 normalises after attention and feed-forward. llama.cpp gives windows to its 64 layers alone: the 1.2B has none.
K-EXAONE normalises before, and has experts after its first layers; the layers that predict several tokens stay behind.
"""

from __future__ import annotations

from quantizer.architectures.architecture import Architecture, Hyperparameter, Value
from quantizer.architectures.families.deepseek import EXPERT_CHOICE, SHARED_EXPERTS, dense_before_sparse
from quantizer.architectures.metadata_rows import (
    DECODER,
    EXPERTS,
    RMS_NORM,
    ROTATED,
    VOCABULARY,
    WINDOW,
    WINDOW_PATTERN,
    llama3_factors,
)
from quantizer.architectures.shapes import (
    ATTENTION,
    CHOICE_CORRECTION,
    DIMENSIONS,
    EXPERT_FEED_FORWARD,
    FUSED_EXPERTS,
    GATED_FEED_FORWARD,
    HEAD_NORMS,
    NUMBERED_EXPERTS,
    POST_NORMS,
    PRE_NORMS,
    Dimensions,
)
from quantizer.checkpoint.config import Config

_N_LAYERS_WITH_WINDOWS = 64


def _has_windows(config: Config) -> bool:
    return config.integer("num_hidden_layers") == _N_LAYERS_WITH_WINDOWS


def _window(config: Config) -> Value:
    return config.integer("sliding_window") if _has_windows(config) else None


def _pattern(config: Config) -> Value:
    return WINDOW_PATTERN[0].read(config) if _has_windows(config) else None


def _known_window(config: Config) -> int | None:
    return config.optional_integer("sliding_window") if _has_windows(config) else None


def _known_pattern(config: Config) -> int | str | None:
    """Return one of the two ways to say that every fourth layer attends to everything, where the pattern counts."""
    given = config.values.get("sliding_window_pattern")
    is_unused = "layer_types" in config.values or "sliding_window" not in config.values
    return given if is_unused or given == "LLLG" else 4


_EXAONE = Architecture(
    hf_classes=("Exaone4ForCausalLM",),
    gguf_name="exaone4",
    hyperparameters=(
        *DECODER,
        *RMS_NORM,
        *VOCABULARY,
        Hyperparameter("attention.sliding_window", "u32", _window),
        Hyperparameter("attention.sliding_window_pattern", "bool[]", _pattern),
    ),
    layer_tensors={**POST_NORMS, **ATTENTION, **HEAD_NORMS, **GATED_FEED_FORWARD},
    generate=llama3_factors,
    assumed={
        "hidden_act": lambda _config: "silu",
        "head_dim": lambda config: config.integer("hidden_size") // max(1, config.integer("num_attention_heads")),
        "sliding_window": _known_window,
        "sliding_window_pattern": _known_pattern,
    },
)

_EXPERTS: Dimensions = {**EXPERT_FEED_FORWARD, **SHARED_EXPERTS, "exp_probs_b.bias": ("n_expert",)}


def _layer(config: Config, i: int) -> Dimensions:
    is_dense = i < config.integer("first_k_dense_replace")
    return {**PRE_NORMS, **ATTENTION, **HEAD_NORMS, **(GATED_FEED_FORWARD if is_dense else _EXPERTS)}


_K_EXAONE = Architecture(
    hf_classes=("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"),
    gguf_name="exaone-moe",
    hyperparameters=(
        *DECODER,
        *RMS_NORM,
        *VOCABULARY,
        *WINDOW,
        *WINDOW_PATTERN,
        *EXPERTS,
        *EXPERT_CHOICE,
        Hyperparameter("expert_shared_feed_forward_length", "u32", DIMENSIONS["n_ff_shared_experts"]),
    ),
    layer_tensors=_layer,
    splits={**CHOICE_CORRECTION, **FUSED_EXPERTS},
    stacks=NUMBERED_EXPERTS,
    generate=llama3_factors,
    unused=("mtp.",),
    aliases={"num_shared_experts": "n_shared_experts"},
    defaults={"scoring_func": "sigmoid", "first_k_dense_replace": 1, "norm_topk_prob": True},
    assumed={
        "hidden_act": lambda _config: "silu",
        "scoring_func": lambda _config: "sigmoid",
        "mlp_layer_types": dense_before_sparse,
        "sliding_window_pattern": _known_pattern,
        "tie_word_embeddings": lambda _config: False,
    },
)

_EXAONE_3 = Architecture(
    hf_classes=("ExaoneForCausalLM",),
    gguf_name="exaone",
    hyperparameters=DECODER + RMS_NORM + ROTATED,
    layer_tensors={**PRE_NORMS, **ATTENTION, **GATED_FEED_FORWARD},
    generate=llama3_factors,
    aliases={
        "num_layers": "num_hidden_layers",
        "layer_norm_epsilon": "rms_norm_eps",
        "activation_function": "hidden_act",
    },
    assumed={"hidden_act": lambda _config: "silu", "partial_rotary_factor": lambda _config: 1.0},
)

EXAONE = (_EXAONE, _K_EXAONE, _EXAONE_3)
