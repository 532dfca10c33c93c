"""Numbers between storage types: stored bytes to float32 rows, and back into any tensor type.

The plain types are numpy's business; quantized ones go through `quantizer.ggml`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from quantizer import ggml
from quantizer.errors import CheckpointError
from quantizer.tensor_types import TensorType

__all__ = ["convert", "encode", "to_float32"]


def convert(data: bytes, stored: TensorType, target: TensorType, n_columns: int, name: str) -> bytes:
    """Turn stored rows of `n_columns` into the bytes of another type; `name` is the tensor's, for errors.

    Raises CheckpointError for weights that are not finite, or not finite any more in the target type.
    """
    if stored == target:
        return data
    rows = to_float32(data, stored, n_columns)
    if not np.isfinite(rows).all():
        raise CheckpointError(
            f"The tensor {name} holds NaN or infinite weights.", "Get an undamaged copy of the model."
        )
    return encode(rows, target, name)


def to_float32(data: bytes, stored: TensorType, n_columns: int) -> npt.NDArray[np.float32]:
    """Stored rows as float32 of shape [n_rows, n_columns]."""
    match stored.name:
        case "F32":
            return np.frombuffer(data, "<f4").reshape(-1, n_columns)
        case "F16":
            return np.frombuffer(data, "<f2").astype(np.float32).reshape(-1, n_columns)
        case "BF16":
            high = np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)
            return high.view(np.float32).reshape(-1, n_columns)
    return ggml.dequantize(data, stored, n_columns)


def encode(rows: npt.NDArray[np.float32], target: TensorType, name: str) -> bytes:
    """Float32 rows of shape [n_rows, n_columns] in the bytes of `target`. Raises CheckpointError on overflow."""
    match target.name:
        case "F32":
            return rows.tobytes()
        case "F16":
            return _half(rows, name)
        case "BF16":
            return _bfloat(rows).tobytes()
    return ggml.quantize(rows, target)


def _half(rows: npt.NDArray[np.float32], name: str) -> bytes:
    with np.errstate(over="ignore"):
        halves = rows.astype("<f2")
    if not np.isfinite(halves).all():
        raise CheckpointError(f"The tensor {name} has weights beyond the range of F16.", "Choose BF16 instead.")
    return halves.tobytes()


def _bfloat(rows: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round to the nearest bfloat16, ties to even; the input is finite."""
    bits = np.ascontiguousarray(rows).view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)).astype("<u2")
