"""The native parameters of a model's placement: lists that end with NULL, and pointers that must stay valid.

Owns those arrays. Independent of why layers are placed there.
"""

from __future__ import annotations

import ctypes

from app.engine.llama.devices import gpu_address
from app.engine.llama.native import ggml_function, lib
from offload.placement.load_parameters import LoadMode, LoadParameters

__all__ = ["PlacementParams"]

_NOTHING = b"^$"  # matches the name of no tensor
_LOAD_MODES = {
    LoadMode.AUTO: lib.LLAMA_LOAD_MODE_AUTO,
    LoadMode.NONE: lib.LLAMA_LOAD_MODE_NONE,
    LoadMode.MMAP_MLOCK: lib.LLAMA_LOAD_MODE_MMAP_MLOCK,
}


class _Override(ctypes.Structure):
    """llama_model_tensor_buft_override@0.3.36."""

    _fields_ = [("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p)]


class PlacementParams:
    """The arrays of `parameters`; must exist as long as the model loaded with them.

    Raises EngineError if a device no longer exists.
    """

    def __init__(self, parameters: LoadParameters) -> None:
        self._parameters = parameters
        devices = [gpu_address(name) for name in parameters.devices]
        self._devices = (ctypes.c_void_p * (len(devices) + 1))(*devices, None)
        self._split = (ctypes.c_float * lib.llama_max_devices())(*parameters.tensor_split)
        self._overrides = (_Override * 2)(_Override(self._pattern(), _host_buffer_type()), _Override(None, None))

    def fill(self, params: lib.llama_model_params) -> None:
        """Set the placement in `params`."""
        params.n_gpu_layers = self._parameters.n_gpu_layers
        params.devices = ctypes.addressof(self._devices)
        params.tensor_split = self._split
        params.load_mode = _LOAD_MODES[self._parameters.load_mode]
        if self._overrides[0].pattern:
            params.tensor_buft_overrides = ctypes.addressof(self._overrides)

    def _pattern(self) -> bytes | None:
        """Return the pattern of tensors that stay with the processor.

        With any pattern llama.cpp does not pipeline: pipelining keeps four copies of all that passes between GPUs, for
        batches of several ubatches, which the engine never uses.
        """
        pattern = self._parameters.host_pattern.encode()
        return pattern or (_NOTHING if len(self._parameters.devices) > 1 else None)


def _host_buffer_type() -> int:
    address: int = ggml_function("ggml_backend_cpu_buffer_type", ctypes.c_void_p)()
    return address
