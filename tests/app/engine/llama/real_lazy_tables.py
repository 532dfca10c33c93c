"""Says how much of a model's file is in memory, and what it computes, with its lazy tables in memory and in the file.

Usage: python real_lazy_tables.py MODEL.gguf [N_TOKENS] (Linux); prints JSON for each, first with all in memory: seconds
of the load, resident bytes of the mapped file after it and after N_TOKENS different tokens, seconds of these, and a sum
of the logits behind them. The file leaves the system's cache before each load.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from dataclasses import replace
from pathlib import Path

from app.engine.backend import Chunk
from app.engine.llama import LlamaModel
from app.engine.messages import EngineConfig
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST


def resident_bytes(path: Path) -> int:
    """Return the bytes of the file's mappings that are in this process's memory."""
    maps = Path("/proc/self/smaps").read_text(encoding="utf-8")
    found = re.findall(rf"^\S+-\S+ .*{re.escape(str(path))}\n(?:.*\n)*?Rss: +(\d+) kB$", maps, re.MULTILINE)
    return 1024 * sum(map(int, found))


def forget_pages(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fdatasync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def main() -> None:
    path, n_tokens = Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 64
    for is_lazy in (False, True):
        forget_pages(path)
        begun_s = time.perf_counter()
        loaded = LlamaModel(path, replace(ON_HOST, has_lazy_tables=is_lazy), False, lambda _fraction: True)
        load_s, after_load = time.perf_counter() - begun_s, resident_bytes(path)
        config = EngineConfig(n_ctx=max(256, n_tokens))
        backend = loaded.context(config, RuntimeSettings(os.cpu_count() or 1, False, False))
        begun_s = time.perf_counter()
        for begin in range(0, n_tokens, 64):
            tokens = [10 + 5 * index for index in range(begin, min(begin + 64, n_tokens))]
            backend.decode([Chunk(0, begin, tokens, 1)])
        tokens_s = time.perf_counter() - begun_s
        logits = float(abs(backend.logits(len(tokens) - 1)).sum())
        print(json.dumps([load_s, after_load, resident_bytes(path), tokens_s, logits]))
        backend.close()
        loaded.close()


if __name__ == "__main__":
    main()
