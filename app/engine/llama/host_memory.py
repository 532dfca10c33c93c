"""The memory of weights and caches on the processor: huge pages, zeros given back, and two layouts of the weights.

Linux only, and not where llama.cpp has a GPU, whose driver may have pinned the memory; the two layouts work everywhere.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ctypes import c_char_p, c_size_t, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from app.engine.llama.eval_callback import Tensor, ggml_ops, operands
from app.engine.llama.native import ggml_function, lib
from app.engine.tuning.tune_results import PLAIN_TYPES, WIDE_BYTES, WIDENED_TYPES
from offload.speed.type_costs import is_repacked, type_of, weights_by_kind
from quantizer.gguf.header import Header
from quantizer.gguf.tensor_types import TENSOR_TYPES, tensor_type_named
from quantizer.system.errors import EngineError

Range = tuple[int, int]  # addresses: the first one, and the first one behind it

_BLOCK_BYTES = 1 << 20
_LEAST_BYTES = 8 << 20  # of a mapping: smaller ones are neither caches nor weights worth the look
_PRIVATE = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw-p 00000000 00:00 0 *$", re.MULTILINE)
_REPACKED = frozenset({b"CPU_REPACK", b"CPU_KLEIDIAI"})  # the processor's buffer types; AMX's is made for large steps
_ON_HOST = frozenset({b"CPU", b"CPU_Mapped"})
_BF16 = tensor_type_named("BF16").type_id
_WIDE_FROM = 4  # tokens of a step; of one token BF16 only reads more bytes
_PART_ELEMENTS = 1 << 20  # that are widened at a time
_DEQUANTIZERS = {type_id: f"dequantize_row_{TENSOR_TYPES[type_id].name.lower()}" for type_id in WIDENED_TYPES}
_CPU = 0  # GGML_BACKEND_DEVICE_TYPE_CPU@0.3.36
_USAGE_WEIGHTS = 1  # GGML_BACKEND_BUFFER_USAGE_WEIGHTS@0.3.36


class HugePages:
    """Asks for huge pages for the large memory that was mapped since this was made; only on Linux without a GPU. A step
    of one token reads all weights once: in pages of 2 MiB instead of 4 KiB the processor looks up 500 times fewer. The
    system gives those to memory that asks before it is first written. No other thread may map large memory
    meanwhile."""

    def __init__(self, *, has_gpu: bool) -> None:
        self._is_used = sys.platform == "linux" and not has_gpu
        self._before = _private_ranges() if self._is_used else []

    def ask(self) -> None:
        """Ask once, for memory that is not written yet; later calls do nothing."""
        if not self._is_used:
            return
        self._is_used = False
        for start, end in _new_ranges(self._before):
            begin = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
            _c_library().madvise(begin, end - begin, mmap.MADV_HUGEPAGE)  # where it fails, pages stay small


@contextmanager
def new_zero_pages_given_back(*, has_gpu: bool) -> Iterator[None]:
    """Give back the blocks of zeros that were mapped meanwhile; only on Linux without a GPU. llama.cpp (0.3.36) fills
    caches with zeros when it makes a context. A page of zeros that is given back reads as zeros again and takes memory
    when it is first written: caches grow with use, and plans count them whole all the same. No other thread may map
    large memory meanwhile, and write to it only later."""
    if sys.platform != "linux" or has_gpu:
        yield
        return
    before, c, page = _private_ranges(), _c_library(), mmap.PAGESIZE
    yield
    resident = (ctypes.c_ubyte * (_BLOCK_BYTES // page))()
    for start, end in _new_ranges(before):
        for block in range(-(-start // page) * page, end - _BLOCK_BYTES + 1, _BLOCK_BYTES):
            if c.mincore(block, _BLOCK_BYTES, resident) or not any(resident):
                continue  # reading memory that is not there yet would provide it
            # Equal to itself moved by eight bytes: all zeros if the first eight are.
            if not ctypes.c_uint64.from_address(block).value and not c.memcmp(block, block + 8, _BLOCK_BYTES - 8):
                c.madvise(block, _BLOCK_BYTES, mmap.MADV_DONTNEED)  # where it fails, the page stays


def _new_ranges(before: Sequence[Range]) -> Iterator[Range]:
    """Yield the large parts of this process's memory that were not mapped `before`."""
    yield from ((start, end) for start, end in _without(_private_ranges(), before) if end - start >= _LEAST_BYTES)


