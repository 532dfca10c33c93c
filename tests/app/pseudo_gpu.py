"""A pseudo-GPU: the processor behind llama.cpp's RPC, in a process of its own that may be allowed little memory.

`let_fetch` makes one compute prompts with weights of the processor's memory, as GPUs of this machine do.

Run: `python pseudo_gpu.py PORT [MOST_BYTES]`.
"""

from __future__ import annotations

import ctypes
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.patience import PATIENCE_S

__all__ = ["free_ports", "let_fetch", "pseudo_gpus"]


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on just now."""
    with ExitStack() as owned:
        sockets = [owned.enter_context(socket.socket()) for _ in range(count)]
        for probe in sockets:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in sockets]


@contextmanager
def pseudo_gpus(ports: list[int], most_bytes: int = 0) -> Iterator[list[str]]:
    """Serve one device on each port and give the endpoints; each process may take `most_bytes`, 0 for any."""
    command = [sys.executable, __file__]
    servers = [
        subprocess.Popen([*command, str(port), str(most_bytes)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for port in ports
    ]
    try:
        for port in ports:
            _wait_for(port)
        yield [f"127.0.0.1:{port}" for port in ports]
    finally:
        for server in servers:
            server.kill()
            server.wait()


_OFFLOAD_OP = 11  # the place of `offload_op` in ggml_backend_device_i@0.3.36, ggml/src/ggml-backend-impl.h
_LEAST_BATCH = 32  # `op_offload_min_batch_size` of CUDA, Vulkan and Metal
_kept: list[object] = []  # callbacks must exist as long as the devices, which is as long as this process


def let_fetch(names: Iterable[str]) -> None:
    """Let the devices called `names` take operations on many tokens whose weights lie in the processor's memory, as
    `ggml_backend_cuda_device_offload_op` does: RPC has no such function."""
    from app.engine.llama.devices import gpu_address
    from app.engine.llama.eval_callback import Tensor, ggml_ops

    numbers = ggml_ops("GET_ROWS", "MUL_MAT", "MUL_MAT_ID", "ROPE")

    def wants(_device: int, address: int) -> bool:
        tensor = ctypes.cast(address, ctypes.POINTER(Tensor)).contents
        if tensor.op == numbers["GET_ROWS"]:
            return False
        if tensor.op == numbers["MUL_MAT"]:
            return bool(tensor.ne[1] >= _LEAST_BATCH)
        if tensor.op in (numbers["MUL_MAT_ID"], numbers["ROPE"]):
            return bool(tensor.ne[2] >= _LEAST_BATCH)
        return bool(tensor.ne[1] * tensor.ne[2] * tensor.ne[3] >= _LEAST_BATCH)

    callback = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p)(wants)
    _kept.append(callback)
    for name in names:
        functions = ctypes.cast(gpu_address(name), ctypes.POINTER(ctypes.c_void_p))
        functions[_OFFLOAD_OP] = ctypes.cast(callback, ctypes.c_void_p)


def _wait_for(port: int) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"nothing listens on {port}")


def serve(port: int, most_bytes: int) -> None:
    from app.engine.llama.devices import rpc_function
    from app.engine.llama.native import ggml_function, lib

    lib.llama_backend_init()
    by_type = ggml_function("ggml_backend_dev_by_type")
    by_type.restype, by_type.argtypes = ctypes.c_void_p, [ctypes.c_int]
    arguments = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p)
    start = ctypes.CFUNCTYPE(None, *arguments)(rpc_function("ggml_backend_rpc_start_server"))
    devices = (ctypes.c_void_p * 1)(by_type(0))
    if most_bytes:
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + most_bytes,) * 2)
    start(f"127.0.0.1:{port}".encode(), None, 1, 1, devices)


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
