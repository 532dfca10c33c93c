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
from ctypes import c_char_p, c_size_t, c_void_p
from typing import Any

from app.engine.llama.native import ggml_function, lib
from quantizer.errors import EngineError

__all__ = ["add_rpc_servers", "measure_rpc_link", "rpc_function"]

ANSWER_TIMEOUT_S = 10.0
_TYPE_I8 = 24  # GGML_TYPE_I8@0.3.36
_N_BYTES = 4 << 20  # 34 ms on a link of a gigabit; llama.cpp sends no more than a hash of 10 MiB and above
_N_REPEATS = 5


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


class _InitParams(ctypes.Structure):
    """ggml_init_params@0.3.36."""

    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


def measure_rpc_link(device: int) -> tuple[float, float]:
    """Return the seconds of a round trip to the native `device` with few bytes, and its bytes a second with many.

    Each is the best of several tries. Raises EngineError without memory there.
    """
    with ExitStack() as owned:
        tensor = _tensor_on(device, owned)
        data = ctypes.create_string_buffer(_N_BYTES)
        ggml_function("ggml_backend_tensor_set", None, c_void_p, c_void_p, c_size_t, c_size_t)(
            tensor, data, 0, _N_BYTES
        )
        latency_s, whole_s = (_read_s(tensor, data, n_bytes) for n_bytes in (1, _N_BYTES))
    return latency_s, _N_BYTES / max(whole_s - latency_s, 1e-9)


def _tensor_on(device: int, owned: ExitStack) -> int:
    """Return a tensor of bytes in memory of `device`; `owned` frees both."""
    memory_type = ggml_function("ggml_backend_dev_buffer_type", c_void_p, c_void_p)(device)
    buffer = ggml_function("ggml_backend_buft_alloc_buffer", c_void_p, c_void_p, c_size_t)(memory_type, _N_BYTES)
    if not buffer:
        raise EngineError("A device has too little memory for measuring its bandwidth.", "Free memory there.")
    owned.callback(ggml_function("ggml_backend_buffer_free", None, c_void_p), buffer)
    context = ggml_function("ggml_init", c_void_p, _InitParams)(_InitParams(1 << 16, None, True))
    owned.callback(ggml_function("ggml_free", None, c_void_p), context)
    new_tensor = ggml_function("ggml_new_tensor_1d", c_void_p, c_void_p, ctypes.c_int, ctypes.c_int64)
    tensor: int = new_tensor(context, _TYPE_I8, _N_BYTES)
    base = ggml_function("ggml_backend_buffer_get_base", c_void_p, c_void_p)(buffer)
    ggml_function("ggml_backend_tensor_alloc", ctypes.c_int, c_void_p, c_void_p, c_void_p)(buffer, tensor, base)
    return tensor


def _read_s(tensor: int, into: ctypes.Array[ctypes.c_char], n_bytes: int) -> float:
    """Return the seconds of reading `n_bytes`."""
    read = ggml_function("ggml_backend_tensor_get", None, c_void_p, c_void_p, c_size_t, c_size_t)
    times_s = []
    for _ in range(_N_REPEATS):
        started_s = time.perf_counter()
        read(tensor, into, 0, n_bytes)
        times_s.append(time.perf_counter() - started_s)
    return min(times_s)
