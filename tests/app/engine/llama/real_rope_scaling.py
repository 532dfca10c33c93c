"""Loads models and prints how each is rotated; run as a child, for llama.cpp must stay out of the tests' process.

Usage: python real_rope_scaling.py MODEL.gguf ...; prints JSON [{betas, scales, logits}, ...].
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from app.engine.llama.native import lib
from app.engine.llama.rope_scaling import context_params, scales_rotations

TOKENS = tuple(range(40, 136))


def main() -> None:
    lib.llama_backend_init()
    print(json.dumps([answer(Path(path)) for path in sys.argv[1:]]))


def answer(path: Path) -> dict[str, object]:
    """The betas that a context gets, whether rotations are scaled, and the logits of the last of `TOKENS`."""
    load = lib.llama_model_default_params()
    load.use_extra_bufts = False
    model = lib.llama_model_load_from_file(str(path).encode(), load)
    params = context_params(model)
    params.n_ctx = params.n_batch = params.n_ubatch = 128
    params.type_k = params.type_v = lib.GGML_TYPE_F32
    context = lib.llama_init_from_model(model, params)
    batch = lib.llama_batch_init(len(TOKENS), 0, 1)
    batch.n_tokens = len(TOKENS)
    for i, token in enumerate(TOKENS):
        batch.token[i], batch.pos[i], batch.logits[i] = token, i, i == len(TOKENS) - 1
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
    assert lib.llama_decode(context, batch) == 0
    n_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    logits = np.ctypeslib.as_array(lib.llama_get_logits_ith(context, -1), (n_vocab,)).tolist()
    lib.llama_free(context)
    betas = [params.yarn_beta_fast, params.yarn_beta_slow]
    result = {"betas": betas, "scales": scales_rotations(model), "logits": logits}
    lib.llama_model_free(model)
    return result


if __name__ == "__main__":
    main()
