"""InternLM 2: a llama whose queries, keys and values lie in one matrix, group by group."""

from __future__ import annotations

from quantizer.architectures.architecture import Architecture
from quantizer.architectures.rows import DECODER, RMS_NORM
from quantizer.architectures.shapes import ATTENTION, GATED_FEED_FORWARD, PRE_NORMS, decoder
from quantizer.composed import rows_in
from quantizer.transforms import grouped_keys, grouped_queries, grouped_values

__all__ = ["INTERNLM"]

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
