"""Which weights are repacked, and weights that are in memory a second time, as steps of many tokens compute faster.

Repacked weights are mapped as the file has them, and weights of slow types are copied into a faster one. A step
exchanges the pointers of the model's tensors (0.1 to 0.3 ms) and nothing else: llama.cpp reads them when it computes.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from ctypes import c_char_p, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from app.engine.llama.eval_callback import Tensor, ggml_ops
from app.engine.llama.native import cpu_device, ggml_function, has_weights, lib, mark_as_weights, registered_address
from app.engine.tuning.tune_results import PLAIN_TYPES
from offload.speed.type_costs import TILED_FROM, is_copied, is_repacked, type_of, weights_by_kind
from quantizer.gguf.header import Header, TensorInfo
from quantizer.gguf.tensor_types import TENSOR_TYPES, TensorType, tensor_type_named
from quantizer.system.files import open_regular

_REPACKED = frozenset({b"CPU_REPACK", b"CPU_KLEIDIAI"})  # the processor's buffer types; AMX's is made for large steps
_ON_HOST = frozenset({b"CPU", b"CPU_Mapped"})
_ENCODERS = {"BF16": "ggml_fp32_to_bf16_row", "F16": "ggml_fp32_to_fp16_row"}
_PART_WEIGHTS = 1 << 20  # that are copied at a time
# Copying a weight takes a core 3 to 4 ns, a token of a prompt gains 20 to 40 ps by it: so many tokens pay for it.
_PAYS_FROM = 128
_LOOK_S, _RETRY_S = 1.0, 60.0  # between looks at free memory, and after there was too little

_MOST_INTERLEAVED = 16  # rows, on RISC-V

_OUTPUTS = (b"output.weight", b"token_embd.weight")  # multiplied with the tokens whose logits are wanted
# ggml's tiled kernels leave a tensor alone that has anything in `extra`, which the buffers of repacked weights use;
# nothing looks at it in other buffers (`ggml_tiled_supported`, and each get_tensor_traits of ggml-cpu@0.3.36).
_LEFT_ALONE = 1
_IN_LAYER = re.compile(r"^blk\.(\d+)\.(.+)$")


def repacked_pattern(header: Header, types: Collection[str]) -> str:
    """Return a regular expression for the names of the tensors of `types` in layers that can be repacked, "" for none.
    The embedding is looked up row by row, as no repacked matrix can be. llama.cpp does not check a type of memory that
    is named for a tensor, so its rows must fit any interleaving."""
    layers: dict[str, list[str]] = {}
    for tensor in header.tensors:
        possible = weights_by_kind([(tensor, 1.0)])
        fits = len(tensor.shape) > 1 and tensor.shape[1] % _MOST_INTERLEAVED == 0
        is_chosen = any(is_repacked(kind) and type_of(kind) in types for kind in possible)
        if fits and is_chosen and (match := _IN_LAYER.match(tensor.name)):
            layers.setdefault(match[2], []).append(match[1])
    names = (rf"blk\.({'|'.join(numbers)})\.{re.escape(name)}" for name, numbers in layers.items())
    joined = "|".join(names)
    return f"^({joined})$" if joined else ""


def repacking_buffer_type() -> int | None:
    """Return ggml's buffer type whose weights are repacked on the processor; None where there is none, or several, of
    which llama.cpp chooses by the tensor."""
    found = extra_buffer_types(cpu_device())
    name_of = ggml_function("ggml_backend_buft_name", c_char_p, c_void_p)
    return found[0] if len(found) == 1 and name_of(found[0]) in _REPACKED else None


def extra_buffer_types(device: int) -> list[int]:
    """Return the extra buffer types of the native `device`, in the order in which llama.cpp tries them."""
    registry = ggml_function("ggml_backend_dev_backend_reg", c_void_p, c_void_p)(device)
    if not (address := registered_address(registry, "ggml_backend_dev_get_extra_bufts")):
        return []
    types = ctypes.CFUNCTYPE(ctypes.POINTER(c_void_p), c_void_p)(address)(device)
    found: list[int] = []
    while types and types[len(found)]:
        found.append(types[len(found)])
    return found


class WantedWeights(NamedTuple):
    """Weights by their tensor and the name of the type of buffer it is in."""

    wants: Callable[[Tensor, bytes], bool]
    with_experts: bool


class UsedWeights:
    """The weights of a model that a context multiplies with, found while it computes one token. Must exist as long as
    that context, and is asked while the model exists."""

    def __init__(self) -> None:
        self.callback = lib.ggml_backend_sched_eval_callback(self._on_node)
        self._found: dict[int, tuple[bytes, bool]] = {}  # the memory of tensors, and whether of experts, in their order
        self._viewed: set[int] = set()
        ops = ggml_ops("MUL_MAT", "MUL_MAT_ID")
        self._products, self._of_experts = frozenset(ops.values()), ops["MUL_MAT_ID"]
        self._type_of = ggml_function("ggml_backend_buffer_get_type", c_void_p, c_void_p)
        self._name_of = ggml_function("ggml_backend_buft_name", c_char_p, c_void_p)

    def addresses(self, wanted: WantedWeights) -> tuple[int, ...]:
        """Return the addresses of the `wanted` tensors. One of which a graph has views is none of them: those keep the
        pointer to its data."""
        return tuple(
            address
            for address, (memory, is_expert) in self._found.items()
            if address not in self._viewed
            and (wanted.with_experts or not is_expert)
            and wanted.wants(Tensor.from_address(address), memory)
        )

    def _on_node(self, address: int, is_asking: bool, _data: object) -> bool:
        """Search a product's weights, and never want its result."""
        node = ctypes.cast(address, ctypes.POINTER(Tensor)).contents
        if is_asking and node.op in self._products:
            weights = node.src[0].contents
            while weights.view_src:
                weights = weights.view_src.contents
                self._viewed.add(ctypes.addressof(weights))
            if weights.buffer and has_weights(weights.buffer):  # tensors of the context are gone after it
                memory = self._name_of(self._type_of(weights.buffer))
                self._found[ctypes.addressof(weights)] = (memory, node.op == self._of_experts)
        return not is_asking


