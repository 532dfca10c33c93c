"""Walks through grammars with a real vocabulary and asks about every token at each step; run as a child.

Usage: python grammar_walk.py MODEL.gguf < JSON [grammar, ...]; prints JSON [[what differed, ...], ...].
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from app.engine.llama import LlamaModel
from app.engine.llama.grammar_samplers import Grammar
from app.engine.llama.samplers import allowed_by
from app.engine.messages import EngineConfig
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST

N_STEPS = 30


def main() -> None:
    model = LlamaModel(Path(sys.argv[1]), ON_HOST, False, lambda _fraction: True)
    backend = model.context(EngineConfig(n_ctx=64, n_sequences=1), RuntimeSettings(1, False, False))
    characters = backend._first_characters
    rng = random.Random(1)
    found = []
    for text in json.load(sys.stdin):
        grammar = Grammar(backend._vocab, text, lambda: characters, backend.piece, backend.is_eog)
        differences: list[str] = []
        for step in range(N_STEPS):
            expected = characters.all[allowed_by(grammar._native, characters.all)].tolist()
            if grammar.allowed().tolist() != expected:
                differences.append(f"step {step}: {set(expected) ^ set(grammar.allowed().tolist())}")
            going_on = [token for token in expected if grammar.is_text(token) and not backend.is_eog(token)]
            if not going_on:
                break
            grammar.accept(rng.choice(going_on))
        grammar.close()
        found.append({"n_steps": step + 1, "differences": differences})
    print(json.dumps(found))
    backend.close()
    model.close()


if __name__ == "__main__":
    main()
