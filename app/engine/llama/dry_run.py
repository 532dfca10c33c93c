"""What a context computes in, as llama.cpp itself works it out: a model loaded without its weights.

Owns the dry run. It replaces the process's log, so it belongs in one of its own. Knows nothing of plans.
"""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

from app.engine.dry_run import DryRunRequest
from app.engine.llama.native import NativeLog, lib
from offload.kv_cache import parse_kv_types
from quantizer.errors import EngineError

__all__ = ["compute_buffers"]

_BUFFER = re.compile(r"(\S+) compute buffer size = +([\d.]+) MiB")
_MIB = 1 << 20


class _FullLog(NativeLog):
    """Everything llama.cpp says while this is alive."""

    def __init__(self) -> None:
        self.said: list[str] = []
        super().__init__()

    def _receive(self, level: int, text: bytes, data: object) -> None:
        self.said.append(text.decode("utf-8", "replace"))
        super()._receive(level, text, data)


def compute_buffers(request: DryRunRequest) -> dict[str, int]:
    """Return the bytes of each compute buffer, by the name of its memory, where no GPU takes part.

    Raises EngineError where llama.cpp cannot run such a model.
    """
    path, log = Path(request.path), _FullLog()
    lib.llama_backend_init()
    params = lib.llama_model_default_params()
    params.no_alloc, params.load_mode = True, lib.LLAMA_LOAD_MODE_NONE  # mapping would end the process
    params.n_gpu_layers, params.use_extra_bufts = 0, False
    no_devices = (ctypes.c_void_p * 1)(None)
    params.devices = ctypes.addressof(no_devices)
    model = lib.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        raise EngineError(f"llama.cpp cannot load {path.name}: {log.last_words()}", "See `localllm show`.")
    try:
        context = lib.llama_init_from_model(model, _context_params(request))
        if not context:
            raise EngineError(f"llama.cpp cannot make this context: {log.last_words()}", "Use a smaller --ctx.")
        lib.llama_free(context)
    finally:
        lib.llama_model_free(model)
    return {name: int(float(mib) * _MIB) for name, mib in _BUFFER.findall("".join(log.said))}


def _context_params(request: DryRunRequest) -> lib.llama_context_params:
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_seq_max = request.n_cells, request.n_sequences
    params.n_batch = params.n_ubatch = request.n_ubatch
    params.type_k, params.type_v = parse_kv_types(request.kv_type).ids
    params.kv_unified = True
    is_fused = request.is_fused
    params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_AUTO if is_fused else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return params
