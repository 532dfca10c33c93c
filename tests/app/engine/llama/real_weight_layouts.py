"""Says what a model with both layouts of its weights computes; run as a child.

Usage: python real_weight_layouts.py MODEL.gguf; prints JSON {"n_bytes": mapped bytes, "same": {what: equal to the bit},
"differ": whether the layouts compute different bits at all}.
"""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from app.engine.backend import Chunk
from app.engine.llama import LlamaModel
from app.engine.llama.step_weights import repacked_weights
from app.engine.messages import EngineConfig
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST
from quantizer.gguf.header import read_header

PROMPT, PLAIN_FROM = list(range(10, 106)), 64
EVERY_TYPE = range(64)
CONFIG = EngineConfig(n_ctx=256, n_sequences=1)
REPACKED = RuntimeSettings(1, flash_attention=False, extra_buffers=True)


def logits(model: LlamaModel, setting: RuntimeSettings) -> dict[str, np.ndarray]:
    """Return the logits after a few tokens, after a long prompt, and after a few again."""
    found = {}
    with closing(model.context(CONFIG, setting)) as backend:
        for name, n_tokens in (("few", 4), ("many", len(PROMPT)), ("few again", 4)):
            backend.decode([Chunk(0, 0, PROMPT[:n_tokens], 1)])
            found[name] = backend.logits(n_tokens - 1)
            backend.truncate(0, 0)
    return found


def loaded(path: Path, *, is_repacked: bool) -> LlamaModel:
    return LlamaModel(path, ON_HOST, is_repacked, lambda _fraction: True)


def main() -> None:
    path = Path(sys.argv[1])
    with closing(loaded(path, is_repacked=False)) as model:
        plain = logits(model, replace(REPACKED, extra_buffers=False))
    with closing(loaded(path, is_repacked=True)) as model:
        repacked = logits(model, REPACKED)
        n_bytes = model.map_plain_weights(read_header(path), repacked_weights(EVERY_TYPE))
        with_both = replace(REPACKED, plain_from=PLAIN_FROM)
        both = logits(model, with_both)
        with closing(model.context(CONFIG, with_both)) as other:
            other.decode([Chunk(0, 0, PROMPT, 1)])  # leaves the plain weights in use
            beside = logits(model, REPACKED)
    # Where nothing is mapped, long prompts compute as short ones do: with AMX, F16 has a layout that has no plain twin.
    many = plain if n_bytes else repacked
    same = {
        "few": np.array_equal(both["few"], repacked["few"]),
        "many": np.array_equal(both["many"], many["many"]),
        "few again": np.array_equal(both["few again"], repacked["few again"]),
        "a context beside it": all(np.array_equal(beside[name], repacked[name]) for name in repacked),
    }
    differ = not np.array_equal(plain["few"], repacked["few"]) or not np.array_equal(plain["many"], repacked["many"])
    print(json.dumps({"n_bytes": n_bytes, "same": same, "differ": differ}))


if __name__ == "__main__":
    main()
