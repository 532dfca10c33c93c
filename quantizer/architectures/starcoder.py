"""StarCoder 2: layer norms and biases everywhere, and a feed-forward without a gate."""

from __future__ import annotations

from quantizer.architectures.architecture import Architecture, Dimensions
from quantizer.architectures.rows import DECODER, LAYER_NORM
from quantizer.architectures.shapes import ATTENTION, PRE_NORMS, biases, decoder_with_bias

__all__ = ["STARCODER"]

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
