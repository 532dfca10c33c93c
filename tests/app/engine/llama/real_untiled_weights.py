"""Prints what steps of several sizes compute, as a digest of their logits by their tokens and logits; run as a child.

Usage: python real_untiled_weights.py MODEL.gguf [TILED_FROM]. With TILED_FROM ggml's tiled kernels are left out below
so many rows, of weights of every type; with GGML_CPU_TILED_MM=0 in the environment ggml leaves them out itself.
"""

from __future__ import annotations

import hashlib
import json
import sys
from contextlib import closing
from pathlib import Path

from app.engine.backend import Chunk
from app.engine.llama import LlamaModel
from app.engine.messages import EngineConfig
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST
from offload.speed.type_costs import TILED_TYPES

STEPS = ((7, 7), (8, 8), (11, 11), (12, 12), (40, 40), (40, 8), (12, 12))


def main() -> None:
    setting = RuntimeSettings(1, flash_attention=False, extra_buffers=False)
    found = []
    with closing(LlamaModel(Path(sys.argv[1]), ON_HOST, False, lambda _fraction: True)) as model:
        if sys.argv[2:]:
            model.leave_out_tiles(dict.fromkeys(TILED_TYPES, int(sys.argv[2])))
        with closing(model.context(EngineConfig(n_ctx=256, n_sequences=1), setting)) as backend:
            for n_tokens, n_logits in STEPS:
                backend.decode([Chunk(0, 0, list(range(10, 10 + n_tokens)), n_logits)])
                rows = b"".join(backend.logits(row).tobytes() for row in range(n_tokens - n_logits, n_tokens))
                found.append(hashlib.sha256(rows).hexdigest())
                backend.truncate(0, 0)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
