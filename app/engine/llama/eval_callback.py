"""Callbacks for the nodes of llama.cpp's graphs: recording the inputs of weights and the hidden states between layers,
reading chosen experts ahead from disk, and overwriting weights in place.

llama.cpp calls them twice for each node: to ask whether its result is wanted, and once that is computed. Wanting a node
makes it the end of a piece of the graph, which takes time.
"""

from __future__ import annotations

import ctypes
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from ctypes import c_size_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.engine.llama.native import ggml_function, lib
from quantizer.gguf.header import read_header
from quantizer.mix.imatrix import ImatrixCollector
from quantizer.system.files import open_regular

N_SOURCES = 10
_N_DIMS, _N_OP_PARAMS, _NAME_BYTES = 4, 16, 64
_MIN_ROWS = 16  # smaller products are left out, as llama-imatrix leaves them out
_F32 = 0  # ggml_type@0.3.36
_MAX_OPS = 64  # those of interest come among the first
# llama.cpp's names of the first layer's input: the last of them computed before the first layer's output is the input.
_INPUT_NAMES = frozenset([b"embd", b"inpL", b"inp_norm", b"inp_scaled"])
_OUTPUT_NAME = b"l_out-"


class Tensor(ctypes.Structure):
    """ggml_tensor without its padding. Source: ggml/include/ggml.h as vendored in llama-cpp-python 0.3.36."""


Tensor._fields_ = (
    ("type", ctypes.c_int),
    ("buffer", ctypes.c_void_p),
    ("ne", ctypes.c_int64 * _N_DIMS),
    ("nb", ctypes.c_size_t * _N_DIMS),
    ("op", ctypes.c_int),
    ("op_params", ctypes.c_int32 * _N_OP_PARAMS),
    ("flags", ctypes.c_int32),
    ("src", ctypes.POINTER(Tensor) * N_SOURCES),
    ("view_src", ctypes.POINTER(Tensor)),
    ("view_offs", ctypes.c_size_t),
    ("data", ctypes.c_void_p),
    ("name", ctypes.c_char * _NAME_BYTES),
    ("extra", ctypes.c_void_p),
)


class _Recorder(ABC):
    """A recorder of some nodes of the graphs that are computed in the contexts created with it. An exception in the
    callback ends the computation; `check` raises it. Must exist as long as those contexts."""

    def __init__(self) -> None:
        self.callback = lib.ggml_backend_sched_eval_callback(self._on_node)
        self._failure: Exception | None = None
        self._read = ggml_function("ggml_backend_tensor_get", None, c_void_p, c_void_p, c_size_t, c_size_t)
        self._n_bytes = ggml_function("ggml_nbytes", c_size_t, c_void_p)

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _on_node(self, address: int, is_asking: bool, _data: object) -> bool:
        """Return whether a node is wanted, or record it; returning False then ends the computation."""
        try:
            pointer = ctypes.cast(address, ctypes.POINTER(Tensor))
            if is_asking:
                return self._matters(pointer.contents)
            self._take(pointer)
        except Exception as failure:  # an exception that crosses ctypes is lost, and native code goes on
            self._failure = failure
            return False
        return True

    @abstractmethod
    def _matters(self, node: Tensor) -> bool:
        """Return whether `node` is to be recorded once it is computed."""

    @abstractmethod
    def _take(self, pointer: Any) -> None:
        """Record the node at `pointer`, which was computed."""

    def _array(self, pointer: Any, kind: np.dtype[Any]) -> NDArray[Any]:
        """Return a copy of a tensor of any device, with numpy's order of dimensions (slowest first)."""
        tensor = pointer.contents
        buffer = np.empty(self._n_bytes(pointer), np.uint8)
        self._read(pointer, buffer.ctypes.data, 0, buffer.nbytes)
        return np.ndarray(tuple(tensor.ne)[::-1], kind, buffer, strides=tuple(tensor.nb)[::-1])


