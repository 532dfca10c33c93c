"""The GPUs that ggml lists, also those of llama.cpp's RPC servers: how fast they are, and the buffers on them.

Speed is measured by ggml's own matrix products, so that whatever a backend does well or badly is in the figure. Loading
a driver may crash the process: call this in a child process. An RPC server serves one program at a time and a busy one
never answers, so this process exits after a timeout.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
import time
import timeit
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from ctypes import c_bool, c_char_p, c_int, c_int64, c_size_t, c_uint8, c_void_p
from dataclasses import replace
from functools import partial
from typing import Any

from app.engine.llama.native import Buffer, ggml_function, lib, registered_address
from offload.devices.gpus import ListedGpu
from offload.devices.host import others_share, read_cpu_times
from offload.devices.machine import HOST_NAME, DeviceSpeed
from offload.placement.load_parameters import DeviceUsage
from quantizer.system.errors import EngineError

# ggml_type@0.3.36. Weights are read as most models have them, and as F16 by a device that has no product for those.
_F32, _I8, _WEIGHT_TYPES = 0, 24, (12, 1)
_N_COLUMNS = _N_ROWS = 4096  # of a matrix: 9 MB of Q4_K
_WEIGHT_BYTES = 256 << 20  # larger than the caches of any GPU
_LEAST_WEIGHT_BYTES = 32 << 20
_MEMORY_SHARE = 4  # a quarter of what is free at most
_N_PROMPT_TOKENS = 512
_BYTE = 0x3C  # of all weights and inputs: as F16, F32 and scales of Q4_K these are small ordinary numbers
_N_PASSES = 5
_MOST_S = 0.4  # of the passes of a graph; what the first pass compiles is not counted
_LINK_BYTES = 4 << 20  # 34 ms on a link of a gigabit; llama.cpp sends no more than a hash of 10 MiB and above
_N_REPEATS = 5
_FIELDS = {"model": "weight_bytes", "KV": "cache_bytes", "RS": "cache_bytes", "compute": "compute_bytes"}
_REMOTE = "RPC"
_DISCRETE, _INTEGRATED = _GPU_KINDS = (1, 2)  # of ggml_backend_dev_type@0.3.36
_ANSWER_TIMEOUT_S = 10.0


class InitParams(ctypes.Structure):
    """ggml_init_params@0.3.36."""

    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


def measure_speed(device: int, free_bytes: int, clock: Callable[[], float] = time.perf_counter) -> DeviceSpeed | None:
    """Return how fast the native `device` with `free_bytes` reads weights and multiplies matrices, in about a second.
    Reading: the products of one vector with 256 MiB of matrices, or with a quarter of its memory. Computing: one such
    matrix with 512 vectors. The best of a few passes counts. None for a device with too little memory, without such
    products, or that fails: loading a model onto it reports the cause."""
    weight_bytes = min(_WEIGHT_BYTES, free_bytes // _MEMORY_SHARE)
    if weight_bytes < _LEAST_WEIGHT_BYTES:
        return None
    with ExitStack() as owned, suppress(EngineError):
        for weight_type in _WEIGHT_TYPES:
            products = _Products(weight_type, weight_bytes, owned)
            if products.are_supported(device):
                return products.measure(device, owned, clock)
    return None


class _Products:
    """Matrices of one type, and the graphs of their products with one vector and with many; nothing is allocated."""

    def __init__(self, weight_type: int, weight_bytes: int, owned: ExitStack) -> None:
        row_bytes = ggml_function("ggml_row_size", c_size_t, c_int, c_int64)(weight_type, _N_COLUMNS)
        n_matrices = max(1, weight_bytes // row_bytes // _N_ROWS)
        self._context = new_context(2 * n_matrices + 3, 2, owned)
        new_matrix = ggml_function("ggml_new_tensor_2d", c_void_p, c_void_p, c_int, c_int64, c_int64)
        multiply = ggml_function("ggml_mul_mat", c_void_p, c_void_p, c_void_p, c_void_p)
        matrices = [new_matrix(self._context, weight_type, _N_COLUMNS, _N_ROWS) for _ in range(n_matrices)]
        token, prompt = (new_matrix(self._context, _F32, _N_COLUMNS, n) for n in (1, _N_PROMPT_TOKENS))
        self._reading = [multiply(self._context, matrix, token) for matrix in matrices]
        self._computing = [multiply(self._context, matrices[0], prompt)]
        self._n_bytes = sum(map(ggml_function("ggml_nbytes", c_size_t, c_void_p), matrices))

    def are_supported(self, device: int) -> bool:
        supports = ggml_function("ggml_backend_dev_supports_op", c_bool, c_void_p, c_void_p)
        return all(supports(device, product) for product in (self._reading[0], self._computing[0]))

    def measure(self, device: int, owned: ExitStack, clock: Callable[[], float]) -> DeviceSpeed:
        """Allocate all on `device` and time both graphs. Raises EngineError where the device fails."""
        backend = ggml_function("ggml_backend_dev_init", c_void_p, c_void_p, c_char_p)(device, None)
        if not backend:
            name = _name(device)
            raise EngineError(f"{name} could not be opened.", "See `localllm doctor`, or set gpu to false.")
        owned.callback(ggml_function("ggml_backend_free", None, c_void_p), backend)
        _allocate(self._context, device, owned)
        before = read_cpu_times()
        new_graph = ggml_function("ggml_new_graph", c_void_p, c_void_p)
        reading_s, computing_s = (
            best_pass_s(new_graph(self._context), each, backend, clock, n_passes=_N_PASSES, most_s=_MOST_S)
            for each in (self._reading, self._computing)
        )
        return DeviceSpeed(
            bytes_per_s=self._n_bytes / reading_s,
            operations_per_s=2 * _N_COLUMNS * _N_ROWS * _N_PROMPT_TOKENS / computing_s,
            others_share=others_share(before, read_cpu_times()),
        )


def best_pass_s(
    graph: int,
    outputs: Sequence[int],
    backend: int,
    clock: Callable[[], float],
    *,
    n_passes: int,
    most_s: float,
    slow_s: float = math.inf,
) -> float:
    """Return the seconds of the best pass over the empty `graph` with `outputs`, of at most `n_passes` that take
    `most_s` together, after one that does not count unless it takes more than `slow_s`. Raises EngineError where the
    device fails."""
    expand = ggml_function("ggml_build_forward_expand", None, c_void_p, c_void_p)
    for output in outputs:
        expand(graph, output)
    compute = ggml_function("ggml_backend_graph_compute", c_int, c_void_p, c_void_p)
    times_s: list[float] = []
    while len(times_s) < 2 or (len(times_s) <= n_passes and sum(times_s[1:]) < most_s):
        begun_s = clock()
        if status := compute(backend, graph):
            raise EngineError(f"A device failed to multiply matrices (status {status}).", "Update its driver.")
        times_s.append(max(clock() - begun_s, 1e-9))
        if times_s[0] > slow_s:
            return times_s[0]
    return min(times_s[1:])


def new_context(n_tensors: int, n_graphs: int, owned: ExitStack) -> int:
    """Return a context of ggml for the descriptions of so many tensors and graphs; `owned` frees it."""
    tensor_bytes = ggml_function("ggml_tensor_overhead", c_size_t)()
    graph_bytes = ggml_function("ggml_graph_overhead", c_size_t)()
    size = n_tensors * tensor_bytes + n_graphs * graph_bytes
    context: int = ggml_function("ggml_init", c_void_p, InitParams)(InitParams(size, None, True))
    owned.callback(ggml_function("ggml_free", None, c_void_p), context)
    return context


def allocated(context: int, buffer_type: int, owned: ExitStack) -> int | None:
    """Give all tensors of `context` memory of `buffer_type`, which `owned` frees; return the buffer, None without
    memory."""
    allocate = ggml_function("ggml_backend_alloc_ctx_tensors_from_buft", c_void_p, c_void_p, c_void_p)
    buffer: int | None = allocate(context, buffer_type)
    if buffer:
        owned.callback(ggml_function("ggml_backend_buffer_free", None, c_void_p), buffer)
    return buffer


def _allocate(context: int, device: int, owned: ExitStack) -> None:
    """Give all tensors of `context` memory on `device`, filled; `owned` frees it. Raises EngineError without memory."""
    memory_type = ggml_function("ggml_backend_dev_buffer_type", c_void_p, c_void_p)(device)
    buffer = allocated(context, memory_type, owned)
    if not buffer:
        raise EngineError(f"{_name(device)} has too little memory to measure its speed.", "Free memory there.")
    ggml_function("ggml_backend_buffer_clear", None, c_void_p, c_uint8)(buffer, _BYTE)


def measure_rpc_link(device: int) -> tuple[float, float]:
    """Return the seconds of a round trip to the native `device` with few bytes, and its bytes a second with many. Each
    is the best of several tries. Raises EngineError without memory there."""
    with ExitStack() as owned:
        context = new_context(1, 0, owned)
        new_tensor = ggml_function("ggml_new_tensor_1d", c_void_p, c_void_p, c_int, c_int64)
        tensor = new_tensor(context, _I8, _LINK_BYTES)
        _allocate(context, device, owned)
        data = ctypes.create_string_buffer(_LINK_BYTES)
        access = (c_void_p, c_void_p, c_size_t, c_size_t)
        ggml_function("ggml_backend_tensor_set", None, *access)(tensor, data, 0, _LINK_BYTES)
        read = ggml_function("ggml_backend_tensor_get", None, *access)
        latency_s, whole_s = (
            min(timeit.repeat(partial(read, tensor, data, 0, n_bytes), number=1, repeat=_N_REPEATS))
            for n_bytes in (1, _LINK_BYTES)
        )
    return latency_s, _LINK_BYTES / max(whole_s - latency_s, 1e-9)


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
    """Yield every GPU in the order of ggml and llama.cpp. Measures the network to those of other machines `with_links`,
    and the speed of each whose key `known_speeds` lacks, unless that is None."""
    read = ggml_function("ggml_backend_dev_get_props", None, c_void_p, ctypes.POINTER(_Properties))
    for address in _gpus():
        properties = _Properties()
        read(address, ctypes.byref(properties))
        gpu = ListedGpu(
            name=_text(properties.name),
            description=_text(properties.description),
            is_integrated=properties.type == _INTEGRATED,
            free_bytes=properties.memory_free,
            total_bytes=properties.memory_total,
            address=_text(properties.device_id),
        )
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
    cause = f"The device {name} of the plan no longer exists."
    raise EngineError(cause, "See `localllm doctor` for the available devices, and load again.")


def buffer_bytes_by_device(buffers: Iterable[Buffer]) -> dict[str, DeviceUsage]:
    """Return what each device holds with these `buffers`, by its name; buffers of no GPU are the processor's."""
    type_of = ggml_function("ggml_backend_dev_buffer_type", c_void_p, c_void_p)
    name_of = ggml_function("ggml_backend_buft_name", c_char_p, c_void_p)
    names = {_text(name_of(type_of(address))): _name(address) for address in _gpus()}
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


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "replace")


