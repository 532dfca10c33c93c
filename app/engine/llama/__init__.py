"""llama.cpp as a `Backend`. `native` is the only module of the house that imports llama_cpp.

Every pointer has one owner, freed by `close`: LlamaModel, LlamaBackend (a context over it), its head and its samplers.
One thread makes all calls but `interrupt`. Knows nothing of requests beyond their sampling parameters.
"""

from __future__ import annotations

from app.engine.llama.activations import ActivationWatch
from app.engine.llama.context import LlamaBackend
from app.engine.llama.devices import ggml_gpus, held_by_device
from app.engine.llama.dry_run import dry_compute_bytes
from app.engine.llama.headed import HeadedBackend
from app.engine.llama.model import LlamaModel
from app.engine.llama.native import Watch, native_log
from app.engine.llama.rpc import add_rpc_servers
from app.engine.llama.weights import WritableWeights

__all__ = [
    "ActivationWatch",
    "HeadedBackend",
    "LlamaBackend",
    "LlamaModel",
    "Watch",
    "WritableWeights",
    "add_rpc_servers",
    "dry_compute_bytes",
    "ggml_gpus",
    "held_by_device",
    "native_log",
]
