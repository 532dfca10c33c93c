"""GLM, ERNIE and EXAONE: families whose larger models choose experts as DeepSeek does, beside shared ones.

GLM 4 of 2024: neighbours rotated in half of each head, gate and up in one matrix (GLM 4 0414 is in `dense`). GLM 4.5
and 4.6: experts chosen by sigmoids with a correction, after dense layers; halves rotated; a layer that predicts one
token further. Solar Open: the same with experts in every layer and whole heads rotated.

ERNIE 4.5: Llama's layers, rotated by neighbours as they are stored; experts chosen by softmax with a correction.

EXAONE 3 and 3.5: Llama's layers under names of their own. EXAONE 4 normalises after attention and feed-forward;
llama.cpp gives windows to its 64 layers alone: the 1.2B has none. K-EXAONE normalises before, and has experts after its
first layers; rotations in layers with a window only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quantizer.architectures import metadata_rows as rows
from quantizer.architectures import shapes
from quantizer.architectures.architecture import Architecture, Layout, RequiredTensors, Settings, TensorNames
from quantizer.architectures.families.deepseek import EXPERT_CHOICE, dense_before_sparse
from quantizer.checkpoint.config import Config
from quantizer.convert.derived_tensors import whole_tensor

_EXPERTS: shapes.Dimensions = {**shapes.BIASED_EXPERTS, **shapes.SHARED_EXPERTS}


def _layer(config: Config, i: int) -> shapes.Dimensions:
    is_dense = i < config.integer("first_k_dense_replace")
    return {
        **shapes.NORMS_OF_ATTENTION,
        **shapes.ATTENTION,
        **shapes.attention_biases(config, by_default=False),
        **(shapes.HEAD_NORMS if config.flag("use_qk_norm") else {}),
        **(shapes.GATED_FEED_FORWARD if is_dense else _EXPERTS),
    }


_SILU: dict[str, Any] = {"hidden_act": "silu"}
_GLM = Architecture(
    hf_classes=("GlmForCausalLM",),
    gguf_name="chatglm",
    hyperparameters=(*rows.DECODER, *rows.RMS_NORM, rows.u32("rope.dimension_count", rows.partly_rotated(0.5))),
    tensors=RequiredTensors(
        layer=lambda config, _i: {
            **shapes.NORMED_ATTENTION,
            **shapes.attention_biases(config, by_default=True),
            **shapes.FUSED_FEED_FORWARD,
        }
    ),
    settings=Settings(assumed={**_SILU, "head_dim": shapes.even_head_size}),
)

_GLM_4_5 = Architecture(
    hf_classes=("Glm4MoeForCausalLM",),
    gguf_name="glm4moe",
    hyperparameters=(
        *(rows.DECODER + rows.RMS_NORM + rows.EXPERTS),
        *EXPERT_CHOICE,
        rows.u32("rope.dimension_count", rows.partly_rotated(0.5)),
        *rows.PREDICTION_ROW,
    ),
    tensors=RequiredTensors(layer=_layer),
    names=TensorNames(leaves_later_layers=True, n_prediction_layers=1),
    layout=Layout(splits={**shapes.CHOICE_CORRECTION, **shapes.FUSED_EXPERTS}, stacks=shapes.NUMBERED_EXPERTS),
    settings=Settings(
        defaults={"scoring_func": "sigmoid", "first_k_dense_replace": 1, "norm_topk_prob": True},
        assumed={**_SILU, "scoring_func": "sigmoid"},
    ),
)

GLM = (
    _GLM,
    _GLM_4_5,
    replace(
        _GLM_4_5,
        hf_classes=("SolarOpenForCausalLM",),
        hyperparameters=(
            *rows.without(rows.DECODER, "feed_forward_length"),
            *(rows.RMS_NORM + rows.EXPERTS),
            *EXPERT_CHOICE,
            rows.u32("rope.dimension_count", rows.partly_rotated(1.0)),
        ),
        names=replace(_GLM_4_5.names, leaves_later_layers=False, n_prediction_layers=0),
        settings=replace(
            _GLM_4_5.settings,
            defaults={"scoring_func": "sigmoid", "first_k_dense_replace": 0, "norm_topk_prob": True, "rope_theta": 1e6},
            assumed={**_GLM_4_5.settings.assumed, "first_k_dense_replace": 0, "use_qk_norm": False},
        ),
    ),
)


_N_LAYERS_WITH_WINDOWS = 64


def _has_windows(config: Config) -> bool:
    return config.integer("num_hidden_layers") == _N_LAYERS_WITH_WINDOWS


def _known_pattern(config: Config) -> int | str | None:
    """Return one of the two ways to say that every fourth layer attends to everything, where the pattern counts."""
    given = config.values.get("sliding_window_pattern")
    is_unused = "layer_types" in config.values or "sliding_window" not in config.values
    return given if is_unused or given == "LLLG" else 4


_EXAONE = Architecture(
    hf_classes=("Exaone4ForCausalLM",),
    gguf_name="exaone4",
    hyperparameters=(
        *(rows.DIVIDED_DECODER + rows.RMS_NORM + rows.VOCABULARY),
        *rows.where(_has_windows, rows.WINDOW + rows.WINDOW_PATTERN),
    ),
    tensors=RequiredTensors(
        layer={**shapes.POST_NORMS, **shapes.ATTENTION, **shapes.HEAD_NORMS, **shapes.GATED_FEED_FORWARD},
        generate=rows.frequency_divisors,
    ),
    settings=Settings(
        assumed={
            "hidden_act": "silu",
            "head_dim": shapes.even_head_size,
            "sliding_window": lambda config: (
                config.optional_integer("sliding_window") if _has_windows(config) else None
            ),
            "sliding_window_pattern": _known_pattern,
        }
    ),
)


_K_EXAONE = Architecture(
    hf_classes=("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"),
    gguf_name="exaone-moe",
    hyperparameters=(
        *(rows.DIVIDED_DECODER + rows.RMS_NORM + rows.VOCABULARY),
        *(rows.WINDOW + rows.WINDOW_PATTERN + rows.EXPERTS),
        *EXPERT_CHOICE,
        rows.u32("expert_shared_feed_forward_length", shapes.DIMENSIONS["n_ff_shared_experts"]),
    ),
    tensors=RequiredTensors(
        layer=lambda config, i: {
            **shapes.NORMED_ATTENTION,
            **shapes.HEAD_NORMS,
            **(shapes.GATED_FEED_FORWARD if i < config.integer("first_k_dense_replace") else _EXPERTS),
        },
        needs_output=True,
        generate=rows.frequency_divisors,
    ),
    names=TensorNames(unused=("mtp.",)),
    layout=Layout(splits={**shapes.CHOICE_CORRECTION, **shapes.FUSED_EXPERTS}, stacks=shapes.NUMBERED_EXPERTS),
    settings=Settings(
        aliases={"num_shared_experts": "n_shared_experts"},
        defaults={"scoring_func": "sigmoid", "first_k_dense_replace": 1, "norm_topk_prob": True},
        assumed={
            "hidden_act": "silu",
            "scoring_func": "sigmoid",
            "mlp_layer_types": dense_before_sparse,
            "sliding_window_pattern": _known_pattern,
        },
    ),
)

_EXAONE_3 = Architecture(
    hf_classes=("ExaoneForCausalLM",),
    gguf_name="exaone",
    hyperparameters=rows.DIVIDED_DECODER + rows.RMS_NORM + rows.ROTATED,
    tensors=RequiredTensors(layer=shapes.LLAMA_LAYER, generate=rows.frequency_divisors),
    settings=Settings(
        aliases={
            "num_layers": "num_hidden_layers",
            "layer_norm_epsilon": "rms_norm_eps",
            "activation_function": "hidden_act",
        },
        assumed={"hidden_act": "silu", "partial_rotary_factor": 1.0},
    ),
)

EXAONE = (_EXAONE, _K_EXAONE, _EXAONE_3)


_ERNIE_DEFAULTS = {"tie_word_embeddings": True, "rope_theta": 5e5}
_ERNIE_ASSUMED = {"hidden_act": "silu", "use_bias": False}


def _ernie_layer(config: Config, i: int) -> shapes.Dimensions:
    if i < config.integer("moe_layer_start_index"):
        return shapes.LLAMA_LAYER
    shared = shapes.SHARED_EXPERTS if config.integer("n_shared_experts") else {}
    return {**shapes.NORMED_ATTENTION, **shapes.BIASED_EXPERTS, **shared}


ERNIE = (
    Architecture(
        hf_classes=("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"),
        gguf_name="ernie4_5",
        hyperparameters=rows.DECODER + rows.RMS_NORM,
        tensors=RequiredTensors(layer=shapes.LLAMA_LAYER),
        settings=Settings(defaults=_ERNIE_DEFAULTS, assumed=_ERNIE_ASSUMED),
    ),
    Architecture(
        hf_classes=("Ernie4_5_MoeForCausalLM",),
        gguf_name="ernie4_5-moe",
        hyperparameters=(
            *(rows.DECODER + rows.RMS_NORM + rows.EXPERTS),
            rows.u32("interleave_moe_layer_step", 1),
            rows.u32("leading_dense_block_count", "moe_layer_start_index"),
            rows.u32("expert_feed_forward_length", "moe_intermediate_size"),
            rows.u32("expert_shared_count", "n_shared_experts"),
            rows.u32("expert_shared_feed_forward_length", shapes.DIMENSIONS["n_ff_shared_experts"]),
        ),
        tensors=RequiredTensors(layer=_ernie_layer),
        names=TensorNames(
            # prediction of several tokens
            unused=tuple(f"model.mtp_{part}." for part in ("block", "emb_norm", "hidden_norm", "linear_proj"))
        ),
        layout=Layout(
            reshaped=("FFN_EXP_PROBS_B",),
            splits={
                # the same correction, under two names
                ".gate.moe_statics.e_score_correction_bias": {".moe_statics.e_score_correction.bias": whole_tensor},
                ".e_score_correction_bias": {".e_score_correction.bias": whole_tensor},
                **shapes.FUSED_EXPERTS,
            },
            stacks=shapes.NUMBERED_EXPERTS,
        ),
        settings=Settings(
            aliases={
                "moe_num_experts": "num_experts",
                "moe_k": "num_experts_per_tok",
                "moe_num_shared_experts": "n_shared_experts",
            },
            defaults={**_ERNIE_DEFAULTS, "moe_layer_start_index": 1, "n_shared_experts": 2},
            assumed={
                **_ERNIE_ASSUMED,
                "moe_layer_interval": 1,
                # -1 stands for the last layer too
                "moe_layer_end_index": lambda config: (
                    -1 if config.values.get("moe_layer_end_index") == -1 else config.integer("num_hidden_layers") - 1
                ),
            },
        ),
    ),
)
