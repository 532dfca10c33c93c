"""The GPUs that ggml lists, the buffers on them, and GPUs of other machines: servers of llama.cpp's RPC backend.

Loading a driver may crash the process: call this in a child process. An RPC server serves one program at a time and a
busy one never answers, so this process exits after a timeout.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ctypes import c_char_p, c_size_t, c_void_p
from dataclasses import replace
from typing import Any

from app.engine.llama.device_speed import measure_rpc_link, measure_speed
from app.engine.llama.native import Buffer, ggml_function, lib
from offload.devices.gpus import ListedGpu
from offload.devices.machine import HOST_NAME, DeviceSpeed
from offload.placement.actual_usage import DeviceUsage
from quantizer.system.errors import EngineError

_FIELDS = {"model": "weight_bytes", "KV": "cache_bytes", "RS": "cache_bytes", "compute": "compute_bytes"}
_REMOTE = "RPC"
_DISCRETE, _INTEGRATED = _GPU_KINDS = (1, 2)  # of ggml_backend_dev_type@0.3.36
_ANSWER_TIMEOUT_S = 10.0


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


def ggml_gpus(
    *, with_links: bool = False, known_speeds: Mapping[str, DeviceSpeed] | None = None
) -> Iterator[ListedGpu]:
    """Yield every GPU in the order of ggml and llama.cpp.

    Measures the way to those of other machines `with_links`, and the speed of each whose key `known_speeds` lacks,
    unless that is None.
    """
    read = ggml_function("ggml_backend_dev_get_props", None, c_void_p, ctypes.POINTER(_Properties))
    for address in _gpus():
        properties = _Properties()
        read(address, ctypes.byref(properties))
        gpu = _listed(properties)
        if with_links and gpu.name.startswith(_REMOTE):
            latency_s, bytes_per_s = measure_rpc_link(address)
            gpu = replace(gpu, link_latency_s=latency_s, link_bytes_per_s=bytes_per_s)
        if known_speeds is not None:
            gpu = replace(gpu, speed=known_speeds.get(gpu.key) or measure_speed(address, gpu.free_bytes))
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


def add_rpc_servers(endpoints: Sequence[str], timeout_s: float = _ANSWER_TIMEOUT_S) -> None:
    """Add the devices of the servers at `endpoints`, each host:port, to ggml's list, in this order.

    Raises EngineError for a build without RPC and for a server without devices.
    """
    for endpoint in endpoints:
        watchdog = threading.Timer(timeout_s, _give_up, [endpoint])
        watchdog.daemon = True
        watchdog.start()
        _add(endpoint)
        watchdog.cancel()


def rpc_function(name: str) -> Any:
    """Return a function of the RPC backend from its registry; the library's path differs by system.

    Raises EngineError if this build has none.
    """
    by_name = ggml_function("ggml_backend_reg_by_name", c_void_p, c_char_p)
    registry = by_name(b"RPC") if lib.llama_supports_rpc() else None
    if not registry:
        raise EngineError("This build of llama.cpp has no RPC.", "Install one that is built with -DGGML_RPC=on.")
    return ggml_function("ggml_backend_reg_get_proc_address", c_void_p, c_void_p, c_char_p)(registry, name.encode())


def _add(endpoint: str) -> None:
    add = ctypes.CFUNCTYPE(c_void_p, c_char_p)(rpc_function("ggml_backend_rpc_add_server"))
    registry = add(endpoint.encode())
    if not registry:
        raise EngineError(f"The RPC server {endpoint} has no device.", "See the server's log.")
    ggml_function("ggml_backend_register", None, c_void_p)(registry)


def _give_up(endpoint: str) -> None:
    print(f"The RPC server {endpoint} does not answer: it serves one program at a time", file=sys.stderr, flush=True)
    os._exit(1)
