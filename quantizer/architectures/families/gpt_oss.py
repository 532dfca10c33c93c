"""GPT-OSS: attention with sinks, every other layer windowed, and experts that lie interleaved in one tensor."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from quantizer.architectures.architecture import Architecture, Hyperparameter
from quantizer.architectures.metadata_rows import (
    DECODER,
    EXPERTS,
    RMS_NORM,
    WINDOW,
    integer,
    kind_of,
    rope_of,
    windows_but_every,
)
from quantizer.architectures.shapes import ATTENTION, EXPERT_FEED_FORWARD, Dimensions, biases, matrices
from quantizer.checkpoint.config import Config
from quantizer.convert.derived_tensors import Cut, StackedTensor, TransposedTensor, whole_tensor
from quantizer.convert.source_model import FileTensor, RearrangedTensor, SourceTensor

_GATES, _UPS = 0, 1  # the first row of each; from there every other row

_WEIGHTS: Dimensions = {**ATTENTION, **EXPERT_FEED_FORWARD}


def _outputs_as_rows(matrix: FileTensor) -> SourceTensor:
    """Return the matrix with an expert's outputs as rows: MXFP4 is stored so, plain weights are transposed."""
    return matrix if matrix.stored.name == "MXFP4" else TransposedTensor(matrix, matrix.name)


def _every_other_row(first: int) -> Cut:
    def cut(tensor: FileTensor, name: str, _config: Config) -> StackedTensor:
        return StackedTensor(name, tuple(_half(_outputs_as_rows(matrix), name, first) for matrix in matrices(tensor)))

    return cut


def _half(matrix: SourceTensor, name: str, first: int) -> RearrangedTensor:
    n_columns, n_rows = matrix.shape
    order = np.arange(first, n_rows, 2)
    return RearrangedTensor(matrix, name, (n_columns, len(order)), order)


def _every_other_number(first: int) -> Cut:
    def cut(tensor: FileTensor, name: str, _config: Config) -> RearrangedTensor:
        n_numbers = math.prod(tensor.shape)
        chosen = np.arange(n_numbers).reshape(-1, tensor.shape[0])[:, first::2]
        numbers = replace(tensor, shape=(1, n_numbers))
        return RearrangedTensor(numbers, name, (chosen.shape[1], *tensor.shape[1:]), chosen.reshape(-1))

    return cut


def _down(tensor: FileTensor, name: str, _config: Config) -> StackedTensor:
    return StackedTensor(name, tuple(_outputs_as_rows(matrix) for matrix in matrices(tensor)))


def _ramp(config: Config) -> tuple[str, ...]:
    if kind_of(config) != "yarn" or rope_of(config).flag("truncate") is not False:
        return ()
    return ("The model blends its rotations over a range with fractions; llama.cpp rounds it to whole numbers.",)


GPT_OSS = Architecture(
    hf_classes=("GptOssForCausalLM",),
    gguf_name="gpt-oss",
    hyperparameters=(
        *DECODER,
        *RMS_NORM,
        *EXPERTS,
        *WINDOW,
        Hyperparameter("expert_feed_forward_length", "u32", integer("intermediate_size")),
    ),
    layer_tensors={
        "attn_norm.weight": ("n_embd",),
        "post_attention_norm.weight": ("n_embd",),
        "attn_sinks.weight": ("n_heads",),
        **_WEIGHTS,
        **biases(_WEIGHTS),
    },
    splits={
        ".sinks": {".sinks.weight": whole_tensor},
        ".gate_up_proj": {
            ".gate_proj.weight": _every_other_row(_GATES),
            ".up_proj.weight": _every_other_row(_UPS),
        },
        ".gate_up_proj_bias": {
            ".gate_proj.bias": _every_other_number(_GATES),
            ".up_proj.bias": _every_other_number(_UPS),
        },
        ".down_proj": {".down_proj.weight": _down},
        ".down_proj_bias": {".down_proj.bias": whole_tensor},
    },
    assumed={
        "attention_bias": lambda _config: True,
        "hidden_act": lambda _config: "silu",
        "layer_types": windows_but_every(2),
        "swiglu_alpha": lambda _config: 1.702,
        "swiglu_limit": lambda _config: 7.0,
        "tie_word_embeddings": lambda _config: False,
    },
    approximations=_ramp,
)
