"""Makes a context with a large cache and uses a little of it; a child, for native code may end its process.

Usage: python real_cache.py MODEL.gguf; prints JSON {"has_gpu", "n_bytes", "new", "used"}: the size of the cache, and
what the process gained in memory with it, and after 512 tokens.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import psutil

from app.engine.backend import Chunk
from app.engine.llama import LlamaModel, ggml_gpus, native_log
from app.engine.messages import EngineConfig
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST

N_CELLS = 131_072
SETTING = RuntimeSettings(n_threads=1, flash_attention=True, extra_buffers=False)


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def main() -> None:
    model = LlamaModel(Path(sys.argv[1]), ON_HOST, False, lambda _fraction: True)
    native_log().take_buffers()
    before = resident_bytes()
    backend = model.context(EngineConfig(n_ctx=N_CELLS, n_cells=N_CELLS, n_sequences=1), SETTING)
    new = resident_bytes() - before
    backend.decode([Chunk(0, 0, range(1, 513), 1)])
    used = resident_bytes() - before
    n_bytes = sum(buffer.n_bytes for buffer in native_log().take_buffers() if buffer.kind == "KV")
    print(json.dumps({"has_gpu": any(True for _ in ggml_gpus()), "n_bytes": n_bytes, "new": new, "used": used}))
    backend.close()
    model.close()


if __name__ == "__main__":
    main()
