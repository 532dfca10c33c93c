"""OLMo 2 and 3: they normalise what attention and feed-forward give, and whole queries and keys."""

from __future__ import annotations

from dataclasses import replace

from quantizer.architectures.architecture import Architecture
from quantizer.architectures.rows import DECODER, RMS_NORM
from quantizer.architectures.shapes import ATTENTION, GATED_FEED_FORWARD, POST_NORMS, decoder
from quantizer.architectures.windows import WINDOW, WINDOW_PATTERN, WINDOW_ROPE

__all__ = ["OLMO"]

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
