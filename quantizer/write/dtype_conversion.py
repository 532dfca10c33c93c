"""Conversion between storage types: stored bytes to float32 rows, and back into any tensor type.

numpy converts plain types. Quantized types go through libggml-base by ctypes, the quantizer's only native code: it is
loaded at the first call, in the job's process only, since a fault in it kills the process. It never imports llama_cpp:
the library is found beside it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quantizer.checkpoint.config import CheckpointError
from quantizer.gguf.tensor_types import TensorType, tensor_type_named
from quantizer.system.errors import EngineError

_LIBRARY_NAMES = {"win32": "ggml-base.dll", "darwin": "libggml-base.dylib"}


class _TypeTraits(ctypes.Structure):
    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
        ("from_float_ref", ctypes.c_void_p),
    )


def quantize(rows: npt.NDArray[np.float32], kind: TensorType, imatrix: npt.NDArray[np.float32] | None = None) -> bytes:
    """Quantize float32 `rows` of shape [n_rows, n_columns] to `kind`. `imatrix` weighs the columns, shape [n_columns].
    Raises EngineError when the result is not sound (NaN in the input)."""
    rows = np.ascontiguousarray(rows)
    n_rows, n_columns = rows.shape
    out = ctypes.create_string_buffer(n_rows * kind.row_bytes(n_columns))
    weights = None if imatrix is None else imatrix.ctypes.data
    written = _library().ggml_quantize_chunk(kind.type_id, rows.ctypes.data, out, 0, n_rows, n_columns, weights)
    if written != len(out) or not _library().ggml_validate_row_data(kind.type_id, out, written):
        raise EngineError(f"Quantizing to {kind.name} gave invalid numbers.", "Check the source for NaN weights.")
    return out.raw


def dequantize(data: bytes, kind: TensorType, n_columns: int) -> npt.NDArray[np.float32]:
    """Turn stored rows of a quantized `kind` into float32 of shape [n_rows, n_columns].
    Raises EngineError for a type that ggml cannot read back."""
    traits = _library().ggml_get_type_traits(kind.type_id).contents
    if not traits.to_float:
        raise EngineError(f"Tensors in {kind.name} cannot be read back.", "Quantize from the original weights.")
    n_rows = len(data) // kind.row_bytes(n_columns)
    out = np.empty((n_rows, n_columns), np.float32)
    traits.to_float(data, out.ctypes.data, out.size)
    return out


def is_sound(data: bytes, kind: TensorType) -> bool:
    """Return whether the stored rows of `kind`, or the scales of their blocks, are all finite."""
    return bool(_library().ggml_validate_row_data(kind.type_id, data, len(data)))


@cache
def _library() -> Any:
    spec, remedy = importlib.util.find_spec("llama_cpp"), "Install localllm again with `uv sync`."
    name = _LIBRARY_NAMES.get(sys.platform, "libggml-base.so")
    folders = (spec.submodule_search_locations or ()) if spec else ()
    paths = (path for folder in folders for path in (Path(folder) / "lib" / name, Path(folder) / name) if path.exists())
    path = next(paths, None)
    if path is None:
        raise EngineError(f"{name} of llama-cpp-python is not installed.", remedy)
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise EngineError(f"{name} cannot be loaded: {error}.", remedy) from error
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_quantize_chunk.argtypes = (ctypes.c_int, pointer, pointer, count, count, count, pointer)
    library.ggml_validate_row_data.restype = ctypes.c_bool
    library.ggml_validate_row_data.argtypes = (ctypes.c_int, pointer, ctypes.c_size_t)
    library.ggml_get_type_traits.restype = ctypes.POINTER(_TypeTraits)
    library.ggml_get_type_traits.argtypes = (ctypes.c_int,)
    return library


# How bits are read, and those of infinity; those of a NaN are larger.
_INFINITIES = {"F32": ("<u4", 0x7F800000), "F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80)}
_BFLOAT_NAN = np.uint16(0x7FC0)
_MAGNITUDE, _SIGN = np.uint16(0x7FFF), np.uint16(0x8000)
# The bfloat16 that are normal halves, from the least on, without their signs: the highest bit shifted out
_LEAST_SHARED, _N_SHARED = np.uint16(113 << 8), np.uint16(30 << 8)
_LEAST_NORMAL = np.uint16(1 << 10)  # as a half


RowWeights = Iterable[tuple[slice, npt.NDArray[np.float32]]]


def convert(
    data: bytes, stored: TensorType, target: TensorType, n_columns: int, name: str, weights: RowWeights | None = None
) -> tuple[bytes, int]:
    """Turn stored rows of `n_columns` into the bytes of another type; `name` is the tensor's, for errors. `weights` are
    those of an importance matrix: for each part of the rows, what an error in each column costs. Returns the bytes, and
    how many weights were NaN or infinite: those stay so in the plain types and become 0 in quantized ones. Raises
    CheckpointError for weights that are beyond the range of the target type."""
    if (stored.name, target.name) == ("BF16", "F16"):
        return _half_of_bfloat(data, name)
    n_bad = _n_not_finite(data, stored, n_columns)
    if stored == target:
        return data, n_bad
    rows = to_float32(data, stored, n_columns)
    if n_bad and target.is_quantized:
        rows = np.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0)
    return encode(rows, target, name, weights), n_bad


def to_float32(data: bytes, stored: TensorType, n_columns: int) -> npt.NDArray[np.float32]:
    """Return stored rows as float32 of shape [n_rows, n_columns]."""
    match stored.name:
        case "F32":
            return np.frombuffer(data, "<f4").reshape(-1, n_columns)
        case "F16":
            return np.frombuffer(data, "<f2").astype(np.float32).reshape(-1, n_columns)
        case "BF16":
            high = np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)
            return high.view(np.float32).reshape(-1, n_columns)
    return dequantize(data, stored, n_columns)


def _n_not_finite(data: bytes, stored: TensorType, n_columns: int) -> int:
    if stored.name in _INFINITIES:
        form, infinity = _INFINITIES[stored.name]
        bits = np.frombuffer(data, form)
        if (bits & (np.iinfo(form).max // 2)).max() < infinity:
            return 0
    elif is_sound(data, stored):
        return 0
    return int(np.count_nonzero(~np.isfinite(to_float32(data, stored, n_columns))))


def encode(rows: npt.NDArray[np.float32], target: TensorType, name: str, weights: RowWeights | None = None) -> bytes:
    """Return float32 rows of shape [n_rows, n_columns] in the bytes of `target`; `weights` as in `convert`.
    Raises CheckpointError on overflow."""
    match target.name:
        case "F32":
            return rows.tobytes()
        case "F16":
            return _half(rows, name)
        case "BF16":
            # to the nearest bfloat16, ties to even; a NaN stays one, without its payload
            bits = np.ascontiguousarray(rows).view(np.uint32)
            rounded = ((bits + (0x7FFF + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)).astype("<u2")
            rounded[np.isnan(rows)] = _BFLOAT_NAN
            return rounded.tobytes()
    if weights is None:
        return quantize(rows, target)
    return b"".join(quantize(rows[part], target, of_columns) for part, of_columns in weights)


def _half(rows: npt.NDArray[np.float32], name: str) -> bytes:
    with np.errstate(over="ignore"):
        halves = rows.astype("<f2")
    is_full = (halves.view("<u2") & _MAGNITUDE).max() >= _INFINITIES["F16"][1]
    if is_full and np.isinf(halves).sum() > np.isinf(rows).sum():
        raise CheckpointError(f"The tensor {name} has weights beyond the range of F16.", "Choose BF16 instead.")
    return halves.tobytes()


def _half_of_bfloat(data: bytes, name: str) -> tuple[bytes, int]:
    """Return bfloat16 as F16 by integer arithmetic, five times as fast as numpy, and how many are not finite.
    Most have a normal half: the same with an exponent that counts from elsewhere, and a longer mantissa."""
    bits = np.frombuffer(data, "<u2")
    halves = bits * np.uint16(2)
    halves -= _LEAST_SHARED
    others = np.flatnonzero(halves >= _N_SHARED)  # zeros, tiny and huge ones
    halves *= np.uint16(4)
    halves += _LEAST_NORMAL
    halves |= bits & _SIGN
    if not len(others):
        return halves.tobytes(), 0
    rows = to_float32(bits[others].tobytes(), tensor_type_named("BF16"), n_columns=1)
    halves[others] = np.frombuffer(_half(rows, name), "<u2")
    return halves.tobytes(), int(np.count_nonzero(~np.isfinite(rows)))
