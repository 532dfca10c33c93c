"""LoRA adapters, active by the batch, and a control vector, active permanently.

Owns the native adapters, which must be loaded before any context is created. Independent of requests.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.engine.llama.native import lib, native_log
from app.engine.request import AdapterSet
from quantizer.system.errors import EngineError


class LlamaAdapters:
    """Native adapters of one model by key, which the model frees, and its control vector."""

    def __init__(
        self, model: int, paths: Mapping[str, Path], control_vector: NDArray[np.float32] | None = None
    ) -> None:
        """Load the validated files at `paths`. The control vector has shape (n_layers - 1, n_embd).

        Raises EngineError with llama.cpp's message.
        """
        self._adapters = {key: _load(model, path) for key, path in paths.items()}
        self._control_vector = control_vector

    def attach(self, context: int) -> None:
        """Apply the control vector and every adapter to a new context. Raises EngineError without support for them."""
        self.activate(context, tuple((key, 1.0) for key in sorted(self._adapters)))
        if self._control_vector is None:
            return
        directions = np.ascontiguousarray(self._control_vector, np.float32)
        n_rows, n_embd = directions.shape
        data = directions.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        if lib.llama_set_adapter_cvec(context, data, directions.size, n_embd, 1, n_rows):
            cause = f"llama.cpp cannot apply the control vector: {native_log().last_lines()}"
            raise EngineError(cause, "Load the model without it.")

    def activate(self, context: int, adapters: AdapterSet) -> None:
        """Use `adapters` in the context from now on."""
        n_adapters = len(adapters)
        pointers = (lib.llama_adapter_lora_p_ctypes * n_adapters)(*(self._adapters[key] for key, _ in adapters))
        scales = (ctypes.c_float * n_adapters)(*(scale for _, scale in adapters))
        lib.llama_set_adapters_lora(context, pointers, n_adapters, scales)


def _load(model: int, path: Path) -> Any:
    adapter = lib.llama_adapter_lora_init(model, os.fsencode(path))
    if not adapter:
        cause = f"llama.cpp cannot load the adapter {path.name}: {native_log().last_lines()}"
        raise EngineError(cause, "Choose an adapter that was made for this model.")
    return adapter
