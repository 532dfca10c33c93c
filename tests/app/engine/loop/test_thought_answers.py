"""Answers whose thoughts the engine ends: the fake speaks a thought that the prompt prescribes, a token a byte."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.backend import Chunk, DecodeStatus
from app.engine.fake import FakeBackend
from app.engine.loop.core import Engine
from app.engine.request import FinishReason, ReasoningBudget, Request, SamplingParams
from app.engine.speculative.cost_model import StepCost
from tests.app.engine.recording import Record, run

BUDGET = ReasoningBudget(
    opening="<think>", closings=("</think>",), ending="\n</think>", conclusion="\n\nEnough.", max_tokens=20
)
ENDED = "\n\nEnough.\n</think>"
THOUGHT = "so and so and so and so and so and so and so"
SAID = f"<think>{THOUGHT}</think>The answer."
CUT = f"<think>{THOUGHT[:20]}{ENDED}The answer."
CHEAP = {1: 1.0, 64: 1.01}  # drafts pay
STATES: list[dict[str, Any]] = [
    {"supports_truncation": False},
    {"supports_truncation": False, "n_rollback": 2},
    {"supports_truncation": False, "has_attention": False},
    {"n_window": 20},
]


class CountingBackend(FakeBackend):
    """Notes the number of tokens in each batch."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.batches: list[int] = []

    def decode(self, chunks: Any) -> DecodeStatus:
        self.batches.append(sum(len(chunk.tokens) for chunk in chunks))
        return super().decode(chunks)


def request(name: str = "a", said: str = SAID, budget: ReasoningBudget | None = BUDGET, **changes: Any) -> Request:
    wanted = Request(
        request_id=name, prompt=f"<say>{said}</say>", sampling=SamplingParams(temperature=0.0), reasoning=budget
    )
    return replace(wanted, **changes)


def answered(*requests: Request, cost: StepCost | None = None, backend: FakeBackend | None = None) -> Record:
    record = Record()
    engine = Engine(backend or FakeBackend(), record, step_cost=cost or StepCost(), clock=lambda: 0.0)
    for wanted in requests:
        engine.submit(wanted)
    run(engine)
    return record


def test_a_thought_is_ended_by_its_budget_and_the_answer_follows() -> None:
    record = answered(request())
    assert record.text["a"] == CUT
    usage = record.finished["a"].usage
    assert (usage.n_reasoning_tokens, usage.is_reasoning_cut, usage.n_output_tokens) == (20, True, len(CUT))
    assert record.finished["a"].reason is FinishReason.STOP


def test_an_answer_without_a_budget_is_as_it_was() -> None:
    record = answered(request(), request("b", budget=None), request("c", budget=replace(BUDGET, max_tokens=None)))
    assert record.text["b"] == record.text["c"] == SAID
    assert not record.finished["c"].usage.is_reasoning_cut


def test_what_ends_a_thought_is_computed_in_one_batch() -> None:
    backend = CountingBackend()
    answered(request(max_draft_tokens=0), backend=backend)
    assert max(backend.batches[1:]) == 1 + len(ENDED)
    assert len(backend.batches) == 1 + len(CUT) - len(ENDED)


@pytest.mark.parametrize("kind", STATES)
def test_thoughts_end_under_every_kind_of_state(kind: dict[str, Any]) -> None:
    record = answered(request(), request("b"), backend=FakeBackend(**kind), cost=StepCost(dict(CHEAP)))
    assert record.text["a"] == record.text["b"] == CUT


def test_drafts_do_not_carry_a_thought_past_its_budget() -> None:
    record = answered(request(), cost=StepCost(dict(CHEAP)))
    assert record.text["a"] == CUT
    assert record.finished["a"].usage.n_accepted_tokens > 0


def test_several_steps_at_once_end_a_thought_where_single_ones_do() -> None:
    record = Record()
    engine = Engine(FakeBackend(), record, step_cost=StepCost({1: 1.0, 64: 64.0}, single_s=0.001))
    engine.submit(request(max_draft_tokens=0))
    run(engine)
    assert record.text["a"] == CUT


def test_ids_and_probabilities_of_forced_tokens_are_reported_like_sampled_ones() -> None:
    record = answered(request(returns_tokens=True, n_logprobs=2), cost=StepCost(dict(CHEAP)))
    assert bytes(record.tokens["a"][:-1]).decode() == CUT
    assert b"".join(entry.piece for entry in record.logprobs["a"]).decode() == CUT
    assert all(entry.logprob is not None and entry.logprob < 0 for entry in record.logprobs["a"])


def test_a_stop_string_in_what_ends_a_thought_ends_the_answer() -> None:
    record = answered(request(stop=("Enough",)), request("b"))
    assert record.text["a"] == f"<think>{THOUGHT[:20]}\n\n"
    assert record.text["b"] == CUT


