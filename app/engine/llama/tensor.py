"""ggml's tensor as callbacks meet it: the part of the C structure that they read."""

from __future__ import annotations

import ctypes

__all__ = ["N_SOURCES", "Tensor"]

N_SOURCES = 10
_N_DIMS, _N_OP_PARAMS, _NAME_BYTES = 4, 16, 64


class Tensor(ctypes.Structure):
    """ggml_tensor up to its name. Source: ggml/include/ggml.h as vendored in llama-cpp-python 0.3.36."""


Tensor._fields_ = (
    ("type", ctypes.c_int),
    ("buffer", ctypes.c_void_p),
    ("ne", ctypes.c_int64 * _N_DIMS),
    ("nb", ctypes.c_size_t * _N_DIMS),
    ("op", ctypes.c_int),
    ("op_params", ctypes.c_int32 * _N_OP_PARAMS),
    ("flags", ctypes.c_int32),
    ("src", ctypes.POINTER(Tensor) * N_SOURCES),
    ("view_src", ctypes.POINTER(Tensor)),
    ("view_offs", ctypes.c_size_t),
    ("data", ctypes.c_void_p),
    ("name", ctypes.c_char * _NAME_BYTES),
)
