"""The dry run: llama.cpp's own sizes of compute buffers, from a model loaded without its weights.

Independent of plans.
"""

from __future__ import annotations

import os

from app.engine.llama.devices import buffer_bytes_by_device
from app.engine.llama.model import flash_attention, supports_truncation
from app.engine.llama.model_params import ModelParams
from app.engine.llama.native import lib, native_log
from app.engine.load.dry_run import DryRunRequest
from offload.footprint.kv_cache import n_seq_max
from quantizer.errors import EngineError

__all__ = ["context_params", "dry_compute_bytes"]


def dry_compute_bytes(request: DryRunRequest) -> dict[str, int]:
    """Return the bytes of each device's compute buffers by its name, the processor's included.

    Raises EngineError if llama.cpp cannot run the model, or a device no longer exists.
    """
    path, log = request.path, native_log()
    lib.llama_backend_init()
    model_params = ModelParams(request.parameters)
    params = lib.llama_model_default_params()
    model_params.fill(params)
    params.no_alloc, params.load_mode = True, lib.LLAMA_LOAD_MODE_NONE  # mapping would end the process
    params.use_extra_bufts = False
    model = lib.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        raise EngineError(f"llama.cpp cannot load {path.name}: {log.last_lines()}", "See `localllm show`.")
    try:
        log.take_buffers()
        context = lib.llama_init_from_model(model, context_params(model, request))
        if not context:
            raise EngineError(f"llama.cpp cannot make this context: {log.last_lines()}", "Use a smaller --ctx.")
        lib.llama_free(context)
    finally:
        lib.llama_model_free(model)
    return {name: held.compute_bytes for name, held in buffer_bytes_by_device(log.take_buffers()).items()}


def context_params(model: int, request: DryRunRequest) -> lib.llama_context_params:
    """Return the parameters of the requested context over a loaded `model`."""
    params, config = lib.llama_context_default_params(), request.config
    params.n_ctx = config.n_cells
    params.n_seq_max = n_seq_max(config.n_sequences, supports_truncation=supports_truncation(model))
    params.n_batch = params.n_ubatch = config.n_ubatch
    params.type_k, params.type_v = config.kv_types.ids
    params.kv_unified = True
    params.offload_kqv = request.parameters.offload_kqv
    params.flash_attn_type = flash_attention(is_fused=config.is_fused, parameters=request.parameters)
    return params