def add_rpc_servers(endpoints: Sequence[str], timeout_s: float = _ANSWER_TIMEOUT_S) -> None:
    """Add the devices of the servers at `endpoints`, each host:port, to ggml's list, in this order. Raises EngineError
    for a build without RPC and for a server without devices."""
    for endpoint in endpoints:
        # ggml_backend_rpc_add_server (0.3.36) has no timeout, and a thread inside of it cannot be ended.
        watchdog = threading.Timer(timeout_s, _give_up, [endpoint])
        watchdog.daemon = True
        watchdog.start()
        try:
            add = ctypes.CFUNCTYPE(c_void_p, c_char_p)(rpc_function("ggml_backend_rpc_add_server"))
            if not (registry := add(endpoint.encode())):
                raise EngineError(f"The RPC server {endpoint} has no device.", "See the server's log.")
            ggml_function("ggml_backend_register", None, c_void_p)(registry)
        finally:
            watchdog.cancel()


def rpc_function(name: str) -> Any:
    """Return a function of the RPC backend, by its registry, since the library's path differs by system. Raises
    EngineError if this build has none."""
    by_name = ggml_function("ggml_backend_reg_by_name", c_void_p, c_char_p)
    registry = by_name(b"RPC") if lib.llama_supports_rpc() else None
    if not registry:
        raise EngineError("This build of llama.cpp has no RPC.", "Install one that is built with -DGGML_RPC=on.")
    return registered_address(registry, name)


def _give_up(endpoint: str) -> None:
    print(f"The RPC server {endpoint} does not answer: it serves one program at a time", file=sys.stderr, flush=True)
    os._exit(1)