def _private_ranges() -> list[Range]:
    """Return the memory of this process that belongs to no file, by rising addresses."""
    maps = Path("/proc/self/maps").read_text("ascii", "replace")
    return [(int(start, 16), int(end, 16)) for start, end in _PRIVATE.findall(maps)]


def _without(ranges: Sequence[Range], others: Sequence[Range]) -> Iterator[Range]:
    """Yield the parts of `ranges` that are in none of `others`; both rise."""
    for start, end in ranges:
        for other_start, other_end in others:
            if start < other_start < end:
                yield start, other_start
            if other_start < end and other_end > start:
                start = max(start, other_end)
        if start < end:
            yield start, end


@cache
def _c_library() -> Any:
    library = ctypes.CDLL(None)
    library.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    library.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    return library


_MOST_INTERLEAVED = 16  # rows, on RISC-V
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
    device = ggml_function("ggml_backend_dev_by_type", c_void_p, ctypes.c_int)(_CPU)
    found = extra_buffer_types(device)
    name_of = ggml_function("ggml_backend_buft_name", c_char_p, c_void_p)
    return found[0] if len(found) == 1 and name_of(found[0]) in _REPACKED else None


def extra_buffer_types(device: int) -> list[int]:
    """Return the extra buffer types of the native `device`, in the order in which llama.cpp tries them."""
    registry = ggml_function("ggml_backend_dev_backend_reg", c_void_p, c_void_p)(device)
    by_name = ggml_function("ggml_backend_reg_get_proc_address", c_void_p, c_void_p, c_char_p)
    if not (address := by_name(registry, b"ggml_backend_dev_get_extra_bufts")):
        return []
    types = ctypes.CFUNCTYPE(ctypes.POINTER(c_void_p), c_void_p)(address)(device)
    found: list[int] = []
    while types and types[len(found)]:
        found.append(types[len(found)])
    return found


class RepackedTensors:
    """The repacked weights of `types` that a context computes with, found while it computes one token. Must exist as
    long as the context."""

    def __init__(self, types: Collection[int] = PLAIN_TYPES) -> None:
        self._types = types
        self.callback = lib.ggml_backend_sched_eval_callback(self._on_node)
        self.addresses: set[int] = set()
        self._type_of = ggml_function("ggml_backend_buffer_get_type", c_void_p, c_void_p)
        self._name_of = ggml_function("ggml_backend_buft_name", c_char_p, c_void_p)

    def _on_node(self, address: int, is_asking: bool, _data: object) -> bool:
        """Search a node's operands, and never want its result."""
        if is_asking:
            self.addresses.update(
                ctypes.addressof(tensor)
                for tensor in operands(address)
                if tensor.type in self._types
                and tensor.buffer
                and self._name_of(self._type_of(tensor.buffer)) in _REPACKED
            )
        return not is_asking


class WideTensors:
    """The weights that gain by BF16, found while a context computes one token: matrices in the processor's memory, as
    the file has them. Must exist as long as the context."""

    def __init__(self) -> None:
        self.callback = lib.ggml_backend_sched_eval_callback(self._on_node)
        self.addresses: dict[int, None] = {}  # in their order
        self._product = ggml_ops("MUL_MAT")["MUL_MAT"]
        self._type_of = ggml_function("ggml_backend_buffer_get_type", c_void_p, c_void_p)
        self._name_of = ggml_function("ggml_backend_buft_name", c_char_p, c_void_p)

    def _on_node(self, address: int, is_asking: bool, _data: object) -> bool:
        """Search a product's operands, and never want its result."""
        if is_asking and ctypes.cast(address, ctypes.POINTER(Tensor)).contents.op == self._product:
            for tensor in operands(address):
                if (
                    tensor.type in _DEQUANTIZERS
                    and tensor.name.endswith(b".weight")  # a cache may have these types, too
                    and tensor.buffer
                    and self._name_of(self._type_of(tensor.buffer)) in _ON_HOST
                ):
                    self.addresses[ctypes.addressof(tensor)] = None
        return not is_asking


