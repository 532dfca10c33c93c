"""Samples texts that a grammar allows from a real model; run as a child.

Usage: python grammar_texts.py MODEL.gguf N_TEXTS [VISIBLE_TOKEN ...] < GRAMMAR; prints a JSON list of the texts' bytes
in hexadecimal.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from app.engine.backend import Chunk
from app.engine.llama import LlamaModel
from app.engine.messages import EngineConfig
from app.engine.request import SamplingParams
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST

_N_TOKENS = 60


def main() -> None:
    grammar = sys.stdin.read()
    model = LlamaModel(Path(sys.argv[1]), ON_HOST, False, lambda _fraction: True)
    backend = model.context(EngineConfig(n_ctx=64, n_sequences=1), RuntimeSettings(1, False, False))
    visible, texts = [*map(int, sys.argv[3:])], []
    for seed in range(int(sys.argv[2])):
        params = SamplingParams(temperature=5.0, seed=seed, grammar=grammar)
        sampler = backend.new_sampler(params, ignore_eos=False, visible=visible)
        backend.truncate(0, 0)
        token, text = 65, b""
        for position in range(_N_TOKENS):
            backend.decode([Chunk(0, position, [token], 1)])
            token = sampler.sample(0)
            if backend.is_eog(token):
                break
            text += backend.label(token) if token in visible else backend.piece(token)
        texts.append(text.hex())
        sampler.close()
    print(json.dumps(texts))
    backend.close()
    model.close()


if __name__ == "__main__":
    main()