class ActivationRecorder(_Recorder):
    """Recorder of the inputs of every product with a layer's weight."""

    def __init__(self, collector: ImatrixCollector) -> None:
        super().__init__()
        self._collector = collector
        self._ops = {number: name for name, number in ggml_ops("MUL_MAT", "MUL_MAT_ID").items()}

    def _matters(self, node: Tensor) -> bool:
        op = self._ops.get(node.op)
        if op is None or not _weight_name(node).startswith("blk."):
            return False
        rows = node.src[1].contents
        return rows.type == _F32 and (op == "MUL_MAT_ID" or rows.ne[1] >= _MIN_ROWS)

    def _take(self, pointer: Any) -> None:
        node = pointer.contents
        weight, name = node.src[0].contents, _weight_name(node)
        rows = self._array(node.src[1], np.dtype(np.float32))
        if self._ops[node.op] == "MUL_MAT_ID":
            experts = self._array(node.src[2], np.dtype(np.int32))[0, 0]
            self._collector.add_experts(name, rows[0], experts, weight.ne[2])
            return
        # Several inputs may share a matrix: (i3, i2) goes with (i3 % ne3, i2 % ne2) of the weight.
        n3, n2, n_rows, n_columns = rows.shape
        w3, w2 = weight.ne[3], weight.ne[2]
        grouped = rows.reshape(n3 // w3, w3, n2 // w2, w2, n_rows, n_columns).transpose(1, 3, 0, 2, 4, 5)
        self._collector.add(name, grouped.reshape(w3 * w2, -1, n_columns))


class HiddenStateRecorder(_Recorder):
    """Recorder of the hidden states around each layer: `add` gets the layer's number, its input and its output. Both
    have shape (n_tokens, n_embd). The last of `n_layers` computes tokens with logits only: request them for each."""

    def __init__(self, n_layers: int, add: Callable[[int, NDArray[np.float32], NDArray[np.float32]], None]) -> None:
        super().__init__()
        self._n_layers = n_layers
        self._add = add
        self._hidden: NDArray[np.float32] | None = None

    def _matters(self, node: Tensor) -> bool:
        name: bytes = node.name
        return node.type == _F32 and (name in _INPUT_NAMES or self._layer(name) is not None)

    def _take(self, pointer: Any) -> None:
        rows = self._array(pointer, np.dtype(np.float32))
        rows = rows.reshape(-1, rows.shape[-1])
        layer = self._layer(pointer.contents.name)
        if layer is not None and self._hidden is not None:
            self._add(layer, self._hidden, rows)
        self._hidden = rows

    def _layer(self, name: bytes) -> int | None:
        """Return the number of the layer whose output is called `name`."""
        number = name.removeprefix(_OUTPUT_NAME)
        is_output = number != name and number.isdigit() and int(number) < self._n_layers
        return int(number) if is_output else None


_CHOSEN_EXPERTS = b"ffn_moe_topk-"  # llama.cpp's name of the node, and the number of its layer behind it
_EXPERTS = re.compile(r"blk\.(\d+)\.ffn_\w+_exps\.")


class ExpertReadAhead(_Recorder):
    """Reads the experts of a model larger than memory ahead: as soon as a layer has chosen some, the system is asked
    for all of their weights in the files at `paths`, the shards of the model, which llama.cpp has mapped. Else products
    wait for them page by page, and the system reads around each page what nobody chose. Close it after the contexts.

    Qwen3 30B A3B's shape with 6 layers, 4.1 GB in 2.5 GB (as tests/bench/engine/expert_read_ahead.py does), median
    tok/s without and with: 0.92 and 2.7 where the system reads 8 MiB around a page (three pairs of runs), 1.6 and 2.3
    where it reads 128 KiB (five pairs).
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        super().__init__()
        self._files = ExitStack()
        self._parts: dict[int, list[tuple[int, int, int]]] = {}  # by layer: descriptor, offset, bytes of one expert
        for path in paths:
            header = read_header(path)
            file = self._files.enter_context(open_regular(path))
            for tensor in header.tensors:
                if match := _EXPERTS.search(tensor.name):
                    part = file.fileno(), header.data_offset + tensor.offset, tensor.n_bytes // tensor.shape[-1]
                    self._parts.setdefault(int(match[1]), []).append(part)

    def close(self) -> None:
        self._files.close()

    def _matters(self, node: Tensor) -> bool:
        name: bytes = node.name
        return name.startswith(_CHOSEN_EXPERTS)

    def _take(self, pointer: Any) -> None:
        name: bytes = pointer.contents.name
        parts = self._parts.get(int(name.removeprefix(_CHOSEN_EXPERTS)), ())
        for expert in np.unique(self._array(pointer, np.dtype(np.int32))).tolist():
            for descriptor, start, n_bytes in parts:
                try:
                    os.posix_fadvise(descriptor, start + expert * n_bytes, n_bytes, os.POSIX_FADV_WILLNEED)
                except OSError:  # advice that a file system does not take: products read for themselves
                    self._parts.clear()
                    return


def operands(node_address: int) -> Iterator[Tensor]:
    """Yield the tensors that a graph's node computes with, for a view the tensor that it shows."""
    for operand in ctypes.cast(node_address, ctypes.POINTER(Tensor)).contents.src:
        if not operand:
            break
        tensor = operand.contents
        while tensor.view_src:
            tensor = tensor.view_src.contents
        yield tensor


def _weight_name(node: Tensor) -> str:
    """Return the name of the weight, without the decoration of a copy on another device: CUDA0#name#0."""
    name: str = node.src[0].contents.name.decode("utf-8", "replace")
    return name.split("#")[1] if "#" in name else name


def ggml_ops(*names: str) -> dict[str, int]:
    """Return the numbers of operations by name: they change from one version of ggml to the next."""
    name_of = ggml_function("ggml_op_name", ctypes.c_char_p, ctypes.c_int)
    numbers = {name_of(number).decode(): number for number in range(_MAX_OPS)}
    return {name: numbers[name] for name in names}


class WritableWeights:
    """The tensors called `names` that a model computes with; it must have been loaded writable. Their addresses are
    found in the first batch and stay valid as long as the model. A tensor may exist twice, on two devices: both are
    written."""

    def __init__(self, names: Collection[str]) -> None:
        self.callback = lib.ggml_backend_sched_eval_callback(self._on_node)
        self._names = {name.encode(): name for name in names}
        self._places: dict[str, set[int]] = {}
        self._is_complete = False
        self._write = ggml_function("ggml_backend_tensor_set", None, c_void_p, ctypes.c_char_p, c_size_t, c_size_t)

    def found(self) -> set[str]:
        """Return the names found in the graph so far, and stop searching."""
        self._is_complete = True
        return set(self._places)

    def write(self, name: str, parts: Iterable[bytes]) -> None:
        start = 0
        for data in parts:
            for address in self._places[name]:
                self._write(address, data, start, len(data))
            start += len(data)

    def _on_node(self, address: int, is_asking: bool, _data: object) -> bool:
        """Search a node's operands, and never want its result."""
        if is_asking and not self._is_complete:
            for tensor in operands(address):
                name = self._names.get(tensor.name)
                if name is not None:
                    self._places.setdefault(name, set()).add(ctypes.addressof(tensor))
        return not is_asking
