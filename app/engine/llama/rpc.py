"""Devices of other machines: servers of llama.cpp's RPC backend, whose devices are GPUs like others once added.

Owns adding them. A server answers one program at a time: a busy one would be waited for without end, so this process
ends instead. Knows nothing of what the devices are used for.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

from app.engine.llama.native import ggml_function, lib
from quantizer.errors import EngineError

__all__ = ["add_rpc_servers", "rpc_function"]

ANSWER_TIMEOUT_S = 10.0


def add_rpc_servers(endpoints: Sequence[str], timeout_s: float = ANSWER_TIMEOUT_S) -> None:
    """Make ggml list the devices of the servers at `endpoints`, each host:port, behind its own, in this order.

    Raises EngineError for a build without RPC and for a server that has no device.
    """
    for endpoint in endpoints:
        watchdog = threading.Timer(timeout_s, _give_up, [endpoint])
        watchdog.daemon = True
        watchdog.start()
        _add(endpoint)
        watchdog.cancel()


def rpc_function(name: str) -> Any:
    """Return a function of the RPC backend, by way of its registry: libraries lie elsewhere on every system.

    Raises EngineError where this build has none.
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
        raise EngineError(f"The RPC server {endpoint} has no device.", "See what it says at its start.")
    register(registry)


def _give_up(endpoint: str) -> None:
    print(f"The RPC server {endpoint} does not answer: it serves one program at a time", file=sys.stderr, flush=True)
    os._exit(1)
