"""Gemma 1 to 3: their norms multiply by one more than the weight, and embeddings are the output.

EmbeddingGemma: Gemma 3 without a causal mask and without an output, with two linear modules behind the pooling.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from quantizer.architectures.architecture import Architecture, Hyperparameter
from quantizer.architectures.metadata_rows import DECODER, RMS_NORM, WINDOW, WINDOW_ROPE, number, windows_but_every
from quantizer.architectures.shapes import (
    ATTENTION,
    GATED_FEED_FORWARD,
    HEAD_NORMS,
    POST_NORMS,
    PRE_NORMS,
    head_size,
)
from quantizer.checkpoint.config import Config
from quantizer.convert.derived_tensors import plus_one

_SOFTCAP = Hyperparameter("final_logit_softcapping", "f32", number("final_logit_softcapping"))
_NORMS = ("ATTN_NORM", "ATTN_POST_NORM", "FFN_NORM", "FFN_PRE_NORM", "FFN_POST_NORM", "OUTPUT_NORM")
_ACTIVATION = {"hidden_activation": lambda _config: "gelu_pytorch_tanh"}


def _query_scale(n_layers_of_27b: int) -> dict[str, Callable[[Config], object]]:
    """Return llama.cpp's scale of queries: a head's size, and in the model of 27B the hidden size over the heads."""

    def expected(config: Config) -> int:
        if config.integer("num_hidden_layers") == n_layers_of_27b:
            return config.integer("hidden_size") // config.integer("num_attention_heads")
        return head_size(config)

    return {"query_pre_attn_scalar": expected}


def _windows(every: int) -> dict[str, Callable[[Config], object]]:
    return {"sliding_window_pattern": lambda _config: every, "layer_types": windows_but_every(every)}


_GEMMA_3 = Architecture(
    hf_classes=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    skipped_modules=("vision_tower.", "multi_modal_projector."),
    gguf_name="gemma3",
    hyperparameters=(
        *DECODER,
        *RMS_NORM,
        *WINDOW,
        _SOFTCAP,
        *WINDOW_ROPE,
    ),
    layer_tensors={**PRE_NORMS, **POST_NORMS, **ATTENTION, **HEAD_NORMS, **GATED_FEED_FORWARD},
    value_maps=dict.fromkeys((*_NORMS, "ATTN_Q_NORM", "ATTN_K_NORM"), plus_one),
    # the smaller vision models have only settings that differ from these
    defaults={
        "tie_word_embeddings": True,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
    },
    assumed={
        **_ACTIVATION,
        **_query_scale(62),
        **_windows(6),
        "tie_word_embeddings": lambda _config: True,
        "use_bidirectional_attention": lambda _config: False,
    },
)

_EMBEDDING_GEMMA = replace(
    _GEMMA_3,
    hf_classes=("Gemma3TextModel",),
    gguf_name="gemma-embedding",
    skipped_modules=(),
    renames={r"^(?!model\.|dense_)": "model."},
    dense_modules=("dense_2", "dense_3"),
    defaults={**_GEMMA_3.defaults, "use_bidirectional_attention": False},
    assumed={
        **_GEMMA_3.assumed,
        "query_pre_attn_scalar": head_size,
        "use_bidirectional_attention": lambda _config: True,
    },
)


GEMMA = (
    Architecture(
        hf_classes=("GemmaForCausalLM",),
        gguf_name="gemma",
        hyperparameters=DECODER + RMS_NORM,
        layer_tensors={**PRE_NORMS, **ATTENTION, **GATED_FEED_FORWARD},
        value_maps=dict.fromkeys(_NORMS, plus_one),
        defaults={"tie_word_embeddings": True},
        assumed={**_ACTIVATION, "tie_word_embeddings": lambda _config: True},
    ),
    Architecture(
        hf_classes=("Gemma2ForCausalLM",),
        gguf_name="gemma2",
        hyperparameters=(
            *DECODER,
            *RMS_NORM,
            *WINDOW,
            _SOFTCAP,
            Hyperparameter("attn_logit_softcapping", "f32", number("attn_logit_softcapping")),
        ),
        layer_tensors={**PRE_NORMS, **POST_NORMS, **ATTENTION, **GATED_FEED_FORWARD},
        value_maps=dict.fromkeys(_NORMS, plus_one),
        defaults={"tie_word_embeddings": True, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        assumed={**_ACTIVATION, **_query_scale(46), **_windows(2), "tie_word_embeddings": lambda _config: True},
    ),
    _GEMMA_3,
    _EMBEDDING_GEMMA,
)
