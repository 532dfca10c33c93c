"""What a device takes for weights of each type, by ggml's own products on matrices of the size of real layers.

Each type is measured as the file has it and, on the processor, in the extra buffer type that llama.cpp would repack it
into. Repacked weights crash where the build is faulty (`app.engine.load.self_test`): call this in a child process.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from ctypes import c_bool, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from functools import partial
from statistics import fmean
from typing import NamedTuple

import numpy as np

from app.engine.llama.devices import InitParams, allocated, best_pass_s, new_context
from app.engine.llama.eval_callback import Tensor
from app.engine.llama.native import cpu_device, ggml_function, mark_as_weights, registered_address
from app.engine.llama.step_weights import allow_tiles, extra_buffer_types
from offload.speed.cost_model import element_unit, prompt_attention_unit
from offload.speed.type_costs import (
    N_FEW,
    N_MANY,
    N_STEP,
    TILED_FROM,
    TILED_TYPES,
    UNCACHED_BYTES,
    GraphCost,
    ProductCost,
    TypeCost,
    is_repacked,
    kind_of,
    type_of,
)
from quantizer.gguf.tensor_types import WEIGHT_TYPES, TensorType, tensor_type_named
from quantizer.mix.type_rules import needs_imatrix
from quantizer.system.errors import EngineError
from quantizer.write.dtype_conversion import encode

Clock = Callable[[], float]

_F32, _F16, _I32, _I64 = 0, 1, 26, 27  # ggml_type@0.3.36
# Rows of 2,048 weights, and those of small models: 576 is no multiple of 256, so that other types have to serve it.
_LONG_ROW, _SHORT_ROWS = 2048, (576, 512)
_MATRIX_WEIGHTS = 1 << 20
_GPU_BYTES = 192 << 20  # beyond the caches of any
_N_DIFFERENT_ROWS = 8
# Where tiled kernels begin to pay is between these, and beyond the last they do for certain.
_TILED_COLUMNS, _TILED_FOR_CERTAIN = (TILED_FROM, 10, 12, 14), 16
_LEAST_SAVED = 0.03  # of the time of a product: less is within what measuring varies by
_N_COLUMNS = (N_FEW, N_MANY, *N_STEP)
_N_CACHED = 8  # products with one matrix after the other
_MOST_PASSES, _MOST_S, _SLOW_S = 6, 0.04, 0.1  # of one graph; of a slow one the first pass counts
_SPREAD = 0.02  # of weights, as in models


class _Case(NamedTuple):
    """A type in rows of `n_columns`, in the memory of `buffer_type`."""

    kind: TensorType
    n_columns: int
    buffer_type: int

    @property
    def n_rows(self) -> int:
        return _MATRIX_WEIGHTS // self.n_columns // _N_DIFFERENT_ROWS * _N_DIFFERENT_ROWS


class TypeBench:
    """Measures the native `device`, by default the processor, with `n_threads`; close it. Repacked weights are measured
    where `repacks`. Raises EngineError for a device that cannot be opened."""

    def __init__(
        self, n_threads: int, *, repacks: bool, device: int | None = None, clock: Clock = time.perf_counter
    ) -> None:
        self._owned = ExitStack()
        self._clock = clock
        self._device = cpu_device() if device is None else device
        self._is_host = device is None
        self._backend = ggml_function("ggml_backend_dev_init", c_void_p, c_void_p, c_char_p)(self._device, None)
        if not self._backend:
            raise EngineError("A device could not be opened to measure it.", "See `localllm doctor`.")
        self._owned.callback(ggml_function("ggml_backend_free", None, c_void_p), self._backend)
        self._memory: int = ggml_function("ggml_backend_dev_buffer_type", c_void_p, c_void_p)(self._device)
        self._extra = tuple(extra_buffer_types(self._device)) if self._is_host and repacks else ()
        if self._is_host:
            registry = ggml_function("ggml_backend_dev_backend_reg", c_void_p, c_void_p)(self._device)
            address = registered_address(registry, "ggml_backend_set_n_threads")
            assert address is not None, "every processor's backend has it"
            set_threads = ctypes.CFUNCTYPE(None, c_void_p, c_int)(address)
            set_threads(self._backend, n_threads)

    def close(self) -> None:
        self._owned.close()

    def kinds(self) -> Iterator[tuple[str, Callable[[], TypeCost | None]]]:
        """Yield each kind that may be measured, and what measures it; that returns None where it cannot be."""
        for entry in WEIGHT_TYPES.values():
            yield kind_of(entry.name, is_repacked=False), partial(self._cost, entry, self._memory)
            if self._extra:
                yield kind_of(entry.name, is_repacked=True), partial(self._repacked_cost, entry)

    def quick_cost(self, kind: str) -> TypeCost | None:
        """Return what a prompt takes with weights of `kind`, in a tenth of a second: of long rows only, and without
        what one token takes from memory. None where the device has no such product."""
        entry, buffer_types = tensor_type_named(type_of(kind)), self._extra if is_repacked(kind) else (self._memory,)
        n_weights = _LONG_ROW * _Case(entry, _LONG_ROW, 0).n_rows
        for buffer_type in buffer_types:
            if found := self._products(_Case(entry, _LONG_ROW, buffer_type), 0, (N_FEW, N_MANY)):
                one, cached, few, many = (ProductCost(seconds / n_weights, 0.0) for seconds in found)
                return TypeCost(one, cached, few, many)
        return None

    def tiled_from(self, type_name: str) -> int:
        """Return from how many rows on the processor multiplies weights of a type, as the file has them, faster by
        ggml's tiled kernels: TILED_FROM where it always does, or where there are none."""
        case = _Case(tensor_type_named(type_name), _LONG_ROW, self._memory)
        tiled = self._products(case, 0, _TILED_COLUMNS)
        plain = self._products(case, 0, _TILED_COLUMNS, is_tiled=False)
        if tiled is None or plain is None:
            return TILED_FROM
        rows = zip(_TILED_COLUMNS, tiled[2:], plain[2:], strict=True)
        pays = (n for n, tiled_s, plain_s in rows if plain_s > (1 - _LEAST_SAVED) * tiled_s)
        return next(pays, _TILED_FOR_CERTAIN)

    def _repacked_cost(self, entry: TensorType) -> TypeCost | None:
        # llama.cpp takes the first buffer type that has such a product
        return next((cost for buffer_type in self._extra if (cost := self._cost(entry, buffer_type))), None)

    def _cost(self, entry: TensorType, buffer_type: int) -> TypeCost | None:
        """Return the cost of a type: what it takes for long rows and short ones gives that of a weight and of a row."""
        short = next(n_columns for n_columns in _SHORT_ROWS if entry.fits(n_columns))
        cases = [_Case(entry, n_columns, buffer_type) for n_columns in (_LONG_ROW, short)]
        n_bytes = UNCACHED_BYTES if self._is_host else _GPU_BYTES
        found = [times for case in cases if (times := self._products(case, n_bytes))]
        if len(found) < len(cases):
            return None
        if self._is_host and buffer_type == self._memory and entry.name in TILED_TYPES:
            # a load leaves tiled kernels out of steps that are slower with them
            untiled = [self._products(case, 0, (TILED_FROM,), is_tiled=False) for case in cases]
            at = 2 + _N_COLUMNS.index(TILED_FROM)
            found = [
                (*times[:at], min(times[at], plain[-1]), *times[at + 1 :])
                for times, plain in zip(found, filter(None, untiled), strict=True)
            ]
        lines = zip(*found, strict=True)
        one, cached, few, many, *steps = (
            _line([(case.n_columns, case.n_rows, seconds) for case, seconds in zip(cases, times, strict=True)])
            for times in lines
        )
        return TypeCost(one, cached, few, many, steps=tuple(steps))

    def _products(
        self, case: _Case, n_bytes: int, columns: Sequence[int] = _N_COLUMNS, *, is_tiled: bool = True
    ) -> tuple[float, ...] | None:
        """Return the seconds of a product with one vector, from matrices of `n_bytes` and from caches, and for each of
        so many vectors at once as `columns` has; None where the device has no such product, or no memory for it."""
        kind, shape = case.kind, (case.n_columns, case.n_rows)
        n_matrices = max(1, -(-n_bytes // kind.tensor_bytes(shape)))
        with ExitStack() as owned:
            weights, values = new_context(n_matrices, 0, owned), new_context(n_matrices + _N_CACHED + 32, 0, owned)
            matrices = [_new(weights, kind.type_id, *shape) for _ in range(n_matrices)]
            if not (buffer := allocated(weights, case.buffer_type, owned)):
                return None
            mark_as_weights(buffer)
            inputs = {n: _new(values, _F32, case.n_columns, n) for n in (1, *columns)}
            several = {n: _multiply(values, matrices[0], inputs[n]) for n in columns}
            supports = ggml_function("ggml_backend_dev_supports_op", c_bool, c_void_p, c_void_p)
            if not supports(self._device, several[columns[0]]):
                return None
            from_memory = [_multiply(values, matrix, inputs[1]) for matrix in matrices]
            cached = [_multiply(values, matrices[0], inputs[1]) for _ in range(_N_CACHED)]
            if not supports(self._device, cached[0]) or not allocated(values, self._memory, owned):
                return None
            random = np.random.default_rng(1)
            rows = random.standard_normal((_N_DIFFERENT_ROWS, case.n_columns), np.float32) * np.float32(_SPREAD)
            weighing = [(slice(None), np.ones(case.n_columns, np.float32))] if needs_imatrix(kind) else None
            data = encode(rows, kind, kind.name, weighing) * (case.n_rows // _N_DIFFERENT_ROWS)
            for matrix in matrices:
                _write(matrix, data)
                if not is_tiled:
                    allow_tiles(Tensor.from_address(matrix), are_allowed=False)
            for n, tensor in inputs.items():
                _write(tensor, random.standard_normal(case.n_columns * n, np.float32).tobytes())
            return (
                self._seconds(from_memory) / n_matrices,
                self._seconds(cached) / _N_CACHED,
                *(self._seconds([product]) / n for n, product in several.items()),
            )

    def _seconds(self, outputs: Sequence[int]) -> float:
        """Return the seconds of the best pass over the graph of `outputs`."""
        n_nodes = 16 * len(outputs) + 256
        size = ggml_function("ggml_graph_overhead_custom", c_size_t, c_size_t, c_bool)(n_nodes, False)
        with ExitStack() as owned:
            context = ggml_function("ggml_init", c_void_p, InitParams)(InitParams(size + 4096, None, True))
            owned.callback(ggml_function("ggml_free", None, c_void_p), context)
            graph = ggml_function("ggml_new_graph_custom", c_void_p, c_void_p, c_size_t, c_bool)(
                context, n_nodes, False
            )
            return best_pass_s(
                graph, outputs, self._backend, self._clock, n_passes=_MOST_PASSES, most_s=_MOST_S, slow_s=_SLOW_S
            )

    def graph_cost(self) -> GraphCost:
        """Return what attention and the steps between products take on the processor."""
        prompt_s = {
            is_fused: fmean(
                self._attention(N_MANY, head, is_fused=is_fused)
                / N_MANY
                / prompt_attention_unit(_N_HEADS, _N_CELLS, 2 * head)
                for head in _HEADS
            )
            for is_fused in (False, True)
        }
        return GraphCost(
            attention=self._answer_attention(is_fused=False),
            fused_attention=self._answer_attention(is_fused=True),
            prompt_attention_s=prompt_s[False],
            fused_prompt_attention_s=prompt_s[True],
            element_s=self._layer(N_MANY) / N_MANY / element_unit(_LAYER_ELEMENTS),
            layer_s=self._layer(1),
        )

    def _answer_attention(self, *, is_fused: bool) -> ProductCost:
        n_scores = _N_HEADS * _N_CELLS
        points = [(2 * head, n_scores, self._attention(1, head, is_fused=is_fused)) for head in _HEADS]
        return _line(points)

    def _attention(self, n_tokens: int, head: int, *, is_fused: bool) -> float:
        """Return the seconds of attention of `n_tokens` over a cache of F16, as `build_attn_mha` of llama-graph.cpp
        has it: the heads of a key lie side by side, so those of one head are read in steps."""
        n_layers = _N_LAYERS if n_tokens == 1 else 1
        with ExitStack() as owned:
            context = new_context(16 * n_layers, 0, owned)
            mask = _new(context, _F16 if is_fused else _F32, _N_CELLS, n_tokens)
            outputs = []
            for _ in range(n_layers):
                query = _new(context, _F32, head, n_tokens, _N_HEADS)
                keys = _by_head(context, _new(context, _F16, head, _N_KV_HEADS, _N_CELLS))
                scale = 1 / float(np.sqrt(head))
                if is_fused:
                    values = _by_head(context, _new(context, _F16, head, _N_KV_HEADS, _N_CELLS))
                    outputs.append(_fused(context, query, keys, values, mask, scale))
                    continue
                values = _new(context, _F16, _N_CELLS, head, _N_KV_HEADS)
                scores = _soft_max(context, _multiply(context, keys, query), mask, scale)
                outputs.append(_multiply(context, values, scores))
            if not allocated(context, self._memory, owned):
                raise EngineError("There is too little memory to measure attention.", "Close other programs.")
            _fill(context)
            return self._seconds(outputs) / n_layers

    def _layer(self, n_tokens: int) -> float:
        """Return the seconds of the steps of a layer between its products. Those are there with next to no weights:
        each begins and ends with a wait of all threads."""
        n_layers = _N_LAYERS if n_tokens == 1 else 1
        with ExitStack() as owned:
            context = new_context(64 * n_layers, 0, owned)
            tiny = _new(context, _F32, _TINY, _TINY)
            one = _new(context, _F32, _TINY, 1)
            norm = _new(context, _F32, _WIDTH)
            positions = _new(context, _I32, n_tokens)
            rows = _new(context, _I64, n_tokens)
            outputs = []
            for _ in range(n_layers):
                state = _new(context, _F32, _WIDTH, n_tokens)
                query = _new(context, _F32, _HEAD, _WIDTH // _HEAD, n_tokens)
                key = _new(context, _F32, _HEAD, _KEY_WIDTH // _HEAD, n_tokens)
                cache = _new(context, _F16, _KEY_WIDTH, n_tokens)
                flat = _new(context, _F32, _KEY_WIDTH, n_tokens)
                gate, up = (_new(context, _F32, _INNER, n_tokens) for _ in range(2))
                outputs += [_binary("mul", context, _norm(context, state), norm) for _ in range(2)]
                outputs += [_rope(context, each, positions) for each in (query, key)]
                outputs += [_set_rows(context, cache, flat, rows) for _ in range(2)]
                outputs.append(_binary("swiglu_split", context, gate, up))
                outputs += [_binary("add", context, state, state) for _ in range(2)]
                outputs += [_multiply(context, tiny, one) for _ in range(_N_PRODUCTS)]
            if not allocated(context, self._memory, owned):
                raise EngineError("There is too little memory to measure the steps of a layer.", "Close programs.")
            _fill(context)
            return self._seconds(outputs) / n_layers


# A layer as models of half a billion weights have it.
_N_HEADS, _N_KV_HEADS, _HEADS, _N_CELLS, _N_LAYERS = 16, 8, (64, 128), 1024, 8
_HEAD, _WIDTH, _KEY_WIDTH, _INNER = 64, 1024, 512, 3072
_TINY = 32
_N_PRODUCTS = 9  # of a layer: q, k, v, its output, gate, up, down, and the two of attention
_LAYER_ELEMENTS = 3.5 * _WIDTH + 2 * _WIDTH + 2 * _KEY_WIDTH + 3 * _INNER  # as GraphShape.layer_elements counts them


def _line(points: Sequence[tuple[int, int, float]]) -> ProductCost:
    """Return the cost of a weight and of a row that explains two products, each of rows of so many weights, so many
    rows, and seconds; neither is below nothing."""
    (long, n_long, long_s), (short, n_short, short_s) = points
    weight_s = (long_s / n_long - short_s / n_short) / (long - short)
    row_s = long_s / n_long - weight_s * long
    if row_s < 0 or weight_s <= 0:  # what differs is noise: short rows took no longer
        return ProductCost((long_s + short_s) / (long * n_long + short * n_short), 0.0)
    return ProductCost(weight_s, row_s)


def _by_head(context: int, cached: int) -> int:
    """Return a view of `cached`, cells of heads, as heads of cells."""
    permute = ggml_function("ggml_permute", c_void_p, c_void_p, c_void_p, c_int, c_int, c_int, c_int)
    view: int = permute(context, cached, 0, 2, 1, 3)
    return view


def _new(context: int, type_id: int, *shape: int) -> int:
    names = ("ggml_new_tensor_1d", "ggml_new_tensor_2d", "ggml_new_tensor_3d")
    make = ggml_function(names[len(shape) - 1], c_void_p, c_void_p, c_int, *(c_int64 for _ in shape))
    tensor: int = make(context, type_id, *shape)
    return tensor


def _write(tensor: int, data: bytes) -> None:
    write = ggml_function("ggml_backend_tensor_set", None, c_void_p, c_char_p, c_size_t, c_size_t)
    write(tensor, data, 0, len(data))


def _fill(context: int) -> None:
    """Write zeros into all tensors of `context` that are inputs: none is an infinity, and indices are in range."""
    first = ggml_function("ggml_get_first_tensor", c_void_p, c_void_p)(context)
    following = ggml_function("ggml_get_next_tensor", c_void_p, c_void_p, c_void_p)
    size_of = ggml_function("ggml_nbytes", c_size_t, c_void_p)
    while first:
        _write(first, bytes(size_of(first)))
        first = following(context, first)


def _binary(name: str, context: int, *tensors: int) -> int:
    function = ggml_function(f"ggml_{name}", c_void_p, c_void_p, *(c_void_p for _ in tensors))
    result: int = function(context, *tensors)
    return result


def _multiply(context: int, matrix: int, columns: int) -> int:
    return _binary("mul_mat", context, matrix, columns)


def _set_rows(context: int, into: int, values: int, rows: int) -> int:
    return _binary("set_rows", context, into, values, rows)


def _norm(context: int, state: int) -> int:
    norm: int = ggml_function("ggml_rms_norm", c_void_p, c_void_p, c_void_p, c_float)(context, state, 1e-6)
    return norm


def _rope(context: int, heads: int, positions: int) -> int:
    rope = ggml_function("ggml_rope", c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_int)
    turned: int = rope(context, heads, positions, _HEAD, 2)
    return turned


def _soft_max(context: int, scores: int, mask: int, scale: float) -> int:
    types = (c_void_p, c_void_p, c_void_p, c_void_p, c_float, c_float)
    result: int = ggml_function("ggml_soft_max_ext", *types)(context, scores, mask, scale, 0.0)
    return result


def _fused(context: int, query: int, keys: int, values: int, mask: int, scale: float) -> int:
    types = (c_void_p, *(c_void_p,) * 5, c_float, c_float, c_float)
    result: int = ggml_function("ggml_flash_attn_ext", *types)(context, query, keys, values, mask, scale, 0.0, 0.0)
    return result
