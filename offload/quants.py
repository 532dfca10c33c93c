"""What another quantization would make of a model's tensors, from its header alone.

Owns the change of types, and of sizes alone where only those are known. Knows nothing of how tensors are converted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quantizer.file_types import FileType
from quantizer.gguf_source import model_shape
from quantizer.header import Header, TensorInfo
from quantizer.mix import MixTensor, assign
from quantizer.tensor_types import tensor_type

__all__ = ["quantized", "resized"]


def quantized(header: Header, tensors: Sequence[TensorInfo], file_type: FileType) -> tuple[TensorInfo, ...]:
    """Return `tensors` as `localllm quantize` would store them under `file_type`; offsets are left as they were."""
    mix = [MixTensor(tensor.name, tensor.shape or (1,), tensor_type(tensor.type_id)) for tensor in tensors]
    verdicts = assign(mix, file_type, model_shape(header))
    return tuple(
        replace(tensor, type_id=target.type_id, n_bytes=target.tensor_bytes(tensor.shape))
        for tensor in tensors
        for target in (verdicts[tensor.name].target,)
    )


def resized(tensors: Sequence[TensorInfo], n_bytes: int) -> tuple[TensorInfo, ...]:
    """Return `tensors` as if all of them together took `n_bytes`, each its share."""
    scale = n_bytes / sum(tensor.n_bytes for tensor in tensors)
    return tuple(replace(tensor, n_bytes=max(1, round(tensor.n_bytes * scale))) for tensor in tensors)
