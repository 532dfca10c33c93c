"""Compares the choices of chains that are given few candidates with those that are given all; run as a child.

Usage: python sampler_choices.py MODEL.gguf; prints JSON {case: [choices, of which equal]}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from app.engine.backend import Chunk
from app.engine.llama import LlamaModel
from app.engine.llama.samplers import Candidates, LlamaSampler
from app.engine.loop.sampling import n_candidates
from app.engine.messages import EngineConfig
from app.engine.request import SamplingParams
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST

N_STEPS = 30
CASES = {
    "greedy": SamplingParams(temperature=0.0),
    "usual": SamplingParams(temperature=0.8, top_k=8, top_p=0.95, min_p=0.05, seed=1),
    "hot": SamplingParams(temperature=3.0, top_k=12, top_p=1.0, min_p=0.0, seed=2),
    "biased": SamplingParams(temperature=1.0, top_k=8, seed=3, logit_bias=((70, -4.0), (71, -4.0))),
}


def main() -> None:
    model = LlamaModel(Path(sys.argv[1]), ON_HOST, False, lambda _fraction: True)
    backend = model.context(EngineConfig(n_ctx=64, n_sequences=1), RuntimeSettings(1, False, False))
    found = {}
    for name, params in CASES.items():
        n = n_candidates(params)
        assert n is not None
        candidates = Candidates(backend._context, backend.facts.n_vocab)
        few = LlamaSampler(candidates, backend._chains.build(params, (), ()), n)
        all_ = LlamaSampler(candidates, backend._chains.build(params, (), ()))
        n_equal, token = 0, 65
        backend.truncate(0, 0)
        for position in range(N_STEPS):
            backend.decode([Chunk(0, position, [token], 1)])
            token = all_.sample(0)
            n_equal += few.sample(0) == token
        found[name] = [N_STEPS, n_equal]
        few.close()
        all_.close()
    print(json.dumps(found))
    backend.close()
    model.close()


if __name__ == "__main__":
    main()
