"""The GPUs that this build of llama.cpp can use, as ggml lists them.

Owns the list. Loading a driver may end the process: ask in one that may die. Knows nothing of what they are used for.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from app.engine.llama.native import ggml_function

__all__ = ["GgmlDevice", "ggml_gpus", "n_gpu_devices"]

_DISCRETE, _INTEGRATED = _GPU_KINDS = (1, 2)  # of ggml_backend_dev_type@0.3.36


@dataclass(frozen=True, slots=True)
class GgmlDevice:
    """What ggml says of a GPU: bytes of memory, 0 where it cannot tell, and its `address` on the PCI bus, if any."""

    name: str
    description: str
    is_integrated: bool
    free_bytes: int
    total_bytes: int
    address: str


class _Properties(ctypes.Structure):
    """ggml_backend_dev_props@0.3.36."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("memory_free", ctypes.c_size_t),
        ("memory_total", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("device_id", ctypes.c_char_p),
        ("capabilities", ctypes.c_bool * 16),  # more than there are: the call must not write past the end
    ]


@cache
def n_gpu_devices() -> int:
    """Return how many GPUs this build can use. llama_supports_gpu_offload says yes to any build with RPC in it."""
    return sum(1 for _ in _gpus())


def ggml_gpus() -> Iterator[GgmlDevice]:
    """Yield every GPU in ggml's order, which is llama.cpp's too."""
    read = ggml_function("ggml_backend_dev_get_props")
    read.restype, read.argtypes = None, [ctypes.c_void_p, ctypes.POINTER(_Properties)]
    for address in _gpus():
        properties = _Properties()
        read(address, ctypes.byref(properties))
        yield _device(properties)


def _gpus() -> Iterator[int]:
    count, get, kind = (ggml_function(f"ggml_backend_dev_{name}") for name in ("count", "get", "type"))
    count.restype, get.restype, get.argtypes = ctypes.c_size_t, ctypes.c_void_p, [ctypes.c_size_t]
    kind.restype, kind.argtypes = ctypes.c_int, [ctypes.c_void_p]
    return (address for address in map(get, range(count())) if kind(address) in _GPU_KINDS)


def _device(properties: _Properties) -> GgmlDevice:
    return GgmlDevice(
        name=_text(properties.name),
        description=_text(properties.description),
        is_integrated=properties.type == _INTEGRATED,
        free_bytes=properties.memory_free,
        total_bytes=properties.memory_total,
        address=_text(properties.device_id),
    )


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "replace")
