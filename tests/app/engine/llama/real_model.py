"""Answers requests with a real model file through the real engine; run as a child, for native code may end its process.

Usage: python real_model.py MODEL.gguf < JSON {name: case}; prints JSON {name: {"tokens", "text", "error", ...}}.
A case has "sampling" and may have "prompt", "max_tokens", "drafts", "echo", "reasoning" and "is_filtered_first".
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Choice, Sampler
from app.engine.llama import LlamaBackend, LlamaModel, grammar_samplers, model
from app.engine.loop.core import Engine
from app.engine.messages import EngineConfig, Failed, Finished, Output, Truncation
from app.engine.offline import scoring_model
from app.engine.offline.evaluation import log_softmax
from app.engine.request import ReasoningBudget, Request, SamplingParams
from app.engine.speculative.cost_model import StepCost
from app.engine.tuning.tune_results import RuntimeSettings
from app.protocol.codec import decode
from offload.placement.load_parameters import ON_HOST


class Recording(LlamaBackend):
    """Keeps every token that its samplers choose, in order."""

    chosen: list[int]
    is_filtered_first = False

    def new_sampler(self, *arguments: Any, **options: Any) -> Sampler:
        sampler = super().new_sampler(*arguments, **options)
        if self.is_filtered_first:
            assert isinstance(sampler, grammar_samplers.GrammarSampler)
            sampler._is_filtered_first = True
        return RecordingSampler(sampler, self.chosen)


class FreeDrafts(StepCost):
    """Whatever can be drafted pays."""

    def observe(self, n_tokens: int, duration_s: float, n_answers: int = 1) -> None:
        pass

    def ratio(self, n_tokens: int, n_answers: int = 1) -> float:
        return 1.0


class RecordingSampler:
    def __init__(self, sampler: Sampler, chosen: list[int]) -> None:
        self._sampler = sampler
        self._chosen = chosen
        self.close = sampler.close

    def sample(self, row: int) -> int:
        self._chosen.append(self._sampler.sample(row))
        return self._chosen[-1]

    def choice(self, row: int) -> Choice:
        return self._sampler.choice(row)

    def foresee(self, logits: NDArray[np.float32], n_ahead: int) -> tuple[int, float] | None:
        return self._sampler.foresee(logits, n_ahead)

    def accept(self, token: int) -> None:
        self._sampler.accept(token)
        self._chosen.append(token)


def answer(backend: Recording, case: dict[str, Any]) -> dict[str, Any]:
    events: list[Output | Finished | Failed] = []
    backend.chosen, backend.is_filtered_first = [], case.get("is_filtered_first", False)
    engine = Engine(backend, events.append, step_cost=FreeDrafts())
    try:
        sampling = decode(SamplingParams, case["sampling"])
        request = Request(
            request_id="a",
            prompt=case.get("prompt", "The cat sat on the mat."),
            sampling=sampling,
            max_tokens=case.get("max_tokens", 24),
            ignore_eos=not sampling.grammar,
            n_logprobs=case.get("n_logprobs"),
            logprobs_after_samplers=case.get("after_samplers", False),
            echo=case.get("echo", False),
            reasoning=decode(ReasoningBudget, case["reasoning"]) if "reasoning" in case else None,
        )
        engine.submit(request)
        while not engine.is_idle:
            engine.step()
    finally:
        engine.close()
        for sequence_id in range(backend.facts.n_seq_max):
            backend.truncate(sequence_id, 0)
    last = events[-1]
    text = "".join(event.text for event in events if isinstance(event, Output))
    if isinstance(last, Failed):
        return {"tokens": backend.chosen, "text": text, "error": last.error.cause}
    assert isinstance(last, Finished)
    entries = [entry for event in events if isinstance(event, Output) for entry in event.logprobs]
    return {
        "tokens": backend.chosen,
        "text": text,
        "error": "",
        "n_accepted": last.usage.n_accepted_tokens,
        "logprobs": [(list(entry.piece), entry.logprob, [p for _, _, p in entry.top]) for entry in entries],
    }


def likelihoods(backend: LlamaBackend, text: str) -> list[float]:
    """Return how likely each token of `text` but the first is, as the judge of models reads it: no engine, no cache."""
    tokens = backend.tokenize(text, True, True)
    logprobs: list[float] = []
    for begin, n_tokens in scoring_model.compute([backend], tokens[:-1], 0):
        logits = np.stack([backend.logits(row) for row in range(n_tokens)])
        logprobs += log_softmax(logits)[np.arange(n_tokens), tokens[begin + 1 : begin + n_tokens + 1]].tolist()
    backend.truncate(0, 0)
    return logprobs


def main() -> None:
    model.LlamaBackend = Recording  # type: ignore[misc]
    loaded = LlamaModel(Path(sys.argv[1]), ON_HOST, False, lambda _fraction: True)
    backend = loaded.context(EngineConfig(n_ctx=2048, n_sequences=2), RuntimeSettings(1, False, False))
    assert isinstance(backend, Recording)
    facts = backend.facts
    answers = {}
    for name, case in json.load(sys.stdin).items():
        backend.facts = replace(facts, truncation=Truncation(has_states=not case.get("drafts", True)))
        answers[name] = answer(backend, case)
        if case.get("echo"):
            answers[name]["likelihoods"] = likelihoods(backend, case["prompt"])
    print(json.dumps(answers))
    backend.close()
    loaded.close()


if __name__ == "__main__":
    main()