def repacked_weights(types: Collection[int] = PLAIN_TYPES) -> WantedWeights:
    """Return the repacked weights of `types`."""
    return WantedWeights(lambda tensor, memory: tensor.type in types and memory in _REPACKED, with_experts=True)


def copied_weights(copies: Mapping[str, str]) -> WantedWeights:
    """Return the weights that have one of the `copies`, by the name of their type, as the file has them."""

    def wants(tensor: Tensor, memory: bytes) -> bool:
        name = tensor.name.decode("utf-8", "replace")
        return memory in _ON_HOST and is_copied(TensorInfo(name, tuple(tensor.ne), tensor.type, 0, 0), copies)

    return WantedWeights(wants, with_experts=False)


def weights_as_in_file(types: Collection[str]) -> WantedWeights:
    """Return the weights of `types`, by their names, as the file has them. Not of experts, each of which few
    tokens are multiplied with."""

    def wants(tensor: Tensor, memory: bytes) -> bool:
        return memory in _ON_HOST and TENSOR_TYPES[tensor.type].name in types

    return WantedWeights(wants, with_experts=False)


def allow_tiles(tensor: Tensor, *, are_allowed: bool) -> None:
    """Let ggml multiply with `tensor`, which is as the file has it, by its tiled kernels, or by those for few rows."""
    tensor.extra = None if are_allowed else _LEFT_ALONE


class UntiledWeights:
    """The tensors at `addresses`, which steps of some tokens multiply with faster without ggml's tiled kernels: from
    TILED_FROM rows on, below those that `tiled_from` has for a type, by its name. 1B models in Q4_K_M, AVX2: a step
    of 8 tokens takes 0.78 of the time, of 10 0.86, of 12 0.95; one of 14 tokens and more would take longer."""

    def __init__(self, addresses: Iterable[int], tiled_from: Mapping[str, int]) -> None:
        found = [Tensor.from_address(address) for address in addresses]
        self._tensors = [(each, each.name in _OUTPUTS, tiled_from[TENSOR_TYPES[each.type].name]) for each in found]
        self._left_alone: list[Tensor] = []

    def choose(self, n_tokens: int, n_logits: int) -> None:
        """Leave the tiled kernels out of the next step where that is faster, until `reset`."""
        if n_tokens < TILED_FROM:  # as of every answer alone
            return
        self._left_alone = [
            tensor
            for tensor, is_output, below in self._tensors
            if TILED_FROM <= (n_logits if is_output else n_tokens) < below
        ]
        for tensor in self._left_alone:
            allow_tiles(tensor, are_allowed=False)

    def reset(self) -> None:
        for tensor in self._left_alone:
            allow_tiles(tensor, are_allowed=True)
        self._left_alone = []


class _Place(NamedTuple):
    """Where a tensor's weights are and how they lie: type, strides, ggml's buffer, data, what the buffer type adds."""

    type: int
    strides: tuple[int, ...]
    buffer: int | None
    data: int | None
    extra: int | None

    @classmethod
    def of(cls, tensor: Tensor) -> _Place:
        return cls(tensor.type, tuple(tensor.nb), tensor.buffer, tensor.data, tensor.extra)


