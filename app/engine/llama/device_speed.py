"""How fast a device of ggml is: reading weights, multiplying matrices, and the way to it from here.

Owns the measurements, through ggml's own products, so that whatever a backend does well or badly is in the figure.
Takes a device by its native address; knows nothing of models, and of what the figures are for. A driver may crash:
call this in a child process.
"""

from __future__ import annotations

import ctypes
import time
import timeit
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from ctypes import c_bool, c_char_p, c_int, c_int64, c_size_t, c_uint8, c_void_p
from functools import partial

from app.engine.llama.native import ggml_function
from offload.devices.cpu_load import others_share, read_cpu_times
from offload.devices.machine import DeviceSpeed
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


class _InitParams(ctypes.Structure):
    """ggml_init_params@0.3.36."""

    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


def measure_speed(device: int, free_bytes: int, clock: Callable[[], float] = time.perf_counter) -> DeviceSpeed | None:
    """Return what the native `device`, with `free_bytes` of memory, reads and computes, in about a second.

    Reading: the products of one vector with 256 MiB of matrices, or with a quarter of its memory. Computing: one such
    matrix with 512 vectors. The best of a few passes counts. None for a device with too little memory, whatever it
    reports, for one that has no such product, and for one that fails: loading onto it says why.
    """
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
        n_matrices = max(1, weight_bytes // _row_bytes(weight_type, _N_COLUMNS) // _N_ROWS)
        self._context = _new_context(2 * n_matrices + 3, 2, owned)
        matrices = [_new_matrix(self._context, weight_type, _N_COLUMNS, _N_ROWS) for _ in range(n_matrices)]
        token, prompt = (_new_matrix(self._context, _F32, _N_COLUMNS, n) for n in (1, _N_PROMPT_TOKENS))
        self._reading = [_product(self._context, matrix, token) for matrix in matrices]
        self._computing = [_product(self._context, matrices[0], prompt)]
        self._n_bytes = sum(map(ggml_function("ggml_nbytes", c_size_t, c_void_p), matrices))

    def are_supported(self, device: int) -> bool:
        supports = ggml_function("ggml_backend_dev_supports_op", c_bool, c_void_p, c_void_p)
        return all(supports(device, product) for product in (self._reading[0], self._computing[0]))

    def measure(self, device: int, owned: ExitStack, clock: Callable[[], float]) -> DeviceSpeed:
        """Allocate all on `device` and time both graphs. Raises EngineError where the device fails."""
        backend = ggml_function("ggml_backend_dev_init", c_void_p, c_void_p, c_char_p)(device, None)
        if not backend:
            raise EngineError("A device cannot be used.", "See `localllm doctor`, or set gpu to false.")
        owned.callback(ggml_function("ggml_backend_free", None, c_void_p), backend)
        _allocate(self._context, device, owned)
        before = read_cpu_times()
        reading_s, computing_s = (
            _best_s(partial(_compute, backend, _new_graph(self._context, products)), clock)
            for products in (self._reading, self._computing)
        )
        return DeviceSpeed(
            bytes_per_s=self._n_bytes / reading_s,
            operations_per_s=2 * _N_COLUMNS * _N_ROWS * _N_PROMPT_TOKENS / computing_s,
            others_share=others_share(before, read_cpu_times()),
        )


def _best_s(run: Callable[[], None], clock: Callable[[], float]) -> float:
    """Return the seconds of the best pass after a first one, of as many as the time allows."""
    run()
    times_s: list[float] = []
    while not times_s or (len(times_s) < _N_PASSES and sum(times_s) < _MOST_S):
        begun_s = clock()
        run()
        times_s.append(max(clock() - begun_s, 1e-9))
    return min(times_s)


def _compute(backend: int, graph: int) -> None:
    status = ggml_function("ggml_backend_graph_compute", c_int, c_void_p, c_void_p)(backend, graph)
    if status:
        raise EngineError(f"A device failed to compute a product: status {status}.", "Update its driver.")


def _new_context(n_tensors: int, n_graphs: int, owned: ExitStack) -> int:
    """Return a context of ggml for the descriptions of so many tensors and graphs; `owned` frees it."""
    tensor_bytes = ggml_function("ggml_tensor_overhead", c_size_t)()
    graph_bytes = ggml_function("ggml_graph_overhead", c_size_t)()
    size = n_tensors * tensor_bytes + n_graphs * graph_bytes
    context: int = ggml_function("ggml_init", c_void_p, _InitParams)(_InitParams(size, None, True))
    owned.callback(ggml_function("ggml_free", None, c_void_p), context)
    return context


def _new_matrix(context: int, type_id: int, n_columns: int, n_rows: int) -> int:
    new = ggml_function("ggml_new_tensor_2d", c_void_p, c_void_p, c_int, c_int64, c_int64)
    tensor: int = new(context, type_id, n_columns, n_rows)
    return tensor


def _product(context: int, matrix: int, vectors: int) -> int:
    tensor: int = ggml_function("ggml_mul_mat", c_void_p, c_void_p, c_void_p, c_void_p)(context, matrix, vectors)
    return tensor


def _new_graph(context: int, products: Sequence[int]) -> int:
    graph: int = ggml_function("ggml_new_graph", c_void_p, c_void_p)(context)
    expand = ggml_function("ggml_build_forward_expand", None, c_void_p, c_void_p)
    for product in products:
        expand(graph, product)
    return graph


def _row_bytes(type_id: int, n_columns: int) -> int:
    n_bytes: int = ggml_function("ggml_row_size", c_size_t, c_int, c_int64)(type_id, n_columns)
    return n_bytes


def _allocate(context: int, device: int, owned: ExitStack) -> None:
    """Give all tensors of `context` memory on `device`, filled; `owned` frees it. Raises EngineError without memory."""
    memory_type = ggml_function("ggml_backend_dev_buffer_type", c_void_p, c_void_p)(device)
    allocate = ggml_function("ggml_backend_alloc_ctx_tensors_from_buft", c_void_p, c_void_p, c_void_p)
    buffer = allocate(context, memory_type)
    if not buffer:
        raise EngineError("A device has too little memory for measuring its speed.", "Free memory there.")
    owned.callback(ggml_function("ggml_backend_buffer_free", None, c_void_p), buffer)
    ggml_function("ggml_backend_buffer_clear", None, c_void_p, c_uint8)(buffer, _BYTE)


def measure_rpc_link(device: int) -> tuple[float, float]:
    """Return the seconds of a round trip to the native `device` with few bytes, and its bytes a second with many.

    Each is the best of several tries. Raises EngineError without memory there.
    """
    with ExitStack() as owned:
        context = _new_context(1, 0, owned)
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