def test_what_ends_a_thought_counts_towards_the_most_tokens_of_an_answer() -> None:
    record = answered(request(max_tokens=30))
    assert record.text["a"] == CUT[:30]
    assert record.finished["a"].reason is FinishReason.LENGTH


def test_a_budget_of_none_closes_a_thought_that_the_prompt_opened_before_its_first_token() -> None:
    budget = replace(BUDGET, max_tokens=0, is_open=True)
    record = answered(request(said=f"{THOUGHT}</think>The answer.", budget=budget))
    assert record.text["a"] == "\n</think>The answer."


def test_a_running_thought_is_ended_on_request_at_its_next_step() -> None:
    record = Record()
    engine = Engine(FakeBackend(), record)
    engine.submit(request(budget=replace(BUDGET, max_tokens=None), max_draft_tokens=0))
    engine.submit(request("b", budget=None))
    while len(record.text["a"]) < len("<think>so and"):
        engine.step()
    seen = record.text["a"]
    engine.end_thought("a")
    engine.end_thought("b")
    engine.end_thought("unknown")
    run(engine)
    assert record.text["a"] == f"{seen}{ENDED}The answer."
    assert record.text["b"] == SAID


def test_a_thought_of_a_waiting_answer_may_be_ended() -> None:
    record = Record()
    engine = Engine(FakeBackend(n_sequences=1), record)
    engine.submit(request("first"))
    engine.submit(request())
    engine.step()
    engine.end_thought("a")
    run(engine)
    assert record.text["first"] == CUT
    assert record.text["a"] == "<think>\n</think>The answer."


def test_a_preempted_answer_keeps_its_place_in_its_thought() -> None:
    backend = FakeBackend(n_ctx=150, n_cells=220)
    record = answered(*(request(name) for name in "abc"), backend=backend)
    assert [record.text[name] for name in "abc"] == [CUT] * 3


def unlimited(wanted: Request) -> str:
    return answered(replace(wanted, reasoning=None), backend=FakeBackend(n_sequences=1)).text[wanted.request_id]


words = st.text(st.sampled_from("ab .\n"), min_size=1, max_size=80)


@pytest.mark.slow
@settings(deadline=None)
@given(
    st.lists(st.tuples(words, st.integers(0, 40), st.booleans()), min_size=1, max_size=4),
    st.integers(1, 40),
    st.sampled_from([{}, *STATES]),
    st.booleans(),
)
def test_no_thought_exceeds_its_budget_and_all_before_its_end_is_the_models_own(
    rows: list[tuple[str, int, bool]], n_batch: int, kind: dict[str, Any], is_cheap: bool
) -> None:
    requests = []
    for index, (thought, n_tokens, is_open) in enumerate(rows):
        said = f"{'' if is_open else '<think>'}{thought}</think>Answer {index}."
        requests.append(request(str(index), said, replace(BUDGET, max_tokens=n_tokens, is_open=is_open)))
    backend = FakeBackend(n_ctx=300, n_cells=900, n_batch=max(4, n_batch), **kind)
    record = answered(*requests, cost=StepCost(dict(CHEAP)) if is_cheap else None, backend=backend)
    for wanted in requests:
        assert wanted.reasoning is not None
        text, usage = record.text[wanted.request_id], record.finished[wanted.request_id].usage
        own, _, answer = text.partition("</think>")
        assert answer == f"Answer {wanted.request_id}."
        if usage.is_reasoning_cut:
            own = own.removesuffix("\n").removesuffix(BUDGET.conclusion)
        opening = "" if wanted.reasoning.is_open else "<think>"
        assert len(own) - len(opening) <= (wanted.reasoning.max_tokens or 0) + len("</think>")
        assert unlimited(wanted).startswith(own)


def test_the_model_goes_on_from_what_ended_its_thought() -> None:
    """Without a script: the text after the end is what the model says after exactly these tokens."""
    backend = FakeBackend(end_every=10**9)
    wanted = replace(
        request(budget=replace(BUDGET, max_tokens=12, is_open=True)), prompt="a prompt", max_tokens=60, ignore_eos=True
    )
    text = answered(wanted, cost=StepCost(dict(CHEAP)), backend=backend).text["a"]
    before, _, after = text.partition(ENDED)
    fresh = FakeBackend(end_every=10**9)
    sampler = fresh.new_sampler(wanted.sampling, True)
    new, position, said = list(f"a prompt{before}{ENDED}".encode()), 0, b""
    for _ in range(len(after)):
        fresh.decode([Chunk(0, position, new, 1)])
        position += len(new)
        new = [sampler.sample(len(new) - 1)]
        said += bytes(new)
    assert said.decode() == after