class SecondWeights:
    """The weights of some of a model's tensors a second time, in the pages of `memory`."""

    def __init__(self, memory: mmap.mmap) -> None:
        view = np.frombuffer(memory, np.uint8)  # keeps the mapping alive, and knows its address
        self._view: np.ndarray[tuple[int], np.dtype[np.uint8]] | None = view
        self._begin: int = view.ctypes.data
        self._owned = ExitStack()
        from_address = ggml_function("ggml_backend_cpu_buffer_from_ptr", c_void_p, c_void_p, c_size_t)
        self._buffer: int = from_address(self._begin, len(view))
        self._owned.callback(ggml_function("ggml_backend_buffer_free", None, c_void_p), self._buffer)
        mark_as_weights(self._buffer)
        self._tensors: list[tuple[Tensor, _Place, _Place]] = []
        self._is_used = False
        self.n_bytes = 0

    def _add(self, tensor: Tensor, type_id: int, strides: Iterable[int], offset: int, n_bytes: int) -> None:
        place = _Place(type_id, tuple(strides), self._buffer, self._begin + offset, None)
        self._tensors.append((tensor, _Place.of(tensor), place))
        self.n_bytes += n_bytes

    def use(self, *, is_second: bool) -> None:
        """Let the next steps compute with these weights, or with the model's own."""
        if is_second == self._is_used:
            return
        for tensor, own, second in self._tensors:
            tensor.type, tensor.nb[:], tensor.buffer, tensor.data, tensor.extra = second if is_second else own
        self._is_used = is_second

    def close(self) -> None:
        """Give the model its own pointers back, which it frees, and the memory to the system."""
        self.use(is_second=False)
        self._owned.close()
        self._tensors = []
        self._view = None


