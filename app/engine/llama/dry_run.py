"""What a context computes in, as llama.cpp itself works it out: a model loaded without its weights.

Owns the dry run. Knows nothing of plans.
"""

from __future__ import annotations

import os
from pathlib import Path

from app.engine.dry_run import DryRunRequest
from app.engine.llama.devices import held_by_device
from app.engine.llama.model import can_cut, flash_attention
from app.engine.llama.native import lib, native_log
from app.engine.llama.placing import Placing
from offload.kv_cache import parse_kv_types
from offload.places import n_places
from quantizer.errors import EngineError

__all__ = ["context_params", "dry_compute_bytes"]


def dry_compute_bytes(request: DryRunRequest) -> dict[str, int]:
    """Return the bytes that each device computes in, by its name; the processor's are told too.

    Raises EngineError where llama.cpp cannot run such a model, or a device is not there any more.
    """
    path, log = Path(request.path), native_log()
    lib.llama_backend_init()
    placing = Placing(request.parameters)
    params = lib.llama_model_default_params()
    placing.fill(params)
    params.no_alloc, params.load_mode = True, lib.LLAMA_LOAD_MODE_NONE  # mapping would end the process
    params.use_extra_bufts = False
    model = lib.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        raise EngineError(f"llama.cpp cannot load {path.name}: {log.last_words()}", "See `localllm show`.")
    try:
        log.taken_buffers()
        context = lib.llama_init_from_model(model, context_params(model, request))
        if not context:
            raise EngineError(f"llama.cpp cannot make this context: {log.last_words()}", "Use a smaller --ctx.")
        lib.llama_free(context)
    finally:
        lib.llama_model_free(model)
    return {name: held.compute_bytes for name, held in held_by_device(log.taken_buffers()).items()}


def context_params(model: int, request: DryRunRequest) -> lib.llama_context_params:
    """Return the context that is asked for over a loaded `model`."""
    params = lib.llama_context_default_params()
    params.n_ctx = request.n_cells
    params.n_seq_max = n_places(request.n_sequences, can_cut=can_cut(model))
    params.n_batch = params.n_ubatch = request.n_ubatch
    params.type_k, params.type_v = parse_kv_types(request.kv_type).ids
    params.kv_unified = True
    params.offload_kqv = request.parameters.offload_kqv
    params.flash_attn_type = flash_attention(is_fused=request.is_fused, parameters=request.parameters)
    return params
