"""Asks a real model through the real engine for probabilities, many requests at a time; run as a child, for native code
may end its process.

Usage: python real_scores.py MODEL.gguf FOLDER; prints JSON {"requests": [{"batched", "alone", "n_prompt", "usage"}],
"n_restored", "in_turn": [{"batched", "alone"}]}: the log probabilities of each batched with others, and where they are
computed in one batch with nothing beside it; then the same of prompts that came one after the other. FOLDER is for the
store. The cache is of F32, so that only the order of sums differs between the two.
"""

from __future__ import annotations

import json
import math
import random
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from app.engine.backend import Chunk
from app.engine.cache.state_store import SavedMatch, StateStore
from app.engine.llama import LlamaBackend, LlamaModel
from app.engine.loop.core import Engine
from app.engine.messages import EngineConfig, Failed, Finished, Output
from app.engine.offline.evaluation import log_softmax
from app.engine.request import Request, SamplingParams, TokenLogprob
from app.engine.speculative.cost_model import StepCost
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST

N_REQUESTS, N_CTX, N_CELLS, N_BATCH, N_ANSWER = 40, 256, 512, 48, 12
NO_TEXT = range(258, 272)  # special tokens: their text does not identify them
GREEDY = SamplingParams(temperature=0.0, repeat_penalty=1.0, logit_bias=tuple((token, -math.inf) for token in NO_TEXT))
SETTING = RuntimeSettings(1, flash_attention=False, extra_buffers=False, kv_type="f32")


class FreeDrafts(StepCost):
    """Whatever can be drafted pays."""

    def observe(self, n_tokens: int, duration_s: float, n_answers: int = 1) -> None:
        """Learn nothing."""

    def ratio(self, n_tokens: int, n_answers: int = 1) -> float:
        return 1.0


class CountingStore(StateStore):
    """Counts the sequences that come back."""

    n_loaded = 0

    def load(self, match: SavedMatch) -> bytes | bytearray | None:
        self.n_loaded += 1
        return super().load(match)


class Recorder:
    """The events of each request."""

    def __init__(self) -> None:
        self.entries: dict[str, list[TokenLogprob]] = {}
        self.finished: dict[str, Finished] = {}

    def __call__(self, event: Output | Finished | Failed) -> None:
        if isinstance(event, Output):
            self.entries.setdefault(event.request_id, []).extend(event.logprobs)
        else:
            assert isinstance(event, Finished), event
            self.finished[event.request_id] = event


def prompts(chance: random.Random) -> list[list[int]]:
    """Return prompts of bytes: some begin alike, some come again, and each repeats itself, so that drafts are found."""
    begins = [[chance.randrange(256) for _ in range(n_tokens)] for n_tokens in (40, 70, 110)]
    made: list[list[int]] = []
    for _ in range(N_REQUESTS):
        begin = chance.choice(begins)
        phrase = [chance.randrange(256) for _ in range(chance.randint(3, 20))]
        fresh = [*begin[: chance.randint(1, len(begin))], *phrase * chance.randint(1, 4)]
        made.append(chance.choice(made) if made and chance.random() < 0.2 else fresh)
    return made


def new_request(name: str, prompt: list[int], **changes: Any) -> Request:
    return Request(request_id=name, prompt=tuple(prompt), sampling=GREEDY, ignore_eos=True, **changes)


def play(backend: LlamaBackend, store: StateStore, chance: random.Random) -> tuple[list[Request], Recorder]:
    """Answer all requests, a few steps after one another, and return them with their events."""
    recorder = Recorder()
    engine = Engine(backend, recorder, store, FreeDrafts())
    requests = [
        new_request(
            str(index),
            prompt,
            max_tokens=N_ANSWER,
            n_logprobs=0,
            echo=index % 2 == 0,
            priority=chance.choice((0, 0, 1)),
        )
        for index, prompt in enumerate(prompts(chance))
    ]
    for request in requests:
        engine.submit(request)
        for _ in range(chance.choice((0, 1, 3, 12))):
            engine.step()
            engine.check_integrity()
    while not engine.is_idle:
        engine.step()
    engine.close()
    for sequence_id in range(backend.facts.n_seq_max):
        backend.truncate(sequence_id, 0)
    return requests, recorder


def play_in_turn(backend: LlamaBackend, store: StateStore, chance: random.Random) -> tuple[list[Request], Recorder]:
    """Score prompts one after the other, some behind an answer, and return the requests and their events."""
    recorder = Recorder()
    engine = Engine(backend, recorder, store)
    requests = []
    for index, prompt in enumerate(prompts(chance)):
        scored = new_request(str(index), prompt, max_tokens=0, n_logprobs=0, echo=True)
        answered = new_request(f"before {index}", prompt[::-1], max_tokens=N_ANSWER)
        for request in (answered, scored) if index % 3 == 0 else (scored,):
            engine.submit(request)
            while not engine.is_idle:
                engine.step()
                engine.check_integrity()
        requests.append(scored)
    engine.close()
    return requests, recorder


def alone(backend: LlamaBackend, tokens: list[int]) -> list[float]:
    """Return how likely each of `tokens` but the first is; the cache holds nothing else."""
    backend.truncate(0, 0)
    backend.decode([Chunk(0, 0, tokens[:-1], len(tokens) - 1)])
    logits = np.stack([backend.logits(row) for row in range(len(tokens) - 1)])
    found: list[float] = log_softmax(logits)[np.arange(len(tokens) - 1), tokens[1:]].tolist()
    return found


def main() -> None:
    path, folder, chance = Path(sys.argv[1]), Path(sys.argv[2]), random.Random(5)
    model = LlamaModel(path, ON_HOST, SETTING.extra_buffers, lambda _fraction: True)
    busy = EngineConfig(n_ctx=N_CTX, n_cells=N_CELLS, n_batch=N_BATCH, n_sequences=4)
    backend = model.context(busy, SETTING)
    tokens_of = {backend.label(token): token for token in range(backend.facts.n_vocab)}
    store = CountingStore(folder)
    requests, recorder = play(backend, store, chance)
    n_restored = store.n_loaded
    in_turn, recorded_in_turn = play_in_turn(backend, store, chance)
    store.close()
    backend.close()
    quiet = model.context(EngineConfig(n_ctx=N_CTX, n_batch=N_CTX, n_sequences=1), SETTING)
    found = []
    for request in requests:
        entries = recorder.entries[request.request_id]
        answer = [tokens_of[entry.piece] for entry in entries[-N_ANSWER:]]
        scores = [entry.logprob for entry in entries if entry.logprob is not None]
        found.append(
            {
                "batched": scores,
                "alone": alone(quiet, [*request.prompt, *answer])[-len(scores) :],
                "n_prompt": len(request.prompt),
                "usage": asdict(recorder.finished[request.request_id].usage),
            }
        )
    scores_in_turn = [
        {
            "batched": [entry.logprob for entry in recorded_in_turn.entries[request.request_id][1:]],
            "alone": alone(quiet, list(request.prompt)),
        }
        for request in in_turn
    ]
    print(json.dumps({"requests": found, "n_restored": n_restored, "in_turn": scores_in_turn}))
    quiet.close()
    model.close()


if __name__ == "__main__":
    main()