class PlainWeights(SecondWeights):
    """The weights of the tensors at `addresses` as the file of `header` has them, mapped and not copied. Kernels of
    repacked weights are faster for few tokens and slower for many. A tensor that the file has under another name or
    size stays repacked."""

    def __init__(self, header: Header, addresses: Iterable[int]) -> None:
        with open_regular(header.path) as file:
            super().__init__(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        in_file = {tensor.name: tensor for tensor in header.tensors}
        for address in addresses:
            tensor = Tensor.from_address(address)
            known = in_file.get(tensor.name.decode("utf-8", "replace"))
            if known is not None and (known.type_id, known.n_elements) == (tensor.type, int(np.prod(tensor.ne[:]))):
                self._add(tensor, tensor.type, tensor.nb, header.data_offset + known.offset, known.n_bytes)


class WeightCopies(SecondWeights):
    """The weights of the tensors at `addresses`, each in the kind that `copies` has for its type. SmolLM2 135M Q4_1, ms
    of one thread for each token of a step of 1, 8, 32 and 128: 13.5, 7.9, 7.0, 6.2; copied into BF16 13.0, 5.4, 3.2,
    2.1. Memory is reserved at once and taken by the step that pays for copying, where `has_room` says that so many
    bytes may be taken; it is given back where that then says that none may."""

    def __init__(
        self,
        addresses: Collection[int],
        copies: Mapping[str, str],
        has_room: Callable[[int], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises OSError without address space."""
        found = [Tensor.from_address(address) for address in addresses]
        kinds = [tensor_type_named(copies[TENSOR_TYPES[tensor.type].name]) for tensor in found]
        sizes = [kind.tensor_bytes(tuple(tensor.ne)) for tensor, kind in zip(found, kinds, strict=True)]
        # Private, unlike mmap's default: else there are no huge pages, and no page can be given back.
        private = {} if sys.platform == "win32" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
        self._memory = mmap.mmap(-1, max(sum(sizes), mmap.PAGESIZE), **private)
        if sys.platform == "linux":
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        super().__init__(self._memory)
        for tensor, kind, n_bytes in zip(found, kinds, sizes, strict=True):
            row_bytes = kind.row_bytes(tensor.ne[0])
            strides = (kind.block_bytes, row_bytes, row_bytes * tensor.ne[1])
            self._add(tensor, kind.type_id, (*strides, row_bytes * tensor.ne[1] * tensor.ne[2]), self.n_bytes, n_bytes)
        self._has_room = has_room
        self._clock = clock
        self._look_at_s = 0.0
        self._n_unpaid = 0  # tokens of steps that would have been faster
        self._parts: deque[tuple[int, int]] = deque()  # still to be copied: a tensor, and its first row
        self.is_made = False

    def serve(
        self, n_tokens: int, n_threads: int, is_interrupted: Callable[[], bool], *, may_copy: bool = True
    ) -> bool:
        """Return whether a step of `n_tokens` can use the copies. The step that pays for them, if it `may_copy`, copies
        first, with `n_threads`, until it `is_interrupted`."""
        now_s = self._clock()
        if self.is_made:
            if now_s >= self._look_at_s:
                self._look_at_s = now_s + _LOOK_S
                if not self._has_room(0):
                    self._give_back()
            return self.is_made
        if not may_copy:
            return False
        self._n_unpaid += n_tokens
        if self._n_unpaid < _PAYS_FROM or now_s < self._look_at_s:
            return False
        if not self._parts:
            if not self._has_room(self.n_bytes):
                self._look_at_s = now_s + _RETRY_S
                return False
            self._parts.extend(
                (index, row)
                for index, (tensor, _, _) in enumerate(self._tensors)
                for row in range(0, tensor.ne[1], max(1, _PART_WEIGHTS // tensor.ne[0]))
            )
        with ThreadPoolExecutor(n_threads) as pool:  # ctypes lets go of the interpreter
            for done in [pool.submit(self._copy_parts, is_interrupted) for _ in range(n_threads)]:
                done.result()
        self.is_made = not self._parts
        return self.is_made

    def _copy_parts(self, is_interrupted: Callable[[], bool]) -> None:
        floats = np.empty(0, np.float32)
        while not is_interrupted():
            try:
                index, row = self._parts.popleft()
            except IndexError:
                return
            tensor, own, copied = self._tensors[index]
            n_columns = tensor.ne[0]
            n_weights = min(max(1, _PART_WEIGHTS // n_columns), tensor.ne[1] - row) * n_columns
            if len(floats) < n_weights:
                floats = np.empty(n_weights, np.float32)
            assert own.data is not None
            assert copied.data is not None
            _dequantizer(TENSOR_TYPES[own.type])(own.data + row * own.strides[1], floats.ctypes.data, n_weights)
            encode = ggml_function(_ENCODERS[TENSOR_TYPES[copied.type].name], None, c_void_p, c_void_p, c_int64)
            encode(floats.ctypes.data, copied.data + row * copied.strides[1], n_weights)

    def _give_back(self) -> None:
        self.use(is_second=False)
        if sys.platform == "linux":
            self._memory.madvise(mmap.MADV_DONTNEED)
        self.is_made, self._n_unpaid = False, 0
        self._look_at_s = self._clock() + _RETRY_S


def _dequantizer(kind: TensorType) -> Any:
    name = kind.name.lower().replace("_k", "_K")
    return ggml_function(f"dequantize_row_{name}", None, c_void_p, c_void_p, c_int64)


@dataclass(frozen=True, slots=True)
class StepWeights:
    """The choice of a context: steps of at least `plain_from` tokens use the `plain` weights, none where that is 0, and
    those of at least `copy_from` the `copies`, which are this context's alone where it `owns_copies`. Prompts make the
    copies, and answers where `answers_copy`, as those of batches do: the drafts of one answer do not pay for that."""

    plain: PlainWeights | None
    plain_from: int
    copies: WeightCopies | None = None
    copy_from: int = 0
    owns_copies: bool = False
    answers_copy: bool = False
    untiled: UntiledWeights | None = None

    @property
    def has_copies(self) -> bool:
        """Whether steps of `copy_from` tokens can use the copies now."""
        return self.copies is not None and self.copies.is_made

    def choose(self, n_tokens: int, n_logits: int, n_threads: int, is_interrupted: Callable[[], bool]) -> None:
        """Let a step of `n_tokens`, of which `n_logits` have logits, use the weights that are fastest for it."""
        if self.plain is not None:
            self.plain.use(is_second=0 < self.plain_from <= n_tokens)
        if self.copies is not None and n_tokens >= self.copy_from:
            may_copy = n_logits < n_tokens or self.answers_copy
            self.copies.use(is_second=self.copies.serve(n_tokens, n_threads, is_interrupted, may_copy=may_copy))
        if self.untiled is not None:
            self.untiled.choose(n_tokens, n_logits)

    def after_step(self) -> None:
        """Give the model its own weights back: a context without copies may compute the next step."""
        if self.untiled is not None:
            self.untiled.reset()
        if self.copies is not None:
            self.copies.use(is_second=False)

    def close(self) -> None:
        if self.copies is not None and self.owns_copies:
            self.copies.close()
