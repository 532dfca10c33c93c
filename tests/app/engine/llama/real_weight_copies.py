"""Says what a context with copies of weights computes; run as a child.

Usage: python real_weight_copies.py MODEL.gguf KIND [LORA.gguf]. All quantized weights have copies in KIND. Prints JSON
{"planned", "taken": bytes of the copies, "same": {what: equal to the bit}, "differ": whether the model's own weights
compute other bits, "apart": the mean difference of the log probabilities of the likeliest ten, with both, "is_bf16":
whether a file in BF16 with its output in Q6_K computes these bits}.
"""

from __future__ import annotations

import ctypes
import json
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from app.engine.backend import Chunk
from app.engine.llama import LlamaBackend, LlamaModel
from app.engine.llama.native import lib
from app.engine.messages import EngineConfig
from app.engine.offline.evaluation import log_softmax
from app.engine.request import Adapter
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST
from offload.speed.type_costs import UNQUANTIZED, copy_bytes
from quantizer.gguf.header import read_header
from quantizer.gguf.tensor_types import WEIGHT_TYPES

PROMPT = [10 + index % 200 for index in range(192)]
CONFIG = EngineConfig(n_ctx=256, n_sequences=1)
OWN = RuntimeSettings(1, flash_attention=False, extra_buffers=False)


def logits(backend: LlamaBackend, n_tokens: int) -> np.ndarray:
    """Return the logits after the first `n_tokens` of the prompt."""
    backend.set_adapters(tuple((adapter.key, 1.0) for adapter in backend.facts.adapters))
    backend.truncate(0, 0)
    backend.decode([Chunk(0, 0, PROMPT[:n_tokens], 1)])
    return backend.logits(n_tokens - 1).copy()


def loaded(path: Path) -> LlamaModel:
    return LlamaModel(path, ON_HOST, False, lambda _fraction: True)


def of_file_in_bf16(path: Path, target: Path) -> np.ndarray:
    params = lib.llama_model_quantize_default_params()
    params.output_tensor_type = params.token_embedding_type = lib.GGML_TYPE_Q6_K
    params.ftype, params.allow_requantize, params.nthread = lib.LLAMA_FTYPE_MOSTLY_BF16, True, 1
    assert lib.llama_model_quantize(bytes(path), bytes(target), ctypes.byref(params)) == 0
    with closing(loaded(target)) as model, closing(model.context(CONFIG, OWN)) as backend:
        return logits(backend, len(PROMPT))


def main() -> None:
    path, kind, adapters = Path(sys.argv[1]), sys.argv[2], [Path(each) for each in sys.argv[3:]]
    copies = {name: kind for name in WEIGHT_TYPES if name not in UNQUANTIZED}
    free_bytes = [1 << 40]
    has_copies = replace(OWN, copies=tuple(copies.items()))
    with closing(loaded(path)) as model:
        if adapters:
            model.load_adapters({Adapter(f"{index}", f"{index}"): each for index, each in enumerate(adapters)}, None)
        taken = model.add_copies(copies, lambda n_bytes: n_bytes <= free_bytes[0])
        with closing(model.context(CONFIG, OWN)) as own, closing(model.context(CONFIG, has_copies)) as both:
            one, few, many = (logits(own, n_tokens) for n_tokens in (1, 16, len(PROMPT)))
            free_bytes[0] = 1
            short_of_memory = logits(both, len(PROMPT))
            found = None if both._weights is None else both._weights.copies
            if found is not None:
                found._look_at_s = 0.0  # the time to look at memory again has come
                free_bytes[0] = 1 << 40
                assert not found.serve(len(PROMPT), 2, lambda: True), "an interrupted step leaves copying to the next"
            assert not both.has_copies
            both.truncate(0, 0)
            both.decode([Chunk(0, 0, PROMPT, len(PROMPT))])  # all have logits: an answer with its drafts
            drafts_copied = both.has_copies
            copied = logits(both, len(PROMPT))
            has_copies_after_prompt = both.has_copies
            same = {
                "drafts copied nothing": not drafts_copied,
                "the prompt copied": has_copies_after_prompt is (found is not None),
                "without memory": np.array_equal(short_of_memory, many),
                "a step of one token": np.array_equal(logits(both, 1), one),
                "a step of a few tokens": np.array_equal(logits(both, 16), few),
                "the context beside it": np.array_equal(logits(own, len(PROMPT)), many),
                "the prompt again": np.array_equal(logits(both, len(PROMPT)), copied),
            }
            if found is not None:
                found._look_at_s, free_bytes[0] = 0.0, -1
                same["given back"] = np.array_equal(logits(both, len(PROMPT)), many)
                found._look_at_s = 0.0
                free_bytes[0] = 1 << 40
                same["made again"] = np.array_equal(logits(both, len(PROMPT)), copied)
            with closing(model.context(CONFIG, OWN, copies=model.new_copies(copies, lambda _: True))) as batch:
                same["a context with its own"] = np.array_equal(logits(batch, len(PROMPT)), copied)
            same["afterwards"] = np.array_equal(logits(own, len(PROMPT)), many)
    is_bf16 = False
    if kind == "BF16" and not adapters:
        with TemporaryDirectory() as folder:
            is_bf16 = np.array_equal(of_file_in_bf16(path, Path(folder, "bf16.gguf")), copied)
    before, after = (log_softmax(row[None])[0] for row in (many, copied))
    top = np.argsort(-before)[:10]
    answer = {
        "planned": copy_bytes(read_header(path).tensors, copies),
        "taken": taken,
        "same": same,
        "differ": not np.array_equal(many, copied),
        "is_bf16": is_bf16,
        "apart": float(np.abs(before - after)[top].mean()),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
