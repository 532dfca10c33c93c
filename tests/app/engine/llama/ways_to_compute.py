"""Answers of a backend with a head of its own, and one text computed in several ways: with a head that follows each
way alike, what it predicts is the same. For children that run native code."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from app.engine.backend import Chunk
from app.engine.llama import LlamaBackend
from app.engine.loop.core import Engine, Event
from app.engine.request import Request, SamplingParams
from app.engine.speculative.cost_model import StepCost
from app.engine.speculative.draft_source import DraftSource

PROMPTS = ("What is a GGUF file?", "How do I quantize a model?", "Tell me about threads.", "What is a GGUF header?")
TEXT = list(b"how a text is cut must not matter")


def free_steps() -> StepCost:
    return StepCost({1: 1.0, 64: 1.01})


def answers(backend: LlamaBackend, sources: list[DraftSource], temperature: float, max_tokens: int) -> dict[str, Any]:
    texts = dict.fromkeys(PROMPTS, "")

    def collect(event: Event) -> None:
        texts[event.request_id] += getattr(event, "text", "")

    # With a constant clock no costs are measured: each draft stays as cheap as given.
    engine = Engine(backend, collect, None, free_steps(), sources, clock=lambda: 0.0)
    for seed, prompt in enumerate(PROMPTS):
        sampling = SamplingParams(temperature=temperature, seed=seed)
        engine.submit(
            Request(
                request_id=prompt,
                prompt=prompt,
                sampling=sampling,
                max_tokens=max_tokens,
                ignore_eos=True,
                context_shift=backend.facts.supports_shift,
            )
        )
    while not engine.is_idle:
        engine.step()
    engine.close()
    forget_all(backend)
    assert engine.counters.n_finished == len(PROMPTS)
    counted = {name: asdict(tally) for name, tally in engine.counters.drafts.items()}
    return {"texts": texts, "drafts": counted, "n_steps": engine.counters.n_steps}


def forget_all(backend: LlamaBackend) -> None:
    for sequence_id in range(backend.facts.n_seq_max):
        backend.truncate(sequence_id, 0)


def compute(backend: LlamaBackend, sequence_id: int, begin: int, end: int) -> None:
    backend.decode([Chunk(sequence_id, begin, TEXT[begin:end], 1)])


def at_once(backend: LlamaBackend) -> int:
    compute(backend, 0, 0, len(TEXT) - 1)
    return 0


def in_pieces(backend: LlamaBackend) -> int:
    for begin in range(0, len(TEXT) - 1, 5):
        compute(backend, 0, begin, min(begin + 5, len(TEXT) - 1))
    return 0


def beside_another(backend: LlamaBackend) -> int:
    for begin in range(0, len(TEXT) - 1, 8):
        tokens = TEXT[begin : min(begin + 8, len(TEXT) - 1)]
        backend.decode([Chunk(1, begin, tokens[::-1], 1), Chunk(0, begin, tokens, 1)])
    return 0


def with_a_shared_begin(backend: LlamaBackend) -> int:
    compute(backend, 1, 0, 20)
    backend.share_cells(1, 2, 0, 20)
    compute(backend, 1, 20, 30)
    compute(backend, 2, 20, len(TEXT) - 1)
    return 2


def saved_and_restored(backend: LlamaBackend) -> int:
    compute(backend, 0, 0, 20)
    state = backend.save_state(0)
    assert len(state) == backend.state_bytes(0)
    backend.truncate(0, 0)
    assert backend.restore_state(1, state)
    compute(backend, 1, 20, len(TEXT) - 1)
    return 1
