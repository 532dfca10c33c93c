"""Devices of other machines: adding servers of llama.cpp's RPC backend, and measuring their bandwidth.

Added devices are GPUs like others. A server serves one program at a time and a busy one never answers, so this process
exits after a timeout. Independent of what the devices are used for.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from app.engine.llama.native import ggml_function, lib
from quantizer.errors import EngineError

__all__ = ["RpcBandwidth", "add_rpc_servers", "measure_rpc_bandwidth", "rpc_function"]

ANSWER_TIMEOUT_S = 10.0


def add_rpc_servers(endpoints: Sequence[str], timeout_s: float = ANSWER_TIMEOUT_S) -> None:
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
    by_name, address = ggml_function("ggml_backend_reg_by_name"), ggml_function("ggml_backend_reg_get_proc_address")
    by_name.restype, by_name.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    address.restype, address.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
    registry = by_name(b"RPC") if lib.llama_supports_rpc() else None
    if not registry:
        raise EngineError("This build of llama.cpp has no RPC.", "Install one that is built with -DGGML_RPC=on.")
    return address(registry, name.encode())


def _add(endpoint: str) -> None:
    add = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(rpc_function("ggml_backend_rpc_add_server"))
    register = ggml_function("ggml_backend_register")
    register.restype, register.argtypes = None, [ctypes.c_void_p]
    registry = add(endpoint.encode())
    if not registry:
        raise EngineError(f"The RPC server {endpoint} has no device.", "See the server's log.")
    register(registry)


def _give_up(endpoint: str) -> None:
    print(f"The RPC server {endpoint} does not answer: it serves one program at a time", file=sys.stderr, flush=True)
    os._exit(1)


_TYPE_I8 = 24  # GGML_TYPE_I8@0.3.36
_N_BYTES = 4 << 20  # 34 ms on a link of a gigabit; llama.cpp sends no more than a hash of 10 MiB and above
_N_REPEATS = 5


@dataclass(frozen=True, slots=True)
class RpcBandwidth:
    """Seconds of a round trip with few bytes, and bytes a second of many."""

    latency_s: float
    bytes_per_s: float


class _InitParams(ctypes.Structure):
    """ggml_init_params@0.3.36."""

    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


def measure_rpc_bandwidth(device: int) -> RpcBandwidth:
    """Measure the connection to the native `device`, best of several tries. Raises EngineError without memory there."""
    with ExitStack() as owned:
        tensor = _tensor_on(device, owned)
        there = ctypes.create_string_buffer(_N_BYTES)
        _call("ggml_backend_tensor_set", None, tensor, there, _size(0), _size(_N_BYTES))
        latency_s, whole_s = (_get_s(tensor, there, n_bytes) for n_bytes in (1, _N_BYTES))
    return RpcBandwidth(latency_s, _N_BYTES / max(whole_s - latency_s, 1e-9))


def _tensor_on(device: int, owned: ExitStack) -> ctypes.c_void_p:
    """Return a tensor of bytes in memory of `device`; `owned` frees both."""
    memory_type = _call("ggml_backend_dev_buffer_type", ctypes.c_void_p, ctypes.c_void_p(device))
    buffer = _call("ggml_backend_buft_alloc_buffer", ctypes.c_void_p, ctypes.c_void_p(memory_type), _size(_N_BYTES))
    if not buffer:
        raise EngineError("A device has too little memory for measuring its bandwidth.", "Free memory there.")
    owned.callback(_call, "ggml_backend_buffer_free", None, ctypes.c_void_p(buffer))
    context = _call("ggml_init", ctypes.c_void_p, _InitParams(1 << 16, None, True))
    owned.callback(_call, "ggml_free", None, ctypes.c_void_p(context))
    tensor = _call("ggml_new_tensor_1d", ctypes.c_void_p, ctypes.c_void_p(context), _TYPE_I8, ctypes.c_int64(_N_BYTES))
    base = _call("ggml_backend_buffer_get_base", ctypes.c_void_p, ctypes.c_void_p(buffer))
    pointer = ctypes.c_void_p(tensor)
    _call("ggml_backend_tensor_alloc", ctypes.c_int, ctypes.c_void_p(buffer), pointer, ctypes.c_void_p(base))
    return pointer


def _get_s(tensor: ctypes.c_void_p, into: ctypes.Array[ctypes.c_char], n_bytes: int) -> float:
    """Return the seconds of reading `n_bytes`."""
    times_s = []
    for _ in range(_N_REPEATS):
        begun_s = time.perf_counter()
        _call("ggml_backend_tensor_get", None, tensor, into, _size(0), _size(n_bytes))
        times_s.append(time.perf_counter() - begun_s)
    return min(times_s)


def _call(name: str, result: type | None, *arguments: object) -> int:
    function = ggml_function(name)
    function.restype = result
    value: int = function(*arguments)
    return value


def _size(value: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(value)
