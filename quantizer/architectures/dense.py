"""Dense decoders that differ little from Llama.

GLM 4: four norms per layer, gate and up in one matrix, half of each head rotated. InternLM 2: queries, keys and values
in one matrix, group by group. OLMo 2 and 3: norms after attention and feed-forward, and of whole queries and keys.
StableLM 2: layer norms with biases, a quarter of each head rotated; the 12B normalises its heads one by one. StarCoder
2: layer norms and biases everywhere, a feed-forward without a gate.
"""

from __future__ import annotations

from dataclasses import replace

from quantizer.architectures.architecture import Architecture, Dimensions, Hyperparameter, Stack
from quantizer.architectures.metadata_rows import DECODER, LAYER_NORM, RMS_NORM, WINDOW, WINDOW_PATTERN, WINDOW_ROPE
from quantizer.architectures.rope import partly_rotated
from quantizer.architectures.shapes import (
    ATTENTION,
    FUSED_FEED_FORWARD,
    GATED_FEED_FORWARD,
    POST_NORMS,
    PRE_NORMS,
    biases,
    decoder,
    decoder_with_bias,
)
from quantizer.convert.derived_tensors import rows_in
from quantizer.convert.transforms import grouped_keys, grouped_queries, grouped_values

__all__ = ["GLM", "INTERNLM", "OLMO", "STABLELM", "STARCODER"]

GLM = (
    Architecture(
        hf_classes=("Glm4ForCausalLM",),
        gguf_name="glm4",
        hyperparameters=(*DECODER, *RMS_NORM, Hyperparameter("rope.dimension_count", "u32", partly_rotated(0.5))),
        model_tensors=decoder,
        layer_tensors={**PRE_NORMS, **POST_NORMS, **ATTENTION, **FUSED_FEED_FORWARD},
        assumed={"hidden_act": lambda _config: "silu"},
    ),
)


INTERNLM = (
    Architecture(
        hf_classes=("InternLM2ForCausalLM",),
        gguf_name="internlm2",
        hyperparameters=DECODER + RMS_NORM,
        model_tensors=decoder,
        layer_tensors={**PRE_NORMS, **ATTENTION, **GATED_FEED_FORWARD},
        splits={
            ".attention.wqkv.weight": {
                ".attention.wq.weight": rows_in(grouped_queries),
                ".attention.wk.weight": rows_in(grouped_keys),
                ".attention.wv.weight": rows_in(grouped_values),
            }
        },
        assumed={"hidden_act": lambda _config: "silu", "bias": lambda _config: False},
    ),
)


_OLMO_2 = Architecture(
    hf_classes=("Olmo2ForCausalLM",),
    gguf_name="olmo2",
    hyperparameters=DECODER + RMS_NORM,
    model_tensors=decoder,
    layer_tensors={
        "attn_q_norm.weight": ("n_query",),
        "attn_k_norm.weight": ("n_kv",),
        **POST_NORMS,
        **ATTENTION,
        **GATED_FEED_FORWARD,
    },
    assumed={"hidden_act": lambda _config: "silu"},
)

OLMO = (
    _OLMO_2,
    # the same to llama.cpp, with windows
    replace(
        _OLMO_2,
        hf_classes=("Olmo3ForCausalLM",),
        hyperparameters=DECODER + RMS_NORM + WINDOW + WINDOW_PATTERN + WINDOW_ROPE,
    ),
)


STABLELM = (
    Architecture(
        hf_classes=("StableLmForCausalLM",),
        gguf_name="stablelm",
        hyperparameters=(
            *DECODER,
            *LAYER_NORM,
            Hyperparameter("rope.dimension_count", "u32", partly_rotated(0.25)),
            Hyperparameter(
                "use_parallel_residual", "bool", lambda config: config.flag("use_parallel_residual") or False
            ),
        ),
        model_tensors=decoder_with_bias,
        # with attention and feed-forward side by side there is no norm between them
        layer_tensors={
            "attn_norm.weight": ("n_embd",),
            "attn_norm.bias": ("n_embd",),
            **ATTENTION,
            **GATED_FEED_FORWARD,
        },
        stacks=(
            Stack("q_layernorm.norms.", "q_layernorm.", lambda config: config.integer("num_attention_heads")),
            Stack("k_layernorm.norms.", "k_layernorm.", lambda config: config.integer("num_key_value_heads")),
        ),
        assumed={"hidden_act": lambda _config: "silu"},
    ),
)


_WEIGHTS: Dimensions = {
    **PRE_NORMS,
    **ATTENTION,
    "ffn_up.weight": ("n_embd", "n_ff"),
    "ffn_down.weight": ("n_ff", "n_embd"),
}

STARCODER = (
    Architecture(
        hf_classes=("Starcoder2ForCausalLM",),
        gguf_name="starcoder2",
        hyperparameters=DECODER + LAYER_NORM,
        model_tensors=decoder_with_bias,
        layer_tensors={**_WEIGHTS, **biases(_WEIGHTS)},
        defaults={"tie_word_embeddings": True},
        assumed={"hidden_act": lambda _config: "gelu_pytorch_tanh", "use_bias": lambda _config: True},
    ),
)
