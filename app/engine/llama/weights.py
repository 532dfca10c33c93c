"""The weights of a loaded model where they lie, to be written over: what is a tensor worth, if not what its loss costs?

Owns finding them, in the graph that llama.cpp computes, and writing. Knows nothing of what is written.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection

from app.engine.llama.native import ggml_function, lib
from app.engine.llama.tensor import Tensor

__all__ = ["WritableWeights"]


class WritableWeights:
    """Those of the tensors called `names` that a model computes with; it must have been loaded writable.

    They are found while it computes its first batch, and stay where they are as long as the model lives. A model may
    hold a tensor twice, on two devices: both are written.
    """

    def __init__(self, names: Collection[str]) -> None:
        self.callback = lib.ggml_backend_sched_eval_callback(self._asked)
        self._names = {name.encode(): name for name in names}
        self._places: dict[str, set[int]] = {}
        self._is_complete = False
        self._write = ggml_function("ggml_backend_tensor_set")
        self._write.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t)
        self._write.restype = None

    def found(self) -> set[str]:
        """Return the names that the graph computed so far has, and look no further."""
        self._is_complete = True
        return set(self._places)

    def write(self, name: str, start: int, data: bytes) -> None:
        """Replace the bytes of tensor `name` from `start` on."""
        for address in self._places[name]:
            self._write(address, data, start, len(data))

    def _asked(self, address: int, is_asking: bool, _data: object) -> bool:
        """Look at a node's operands; never ask for its result."""
        if is_asking and not self._is_complete:
            for operand in ctypes.cast(address, ctypes.POINTER(Tensor)).contents.src:
                if not operand:
                    break
                self._look_at(operand.contents)
        return not is_asking

    def _look_at(self, tensor: Tensor) -> None:
        while tensor.view_src:
            tensor = tensor.view_src.contents
        name = self._names.get(tensor.name)
        if name is not None:
            self._places.setdefault(name, set()).add(ctypes.addressof(tensor))
