"""The callback of libmtmd's graphs: an encoding can be interrupted, and no lookup leaves its table.

A projector has tables by position, and a large picture more positions than the table of a wrong or hostile file: ggml
ends the process on such a lookup. So each is checked before it is computed. Independent of what is encoded.
"""

from __future__ import annotations

import ctypes
import threading
from ctypes import c_char_p, c_int, c_size_t, c_void_p

import numpy as np

from app.engine.llama.eval_callback import Tensor
from app.engine.llama.native import ggml_function, lib

_PIECE_NODES = 32  # of a graph, computed before it can be interrupted: a transformer's layer or two
_MAX_OPS = 64
_I32 = 26  # of ggml_type


class EncodingGuard:
    """The guard of one projector's encodings; must exist as long as the projector."""

    def __init__(self) -> None:
        self.callback = lib.ggml_backend_sched_eval_callback(self._on_node)
        self._interrupted = threading.Event()
        self._n_nodes = 0
        self._has_overrun = False
        self._failure: Exception | None = None
        self._get_rows = _op_number("GET_ROWS")
        self._read = ggml_function("ggml_backend_tensor_get", None, c_void_p, c_void_p, c_size_t, c_size_t)
        self._write = ggml_function("ggml_backend_tensor_set", None, c_void_p, c_void_p, c_size_t, c_size_t)

    @property
    def is_interrupted(self) -> bool:
        """Whether the last encoding was interrupted, and its result is not whole."""
        return self._interrupted.is_set()

    @property
    def has_overrun(self) -> bool:
        """Whether the last encoding looked up what no table has; its result is of other places then."""
        return self._has_overrun

    def begin(self, *, is_only_begun: bool = False) -> None:
        """Guard another encoding; one that `is_only_begun` ends after its first node."""
        self._n_nodes, self._has_overrun, self._failure = 0, False, None
        if is_only_begun:
            self._interrupted.set()
        else:
            self._interrupted.clear()

    def check(self) -> None:
        """Raise an exception of the callback."""
        if self._failure is not None:
            raise self._failure

    def interrupt(self) -> None:
        """Interrupt the running encoding, from any thread."""
        self._interrupted.set()

    def _on_node(self, address: int, is_asking: bool, _data: object) -> bool:
        """Return whether a piece ends with a node, or whether the next one is computed."""
        if not is_asking:
            return not self._interrupted.is_set()
        try:
            node = ctypes.cast(address, ctypes.POINTER(Tensor)).contents
            if node.op == self._get_rows:
                self._keep_inside(node)
        except Exception as failure:  # must not cross native code
            self._failure = failure
            self._interrupted.set()
        self._n_nodes += 1
        return self._n_nodes % _PIECE_NODES == 0 or self._interrupted.is_set()

    def _keep_inside(self, node: Tensor) -> None:
        """Replace the rows of a lookup that its table lacks. Those that the graph computes are there only later, and
        are of tables that it computes too."""
        table, rows = node.src[0].contents, node.src[1]
        owner = rows.contents.view_src.contents if rows.contents.view_src else rows.contents
        wanted = np.empty(int(np.prod(rows.contents.ne)), np.int32)
        if owner.op or rows.contents.type != _I32 or not _is_contiguous(rows.contents):
            return
        self._read(rows, wanted.ctypes.data, 0, wanted.nbytes)
        is_outside = (wanted < 0) | (wanted >= table.ne[1])
        if is_outside.any():
            self._has_overrun = True
            wanted[is_outside] = 0
            self._write(rows, wanted.ctypes.data, 0, wanted.nbytes)


def _is_contiguous(tensor: Tensor) -> bool:
    n_bytes = 4
    for length, stride in zip(tensor.ne, tensor.nb, strict=True):
        if length > 1 and stride != n_bytes:
            return False
        n_bytes *= length
    return True


def _op_number(name: str) -> int:
    """Return the number of an operation of this build of ggml."""
    name_of = ggml_function("ggml_op_name", c_char_p, c_int)
    return next(number for number in range(_MAX_OPS) if name_of(number) == name.encode())
