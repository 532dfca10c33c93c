"""The quantizer's only native code: libggml-base, called through ctypes, in the job's own process only.

Owns the library handle and the calls; a fault in it kills the process, so neither user interfaces nor the service load
it. It never imports llama_cpp: the library is found beside it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quantizer.gguf.tensor_types import TensorType
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


def _library_path() -> Path:
    """Return the path of libggml-base, beside the installed llama_cpp. Raises EngineError when it is missing."""
    spec = importlib.util.find_spec("llama_cpp")
    name = _LIBRARY_NAMES.get(sys.platform, "libggml-base.so")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for candidate in (Path(folder) / "lib" / name, Path(folder) / name):
            if candidate.exists():
                return candidate
    raise EngineError(f"{name} of llama-cpp-python is not installed.", "Install localllm again with `uv sync`.")


def quantize(rows: npt.NDArray[np.float32], kind: TensorType, imatrix: npt.NDArray[np.float32] | None = None) -> bytes:
    """Quantize float32 `rows` of shape [n_rows, n_columns] to `kind`.

    `imatrix` weighs the columns, shape [n_columns]. Raises EngineError when the result is not sound (NaN in the input).
    """
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

    Raises EngineError for a type that ggml cannot read back.
    """
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


def requires_imatrix(kind: TensorType) -> bool:
    """Return whether ggml refuses to quantize to `kind` without an importance matrix."""
    return bool(_library().ggml_quantize_requires_imatrix(kind.type_id))


@cache
def _library() -> Any:
    path = _library_path()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise EngineError(
            f"{path.name} cannot be loaded: {error}.", "Install localllm again with `uv sync`."
        ) from error
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_quantize_chunk.argtypes = (ctypes.c_int, pointer, pointer, count, count, count, pointer)
    library.ggml_validate_row_data.restype = ctypes.c_bool
    library.ggml_validate_row_data.argtypes = (ctypes.c_int, pointer, ctypes.c_size_t)
    library.ggml_quantize_requires_imatrix.restype = ctypes.c_bool
    library.ggml_quantize_requires_imatrix.argtypes = (ctypes.c_int,)
    library.ggml_get_type_traits.restype = ctypes.POINTER(_TypeTraits)
    library.ggml_get_type_traits.argtypes = (ctypes.c_int,)
    return library
