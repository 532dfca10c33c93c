"""Says what a model with a sliding window takes, and what it computes after it forgot what is before the window.

Usage: python real_windows.py MODEL.gguf; prints JSON: bytes of the cache as planned and as llama.cpp allocated them,
the first position held before and after, the largest difference of the next logits, and how many tokens remain when one
and when two of those that were there are removed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from app.engine.backend import Chunk
from app.engine.llama import LlamaModel, buffer_bytes_by_device, native_log
from app.engine.messages import EngineConfig
from app.engine.tuning.tune_results import RuntimeSettings
from offload.footprint.model import PlannedModel, RunConfig
from offload.placement.load_parameters import ON_HOST
from quantizer.gguf.header import read_header

N_CTX, N_SEQUENCES, N_TOKENS = 4096, 4, 400


def main() -> None:
    path = Path(sys.argv[1])
    header, log = read_header(path), native_log()
    run = RunConfig(n_ctx=N_CTX, n_cells=N_CTX, n_sequences=N_SEQUENCES, is_fused=False)
    planned = PlannedModel(header, header.tensors).profile(run).cache_bytes
    loaded = LlamaModel(path, ON_HOST, False, lambda _fraction: True)
    log.take_buffers()
    backend = loaded.context(EngineConfig(n_ctx=N_CTX, n_sequences=N_SEQUENCES), RuntimeSettings(1, False, False))
    allocated = sum(usage.cache_bytes for usage in buffer_bytes_by_device(log.take_buffers()).values())

    def next_logits() -> np.ndarray:
        backend.decode([Chunk(0, N_TOKENS, [7], 1)])
        return backend.logits(0)

    backend.decode([Chunk(0, 0, [10 + index % 90 for index in range(N_TOKENS)], 1)])
    whole, n_held = next_logits(), [backend.first_held(0)]
    backend.truncate(0, N_TOKENS)
    is_done = backend.restore_checkpoint(0, 0, N_TOKENS, backend.save_checkpoint(0))
    n_held.append(backend.first_held(0))
    difference = float(abs(next_logits() - whole).max())
    n_left = [backend.truncate(0, N_TOKENS - n_removed) for n_removed in (1, 2)]
    backend.close()
    loaded.close()
    print(json.dumps([planned, allocated, is_done, *n_held, difference, *n_left]))


if __name__ == "__main__":
    main()
