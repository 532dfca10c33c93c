"""The GPUs that this build of llama.cpp can use, as ggml lists them, and the buffers on them.

Loading a driver may crash the process: call this in a child process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from ctypes import c_char_p, c_size_t, c_void_p
from dataclasses import replace

from app.engine.llama.native import Buffer, ggml_function
from app.engine.llama.rpc import measure_rpc_link
from offload.devices.gpus import ListedGpu
from offload.devices.machine import HOST_NAME
from offload.placement.actual_usage import DeviceUsage
from quantizer.errors import EngineError

__all__ = ["buffer_bytes_by_device", "ggml_gpus", "gpu_address"]

_FIELDS = {"model": "weight_bytes", "KV": "cache_bytes", "RS": "cache_bytes", "compute": "compute_bytes"}
_REMOTE = "RPC"
_DISCRETE, _INTEGRATED = _GPU_KINDS = (1, 2)  # of ggml_backend_dev_type@0.3.36


class _Properties(ctypes.Structure):
    """ggml_backend_dev_props@0.3.36."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("memory_free", ctypes.c_size_t),
        ("memory_total", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("device_id", ctypes.c_char_p),
        ("capabilities", ctypes.c_bool * 16),  # more than ggml has, so that it cannot write past the end
    ]


def ggml_gpus(*, with_links: bool = False) -> Iterator[ListedGpu]:
    """Yield every GPU in the order of ggml and llama.cpp; measure the bandwidth to other machines `with_links`."""
    read = ggml_function("ggml_backend_dev_get_props", None, c_void_p, ctypes.POINTER(_Properties))
    for address in _gpus():
        properties = _Properties()
        read(address, ctypes.byref(properties))
        gpu = _listed(properties)
        if with_links and gpu.name.startswith(_REMOTE):
            latency_s, bytes_per_s = measure_rpc_link(address)
            gpu = replace(gpu, link_latency_s=latency_s, link_bytes_per_s=bytes_per_s)
        yield gpu


def gpu_address(name: str) -> int:
    """Return the native address of the GPU that ggml calls `name`. Raises EngineError if there is none."""
    for address in _gpus():
        if _name(address) == name:
            return address
    raise EngineError(
        f"The device {name} of the plan no longer exists.",
        "See `localllm doctor` for the available devices, and load again.",
    )


def buffer_bytes_by_device(buffers: Iterable[Buffer]) -> dict[str, DeviceUsage]:
    """Return what each device holds with these `buffers`, by its name; what is no GPU's is the processor's."""
    names = {_buffer_name(address): _name(address) for address in _gpus()}
    found = dict.fromkeys([HOST_NAME, *names.values()], DeviceUsage())
    for buffer in buffers:
        device, field = names.get(buffer.name, HOST_NAME), _FIELDS[buffer.kind]
        found[device] = replace(found[device], **{field: getattr(found[device], field) + buffer.n_bytes})
    return found


def _gpus() -> Iterator[int]:
    count = ggml_function("ggml_backend_dev_count", c_size_t)
    get = ggml_function("ggml_backend_dev_get", c_void_p, c_size_t)
    kind = ggml_function("ggml_backend_dev_type", ctypes.c_int, c_void_p)
    return (address for address in map(get, range(count())) if kind(address) in _GPU_KINDS)


def _name(device: int) -> str:
    return _text(ggml_function("ggml_backend_dev_name", c_char_p, c_void_p)(device))


def _buffer_name(device: int) -> str:
    buffer_type = ggml_function("ggml_backend_dev_buffer_type", c_void_p, c_void_p)(device)
    return _text(ggml_function("ggml_backend_buft_name", c_char_p, c_void_p)(buffer_type))


def _listed(properties: _Properties) -> ListedGpu:
    return ListedGpu(
        name=_text(properties.name),
        description=_text(properties.description),
        is_integrated=properties.type == _INTEGRATED,
        free_bytes=properties.memory_free,
        total_bytes=properties.memory_total,
        address=_text(properties.device_id),
    )


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "replace")
