from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from app.engine.backend import Chunk, DecodeStatus
from app.engine.fake.backend import FakeBackend
from app.engine.loop.sequence import Sequence
from app.engine.request import Request, SamplingParams
from app.engine.speculative.acceptance import CONFIDENCE, Acceptance
from app.engine.speculative.draft_model import DraftModel
from app.engine.speculative.draft_source import DraftRequest
from app.engine.speculative.step_cost import StepCost

GREEDY = SamplingParams(temperature=0.0)


class Drafting(FakeBackend):
    """A fake that is sure of what it would say, with logits that cost nothing."""

    n_decoded = 0

    def decode(self, chunks: Many[Chunk]) -> DecodeStatus:
        self.n_decoded += sum(len(chunk.tokens) for chunk in chunks)
        return super().decode(chunks)

    def logits(self, row: int) -> NDArray[np.float32]:
        logits = np.zeros(self.facts.n_vocab, np.float32)
        logits[self.choose(row, "", ignore_eos=True)] = 20.0
        return logits


def drafting(backend: FakeBackend, target: FakeBackend | None = None) -> DraftModel:
    """A draft model that costs nothing, as far as its clock goes."""
    return DraftModel(backend, (target or FakeBackend()).facts, StepCost(), clock=lambda: 0.0)


def answering(prompt: str, n_limit: int = 4096) -> Sequence:
    """A sequence whose last token is the first of its answer."""
    tokens = list(prompt.encode())
    acceptance = {DraftModel.name: Acceptance(CONFIDENCE)}
    sampler = FakeBackend().new_sampler(GREEDY, ignore_eos=True)
    request = Request(request_id="a", prompt=prompt, sampling=GREEDY)
    return Sequence(request, 1, tokens, len(tokens) - 1, n_limit, sampler, acceptance, 0.0)


def said_next(tokens: Many[int], n_tokens: int) -> list[int]:
    """Return how the fake goes on, token by token."""
    backend = FakeBackend(n_sequences=1, n_batch=4096)
    sampler = backend.new_sampler(GREEDY, ignore_eos=True)
    said, new, n_computed = [], list(tokens), 0
    for _ in range(n_tokens):
        backend.decode([Chunk(0, n_computed, new, 1)])
        said.append(sampler.sample(len(new) - 1))
        n_computed, new = n_computed + len(new), said[-1:]
    return said


def ask(model: DraftModel, *sequences: Sequence, n_tokens: int = 4) -> list[list[int]]:
    drafts = model.propose([DraftRequest(sequence, n_tokens) for sequence in sequences])
    model.check_integrity()
    return [list(draft.tokens) for draft in drafts]


def test_a_draft_is_what_the_draft_model_would_say() -> None:
    sequence = answering("a prompt")
    assert ask(drafting(Drafting()), sequence) == [said_next(sequence.tokens, 4)]


def test_answers_that_ask_at_once_are_drafted_for_in_the_same_batches() -> None:
    backend = Drafting()
    model = drafting(backend)
    sequences = [answering(prompt) for prompt in ("one prompt", "another", "a third one")]
    assert ask(model, *sequences) == [said_next(sequence.tokens, 4) for sequence in sequences]
    n_decoded = backend.n_decoded
    for sequence in sequences:
        sequence.tokens += said_next(sequence.tokens, 5)
    assert ask(model, *sequences) == [said_next(sequence.tokens, 4) for sequence in sequences]
    assert backend.n_decoded - n_decoded == 3 * (2 + 3), "what was drafted and said is not computed again"


@pytest.mark.parametrize("n_taken", range(5))
def test_what_was_not_said_is_cut_off_and_the_next_draft_goes_on_from_what_was(n_taken: int) -> None:
    backend = Drafting()
    model = drafting(backend)
    sequence = answering("a prompt")
    ask(model, sequence)
    sequence.tokens += [*said_next(sequence.tokens, n_taken), ord("#")]
    assert ask(model, sequence) == [said_next(sequence.tokens, 4)]
    held = backend.tokens(model._lines[sequence].slot_id)
    assert held[: len(sequence.tokens)] == sequence.tokens


def test_a_long_prompt_is_caught_up_with_over_several_steps() -> None:
    model = drafting(Drafting())
    sequence = answering("x" * 300)
    assert [len(ask(model, sequence)[0]) for _ in range(3)] == [0, 0, 4]


def test_the_next_turn_computes_only_what_is_new() -> None:
    backend = Drafting()
    model = drafting(backend)
    first = answering("a long prompt of the first turn")
    ask(model, first)
    model.release(first)
    n_decoded = backend.n_decoded
    ask(model, answering("a long prompt of the first turn, and more"), n_tokens=1)
    assert backend.n_decoded - n_decoded == len(", and more")


def test_without_room_for_all_some_get_no_draft_and_nothing_breaks() -> None:
    model = drafting(Drafting(n_ctx=64, n_cells=64))
    sequences = [answering(letter * 40) for letter in "ab"]
    drafts = ask(model, *sequences)
    assert sorted(map(len, drafts)) == [0, 4]


def test_a_text_longer_than_the_draft_models_context_gets_no_draft() -> None:
    assert ask(drafting(Drafting(n_ctx=32, n_cells=64)), answering("x" * 40)) == [[]]


def test_tokens_that_the_draft_model_does_not_know_are_not_shown_to_it() -> None:
    model = drafting(Drafting())
    sequence = answering("a prompt")
    sequence.tokens[3] = 300
    assert ask(model, sequence) == [[]]


class BrokenOnce(Drafting):
    """Its second decode finds no slot."""

    n_decodes = 0

    def decode(self, chunks: Many[Chunk]) -> DecodeStatus:
        self.n_decodes += 1
        return DecodeStatus.NO_SLOT if self.n_decodes == 2 else super().decode(chunks)


def test_a_batch_that_fails_ends_the_draft_and_the_next_is_whole_again() -> None:
    model = drafting(BrokenOnce())
    sequence = answering("a prompt")
    said = said_next(sequence.tokens, 4)
    assert ask(model, sequence) == [said[:1]]
    assert ask(model, sequence) == [said]


def test_the_cost_of_drafting_is_measured_and_enters_what_is_hoped() -> None:
    ticks = iter(range(1000))
    target_cost = StepCost(single_s=10.0)
    model = DraftModel(Drafting(), FakeBackend().facts, target_cost, clock=lambda: float(next(ticks)))
    sequence = answering("ab")
    for _ in range(40):
        ask(model, sequence)
        sequence.tokens.append(ord("#"))
    assert model.estimate(sequence, 4, 1).draft_cost == pytest.approx(0.1, rel=0.01)


def test_before_anything_is_measured_a_draft_costs_its_share_of_bytes() -> None:
    target, draft = FakeBackend(), Drafting()
    target.facts, draft.facts = replace(target.facts, model_bytes=1000), replace(draft.facts, model_bytes=50)
    assert drafting(draft, target).estimate(answering("ab"), 4, 1).draft_cost == pytest.approx(0.05)


def test_a_model_that_does_not_pay_is_asked_for_a_guess_now_and_then() -> None:
    model = drafting(Drafting())
    sequence = answering("a prompt")
    asked = []
    for n_said in range(200):
        if model.n_probe_tokens(sequence):
            asked.append(n_said)
            ask(model, sequence, n_tokens=1)
        sequence.tokens.append(ord("#"))
    assert 2 <= len(asked) <= 4