class _Typed(NamedTuple):
    """A tensor's type and strides, ggml's buffer and its data."""

    type: int
    strides: tuple[int, ...]
    buffer: int | None
    data: int | None


class _Place(NamedTuple):
    """Where a tensor's weights are: ggml's buffer, its data, and what the buffer type adds."""

    buffer: int | None
    data: int | None
    extra: int | None


class PlainWeights:
    """The weights of the tensors at `addresses` as the file of `header` has them, mapped and not copied. Kernels of
    repacked weights are faster for few tokens and slower for many. Switching exchanges the pointers of the model's
    tensors (0.1 ms). A tensor that the file has under another name or size stays repacked."""

    def __init__(self, header: Header, addresses: Iterable[int]) -> None:
        self._is_plain = False
        self._owned = ExitStack()
        with header.path.open("rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        view = np.frombuffer(mapping, np.uint8)  # keeps the mapping alive, and knows its address
        self._view: np.ndarray[tuple[int], np.dtype[np.uint8]] | None = view
        begin: int = view.ctypes.data
        buffer = ggml_function("ggml_backend_cpu_buffer_from_ptr", c_void_p, c_void_p, c_size_t)(begin, len(view))
        self._owned.callback(ggml_function("ggml_backend_buffer_free", None, c_void_p), buffer)
        ggml_function("ggml_backend_buffer_set_usage", None, c_void_p, ctypes.c_int)(buffer, _USAGE_WEIGHTS)
        in_file = {tensor.name: tensor for tensor in header.tensors}
        self._tensors: list[tuple[Tensor, _Place, _Place]] = []
        self.n_bytes = 0
        for address in addresses:
            tensor = Tensor.from_address(address)
            known = in_file.get(tensor.name.decode("utf-8", "replace"))
            if known is None or (known.type_id, known.n_elements) != (tensor.type, int(np.prod(tensor.ne[:]))):
                continue
            plain = _Place(buffer, begin + header.data_offset + known.offset, None)
            self._tensors.append((tensor, _Place(tensor.buffer, tensor.data, tensor.extra), plain))
            self.n_bytes += known.n_bytes

    def use(self, *, is_plain: bool) -> None:
        """Let the next steps compute with the plain weights, or with the repacked ones."""
        if is_plain == self._is_plain:
            return
        for tensor, repacked, plain in self._tensors:
            tensor.buffer, tensor.data, tensor.extra = plain if is_plain else repacked
        self._is_plain = is_plain

    def close(self) -> None:
        """Give the model its own pointers back, which it frees, and unmap the file."""
        self.use(is_plain=False)
        self._owned.close()
        self._view = None


class WideWeights:
    """The weights of the tensors at `addresses` once more, in BF16. Of Q4_1 and Q5_1 kernels compute a token after the
    other; of BF16 they compute tiles of tokens, where the processor multiplies it (AVX512_BF16). SmolLM2 135M Q4_1, ms
    of one thread for each token of a step of 1, 8, 32 and 128: 13.5, 7.9, 7.0, 6.2; in BF16 13.0, 5.4, 3.2, 2.1. It is
    no less exact: rounding to BF16 costs less than rounding activations to 8 bits, which these types need."""

    def __init__(self, addresses: Iterable[int]) -> None:
        """Raises EngineError without memory."""
        tensors = [Tensor.from_address(address) for address in addresses]
        self.n_bytes = WIDE_BYTES * sum(int(np.prod(tensor.ne[:])) for tensor in tensors)
        try:
            memory = mmap.mmap(-1, max(self.n_bytes, mmap.PAGESIZE))
        except OSError as error:
            cause = f"There is no memory for {self.n_bytes >> 20:,} MiB of weights."
            raise EngineError(cause, "Close programs that take memory.") from error
        if sys.platform == "linux":
            memory.madvise(mmap.MADV_HUGEPAGE)
        view = np.frombuffer(memory, np.uint8)  # keeps the mapping alive, and knows its address
        self._view: np.ndarray[tuple[int], np.dtype[np.uint8]] | None = view
        self._is_wide = False
        self._owned = ExitStack()
        begin: int = view.ctypes.data
        buffer = ggml_function("ggml_backend_cpu_buffer_from_ptr", c_void_p, c_void_p, c_size_t)(begin, len(view))
        self._owned.callback(ggml_function("ggml_backend_buffer_free", None, c_void_p), buffer)
        ggml_function("ggml_backend_buffer_set_usage", None, c_void_p, ctypes.c_int)(buffer, _USAGE_WEIGHTS)
        self._tensors: list[tuple[Tensor, _Typed, _Typed]] = []
        for tensor in tensors:
            n_elements, n_columns = int(np.prod(tensor.ne[:])), tensor.ne[0]
            _to_bf16(tensor, begin, n_elements)
            row_bytes = WIDE_BYTES * n_columns
            strides = (WIDE_BYTES, row_bytes, row_bytes * tensor.ne[1], WIDE_BYTES * n_elements)
            own = _Typed(tensor.type, tuple(tensor.nb[:]), tensor.buffer, tensor.data)
            self._tensors.append((tensor, own, _Typed(_BF16, strides, buffer, begin)))
            begin += WIDE_BYTES * n_elements

    def use(self, *, is_wide: bool) -> None:
        """Let the next steps compute with the wide weights, or with the model's own."""
        if is_wide == self._is_wide:
            return
        for tensor, own, wide in self._tensors:
            tensor.type, tensor.nb[:], tensor.buffer, tensor.data = wide if is_wide else own
        self._is_wide = is_wide

    def close(self) -> None:
        """Give the model its own pointers back, and the memory to the system."""
        self.use(is_wide=False)
        self._owned.close()
        self._view = None


def _to_bf16(tensor: Tensor, address: int, n_elements: int) -> None:
    """Write the weights of `tensor` to `address`, a part at a time: rows of one are as long as its blocks allow."""
    dequantize = ggml_function(_DEQUANTIZERS[tensor.type], None, c_void_p, c_void_p, ctypes.c_int64)
    round_row = ggml_function("ggml_fp32_to_bf16_row", None, c_void_p, c_void_p, ctypes.c_int64)
    n_columns = tensor.ne[0]
    n_rows = max(1, _PART_ELEMENTS // n_columns)
    floats = np.empty(n_rows * n_columns, np.float32)
    for row in range(0, n_elements // n_columns, n_rows):
        n_part = min(n_rows * n_columns, n_elements - row * n_columns)
        dequantize(tensor.data + row * tensor.nb[1], floats.ctypes.data, n_part)
        round_row(floats.ctypes.data, address + WIDE_BYTES * row * n_columns, n_part)


@dataclass(frozen=True, slots=True)
class StepWeights:
    """The choice of a context: steps of at least `plain_from` tokens use the `plain` weights, none where that is 0, and
    steps of several the `wide` ones."""

    plain: PlainWeights | None
    plain_from: int
    wide: WideWeights | None = None

    def choose(self, n_tokens: int) -> None:
        if self.plain is not None:
            self.plain.use(is_plain=0 < self.plain_from <= n_tokens)
        if self.wide is not None:
            self.wide.use(is_wide=n_tokens >= _WIDE_FROM)

    def after_step(self) -> None:
        """Give the model its own weights back: another context may compute the next step."""
        if self.wide is not None:
            self.wide.use(is_wide=False)

    def close(self) -> None:
        """Free the wide weights, which belong to this context alone."""
        if self.wide is not None:
            self.wide.close()
