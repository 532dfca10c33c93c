"""Two layouts of one model's weights: repacked for the processor, and as the file has them; each step uses one.

Owns which tensors exist in both layouts and the switch between them. Independent of when each is faster: the setting
says from how many tokens on.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Collection, Iterable
from contextlib import ExitStack
from ctypes import c_char_p, c_size_t, c_void_p
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from app.engine.llama.eval_callback import Tensor, operands
from app.engine.llama.native import ggml_function, lib
from app.engine.tuning.tune_results import PLAIN_TYPES
from quantizer.gguf.header import Header

_REPACKED = frozenset({b"CPU_REPACK", b"CPU_KLEIDIAI"})  # the processor's buffer types; AMX's is made for large steps
_USAGE_WEIGHTS = 1  # GGML_BACKEND_BUFFER_USAGE_WEIGHTS@0.3.36


class RepackedTensors:
    """The repacked weights of `types` that a context computes with; one token shows them all. It must outlive the
    context."""

    def __init__(self, types: Collection[int] = PLAIN_TYPES) -> None:
        self._types = types
        self.callback = lib.ggml_backend_sched_eval_callback(self._on_node)
        self.addresses: set[int] = set()
        self._type_of = ggml_function("ggml_backend_buffer_get_type", c_void_p, c_void_p)
        self._name_of = ggml_function("ggml_backend_buft_name", c_char_p, c_void_p)

    def _on_node(self, address: int, is_asking: bool, _data: object) -> bool:
        """Search a node's operands; never request its result."""
        if is_asking:
            self.addresses.update(
                ctypes.addressof(tensor)
                for tensor in operands(address)
                if tensor.type in self._types
                and tensor.buffer
                and self._name_of(self._type_of(tensor.buffer)) in _REPACKED
            )
        return not is_asking


class _Place(NamedTuple):
    """Where a tensor's weights are: ggml's buffer, its data, and what the buffer type adds."""

    buffer: int | None
    data: int | None
    extra: int | None


class PlainWeights:
    """The weights of the tensors at `addresses` as the file of `header` has them, mapped and not copied.

    A tensor that the file has under another name or size stays repacked.
    """

    def __init__(self, header: Header, addresses: Iterable[int]) -> None:
        self._is_plain = False
        self._owned = ExitStack()
        with header.path.open("rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        view = np.frombuffer(mapping, np.uint8)  # lives as long as this: a mapping has no address of its own
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
        """Leave the repacked weights to the model, and the file."""
        self.use(is_plain=False)
        self._owned.close()
        self._view = None


@dataclass(frozen=True, slots=True)
class StepWeights:
    """The choice of a context: steps of at least `plain_from` tokens use the `plain` weights, none where that is 0."""

    plain: PlainWeights
    plain_from: int

    def choose(self, n_tokens: int) -> None:
        """Use the weights for a step of `n_tokens`."""
        self.plain.use(is_plain=0 < self.plain_from <= n_tokens)
