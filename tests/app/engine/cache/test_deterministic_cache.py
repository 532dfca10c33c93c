"""Deterministic answers: the steps of a request depend on its prompt alone, whatever was computed before or waits."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from app.engine.backend import Chunk, DecodeStatus
from app.engine.cache.deterministic_cache import DETERMINISTIC_STEP
from app.engine.fake import FakeBackend
from app.engine.loop.core import Engine
from app.engine.request import BATCH_PRIORITY, Request, SamplingParams
from app.engine.speculative.cost_model import StepCost
from tests.app.engine.recording import Record, run

GREEDY = SamplingParams(temperature=0.0)
FREE_DRAFTS = {1: 1.0, 64: 1.01}

Steps = list[tuple[int, int, int]]


class Watched(FakeBackend):
    """Records what each decode computes: position, tokens and logits of every chunk."""

    def __init__(self, **kind: Any) -> None:
        super().__init__(n_ctx=2048, n_cells=2048, n_sequences=1, n_batch=DETERMINISTIC_STEP, end_every=10**9, **kind)
        self.steps: list[Steps] = []

    def decode(self, chunks: Sequence[Chunk]) -> DecodeStatus:
        self.steps.append([(chunk.position, len(chunk.tokens), chunk.n_logits) for chunk in chunks])
        return super().decode(chunks)


def request(name: str, prompt: Sequence[int], n_tokens: int = 9, **fields: Any) -> Request:
    return Request(
        request_id=name,
        prompt=tuple(prompt),
        max_tokens=n_tokens,
        sampling=GREEDY,
        ignore_eos=True,
        is_deterministic=True,
        **fields,
    )


def new_engine(backend: FakeBackend, record: Record) -> Engine:
    return Engine(backend, record, step_cost=StepCost(FREE_DRAFTS), is_deterministic=True)


def steps_of(backend: Watched, engine: Engine, *wanted: Request) -> list[Steps]:
    backend.steps = []
    run(engine, *wanted)
    return backend.steps


def letters(n_tokens: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(97, 123), k=n_tokens)


def prompts() -> list[list[int]]:
    """Return prompts that begin alike, and end at a step's end or beside it. One repeats itself, so drafts exist."""
    common = letters(3 * DETERMINISTIC_STEP)
    lengths = [1, 30, DETERMINISTIC_STEP - 1, DETERMINISTIC_STEP, DETERMINISTIC_STEP + 1, 300, 3 * DETERMINISTIC_STEP]
    made = [common[:n_tokens] for n_tokens in lengths]
    return [*made, *([*begin, *letters(20, seed=n)] for n, begin in enumerate(made, 1)), [97, 98] * 200]


@pytest.mark.slow
def test_every_step_is_one_of_the_same_request_computed_alone() -> None:
    alone: dict[tuple[int, ...], list[Steps]] = {}
    for prompt in prompts():
        backend = Watched()
        alone[tuple(prompt)] = steps_of(backend, new_engine(backend, Record()), request("alone", prompt))
    backend, record = Watched(), Record()
    engine, chance, n_reused = new_engine(backend, record), random.Random(1), 0
    for number in range(60):
        prompt = chance.choice(prompts())
        steps = steps_of(backend, engine, request(f"r{number}", prompt))
        n_cached = record.finished[f"r{number}"].usage.n_cached_tokens
        n_reused += n_cached
        assert n_cached % DETERMINISTIC_STEP == 0
        assert all(len(step) == 1 for step in steps), "no other sequence shares a step"
        assert steps == [step for step in alone[tuple(prompt)] if step[0][0] >= n_cached]
        assert record.finished[f"r{number}"].usage.n_drafted_tokens == 0
    assert n_reused > 1000


def test_the_answer_is_read_again_as_part_of_the_next_prompt() -> None:
    backend, record = Watched(), Record()
    engine = new_engine(backend, record)
    prompt = letters(DETERMINISTIC_STEP + 5)
    run(engine, request("first", prompt, n_tokens=2 * DETERMINISTIC_STEP, returns_tokens=True))
    run(engine, request("next", [*prompt, *record.tokens["first"], 97]))
    assert record.finished["next"].usage.n_cached_tokens == DETERMINISTIC_STEP


@pytest.mark.parametrize(
    "kind", [{"supports_truncation": False}, {"n_window": 64}, {"supports_truncation": False, "has_attention": False}]
)
def test_a_sequence_that_cannot_be_truncated_anywhere_is_computed_anew(kind: dict[str, Any]) -> None:
    backend, record = Watched(**kind), Record()
    engine = new_engine(backend, record)
    runs = [steps_of(backend, engine, request(name, letters(400))) for name in "abc"]
    assert runs[0] == runs[1] == runs[2]
    assert record.finished["c"].usage.n_cached_tokens == 0


def test_a_scored_prompt_reuses_nothing_and_leaves_nothing() -> None:
    backend, record = Watched(), Record()
    engine = new_engine(backend, record)
    prompt = letters(400)
    run(engine, request("before", prompt), request("scored", prompt, echo=True, n_logprobs=0))
    assert engine.occupancy.n_cells_used == 0
    run(engine, request("after", prompt), request("again", prompt))
    cached = {name: record.finished[name].usage.n_cached_tokens for name in ("scored", "after", "again")}
    assert cached == {"scored": 0, "after": 0, "again": 3 * DETERMINISTIC_STEP}


def test_answers_come_one_after_the_other_and_none_preempts_another() -> None:
    backend, record = Watched(), Record()
    engine = new_engine(backend, record)
    engine.submit(request("batch", letters(50), n_tokens=30, priority=BATCH_PRIORITY))
    for _ in range(5):
        engine.step()
    engine.submit(request("chat", letters(60, seed=1), n_tokens=30))
    run(engine)
    assert record.order == sorted(record.order, key=["batch", "chat"].index)
    assert record.text["batch"]
    assert record.finished["batch"].usage.n_output_tokens == 30


def test_an_aborted_prompt_leaves_whole_steps_only() -> None:
    backend, record = Watched(), Record()
    engine = new_engine(backend, record)
    engine.submit(request("aborted", letters(1000)))
    for _ in range(2):
        engine.step()
    engine.abort("aborted")
    run(engine, request("next", letters(1000)))
    assert record.finished["next"].usage.n_cached_tokens == 2 * DETERMINISTIC_STEP


def test_what_belongs_to_a_deleted_conversation_is_dropped() -> None:
    engine = new_engine(Watched(), Record())
    run(engine, request("chat", letters(300), conversation="deleted"))
    assert engine.occupancy.n_cells_used == 2 * DETERMINISTIC_STEP
    engine.forget(["deleted"])
    assert engine.occupancy.n_cells_used == 0
