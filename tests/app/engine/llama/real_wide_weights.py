"""Says what a context with widened weights computes; run as a child.

Usage: python real_wide_weights.py MODEL.gguf BF16.gguf. The latter is written: the same weights in BF16, but the
output's, which stay Q6_K. Prints JSON {"n_bytes": of the widened weights, "same": {what: equal to the bit}, "differ":
whether the model's own weights compute other bits}.
"""

from __future__ import annotations

import ctypes
import json
import sys
from contextlib import closing
from pathlib import Path

import numpy as np

from app.engine.backend import Chunk
from app.engine.llama import LlamaBackend, LlamaModel
from app.engine.llama.native import lib
from app.engine.messages import EngineConfig
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST

PROMPT = list(range(10, 74))
CONFIG = EngineConfig(n_ctx=256, n_sequences=1)
SETTING = RuntimeSettings(1, flash_attention=True, extra_buffers=False)


def logits(backend: LlamaBackend, n_tokens: int) -> np.ndarray:
    backend.decode([Chunk(0, 0, PROMPT[:n_tokens], 1)])
    found = backend.logits(n_tokens - 1).copy()
    backend.truncate(0, 0)
    return found


def write_bf16(path: Path, target: Path) -> None:
    params = lib.llama_model_quantize_default_params()
    params.output_tensor_type = params.token_embedding_type = lib.GGML_TYPE_Q6_K
    params.ftype, params.allow_requantize, params.nthread = lib.LLAMA_FTYPE_MOSTLY_BF16, True, 1
    assert lib.llama_model_quantize(bytes(path), bytes(target), ctypes.byref(params)) == 0


def main() -> None:
    path, target = map(Path, sys.argv[1:])
    write_bf16(path, target)
    with (
        closing(LlamaModel(target, ON_HOST, False, lambda _fraction: True)) as model,
        closing(model.context(CONFIG, SETTING)) as backend,
    ):
        reference = logits(backend, len(PROMPT))
    with (
        closing(LlamaModel(path, ON_HOST, False, lambda _fraction: True)) as model,
        closing(model.context(CONFIG, SETTING)) as own,
    ):
        few, many = logits(own, 1), logits(own, len(PROMPT))
        with closing(model.context(CONFIG, SETTING, is_wide=True)) as wide:
            widened, single = logits(wide, len(PROMPT)), logits(wide, 1)
            beside = logits(own, 1), logits(own, len(PROMPT))
            weights = wide._weights
            n_bytes = weights.wide.n_bytes if weights is not None and weights.wide is not None else 0
        after = logits(own, len(PROMPT))
    same = {
        "a step of one token": np.array_equal(single, few),
        "a step of many, as in BF16": np.array_equal(widened, reference),
        "the context beside it": np.array_equal(beside[0], few) and np.array_equal(beside[1], many),
        "afterwards": np.array_equal(after, many),
    }
    print(json.dumps({"n_bytes": n_bytes, "same": same, "differ": not np.array_equal(many, widened)}))


if __name__ == "__main__":
    main()
