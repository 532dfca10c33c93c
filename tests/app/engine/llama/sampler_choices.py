"""Compares the choices of chains that are given few candidates with those that are given all, and what a chain is said
to choose from with what it chooses; run as a child.

Usage: python sampler_choices.py MODEL.gguf; prints JSON {"equal": {case: [choices, of which equal]}, "drawn": {case:
[chances of the tokens, shares of the draws, draws of other tokens]}}.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
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
N_DRAWS = 4000
DRAWN = {
    **CASES,
    "every token": SamplingParams(temperature=0.5, top_k=0, top_p=1.0, min_p=0.0, seed=4),
    "penalized": SamplingParams(temperature=0.6, top_k=6, seed=5, repeat_penalty=1.5, frequency_penalty=0.5),
    "typical": SamplingParams(temperature=0.9, top_k=20, typical_p=0.6, top_n_sigma=2.0, seed=6),
    "dynamic": SamplingParams(temperature=1.0, dynatemp_range=0.5, top_k=5, seed=7),
    "without the likeliest": SamplingParams(
        temperature=1.0, top_k=9, min_p=0.0, top_p=1.0, xtc_probability=1.0, xtc_threshold=0.01, seed=8
    ),
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
    backend.truncate(0, 0)
    backend.decode([Chunk(0, 0, [65, 70, 65], 1)])
    drawn = {}
    for name, params in DRAWN.items():
        sampler = LlamaSampler(candidates, backend._chains.build(params, (), [65, 70, 65]))
        choice = sampler.choice(2)
        counts = Counter(sampler.choose(2) for _ in range(N_DRAWS))
        shares = [counts.pop(token, 0) / N_DRAWS for token in choice.tokens.tolist()]
        drawn[name] = [choice.probabilities.tolist(), shares, counts.total()]
        sampler.close()
    print(json.dumps({"equal": found, "drawn": drawn}))
    backend.close()
    model.close()


if __name__ == "__main__":
    main()
