"""llama.cpp as a `Backend`. `native` is the only module of the project that imports llama_cpp.

Every pointer has one owner, freed by `close`: LlamaModel, LlamaBackend (a context over it), HeadContext, LlamaProjector
and samplers. One thread makes all calls except `interrupt`. Independent of requests, except for their sampling
parameters.
"""

from __future__ import annotations

from app.engine.llama.context import LlamaBackend
from app.engine.llama.devices import add_rpc_servers, buffer_bytes_by_device, ggml_gpus
from app.engine.llama.eval_callback import (
    ActivationRecorder,
    ExpertReadAhead,
    HiddenStateRecorder,
    WritableWeights,
)
from app.engine.llama.head_backend import HeadBackend, HeadContext
from app.engine.llama.head_contexts import AutoregressiveContext, BlockContext, MtpContext, SelectorContext
from app.engine.llama.model import LlamaModel, LoadedHead, dry_compute_bytes, vocabulary_alone
from app.engine.llama.native import EvalObserver, init_numa, native_log, system_info
from app.engine.llama.projector import LlamaProjector, ProjectorOptions
from app.engine.llama.speaker import LlamaSpeaker

__all__ = [
    "ActivationRecorder",
    "AutoregressiveContext",
    "BlockContext",
    "EvalObserver",
    "ExpertReadAhead",
    "HeadBackend",
    "HeadContext",
    "HiddenStateRecorder",
    "LlamaBackend",
    "LlamaModel",
    "LlamaProjector",
    "LlamaSpeaker",
    "LoadedHead",
    "MtpContext",
    "ProjectorOptions",
    "SelectorContext",
    "WritableWeights",
    "add_rpc_servers",
    "buffer_bytes_by_device",
    "dry_compute_bytes",
    "ggml_gpus",
    "init_numa",
    "native_log",
    "system_info",
    "vocabulary_alone",
]
