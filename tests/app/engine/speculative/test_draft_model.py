from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from app.engine.backend import Chunk, DecodeStatus
from app.engine.fake import FakeBackend
from app.engine.loop.sequence import Sequence
from app.engine.speculative.cost_model import CONFIDENCE, Acceptance, StepCost
from app.engine.speculative.draft_model import DraftModel, Vocabulary, vocabulary_mismatch
from app.engine.speculative.draft_source import DraftRequest
from tests.app.engine.sequences import GREEDY, new_sequence


class Drafting(FakeBackend):
    """A fake that is certain of its output, with logits that cost nothing."""

    n_decoded = 0

    def decode(self, chunks: Many[Chunk]) -> DecodeStatus:
        self.n_decoded += sum(len(chunk.tokens) for chunk in chunks)
        return super().decode(chunks)

    def logits(self, row: int) -> NDArray[np.float32]:
        logits = np.zeros(self.facts.n_vocab, np.float32)
        logits[self.choose(row, "", ignore_eos=True)] = 20.0
        return logits


def new_source(backend: FakeBackend, target: FakeBackend | None = None) -> DraftModel:
    """A draft model that costs nothing by its clock."""
    return DraftModel(backend, (target or FakeBackend()).facts, StepCost(), clock=lambda: 0.0)


def new_answer(prompt: str, n_limit: int = 4096) -> Sequence:
    """A sequence whose last token is the first of its answer."""
    tokens = list(prompt.encode())
    return new_sequence(tokens[:-1], tokens[-1:], {DraftModel.name: Acceptance(CONFIDENCE)}, limit=n_limit)


def next_tokens(tokens: Many[int], n_tokens: int) -> list[int]:
    """Return the greedy continuation of the fake."""
    backend = FakeBackend(n_sequences=1, n_batch=4096)
    sampler = backend.new_sampler(GREEDY, ignore_eos=True)
    sampled, new, n_computed = [], list(tokens), 0
    for _ in range(n_tokens):
        backend.decode([Chunk(0, n_computed, new, 1)])
        sampled.append(sampler.sample(len(new) - 1))
        n_computed, new = n_computed + len(new), sampled[-1:]
    return sampled


def propose(model: DraftModel, *sequences: Sequence, n_tokens: int = 4) -> list[list[int]]:
    drafts = model.propose([DraftRequest(sequence, n_tokens) for sequence in sequences])
    model.check_integrity()
    return [list(draft.tokens) for draft in drafts]


def test_a_draft_is_the_greedy_output_of_the_draft_model() -> None:
    sequence = new_answer("a prompt")
    assert propose(new_source(Drafting()), sequence) == [next_tokens(sequence.tokens, 4)]


def test_requests_of_one_call_are_drafted_in_the_same_batches() -> None:
    backend = Drafting()
    model = new_source(backend)
    sequences = [new_answer(prompt) for prompt in ("one prompt", "another", "a third one")]
    assert propose(model, *sequences) == [next_tokens(sequence.tokens, 4) for sequence in sequences]
    n_decoded = backend.n_decoded
    for sequence in sequences:
        sequence.tokens += next_tokens(sequence.tokens, 5)
    assert propose(model, *sequences) == [next_tokens(sequence.tokens, 4) for sequence in sequences]
    assert backend.n_decoded - n_decoded == 3 * (2 + 3), "accepted tokens are not computed again"


@pytest.mark.parametrize("n_accepted", range(5))
def test_rejected_tokens_are_truncated_and_the_next_draft_continues_the_accepted_ones(n_accepted: int) -> None:
    backend = Drafting()
    model = new_source(backend)
    sequence = new_answer("a prompt")
    propose(model, sequence)
    sequence.tokens += [*next_tokens(sequence.tokens, n_accepted), ord("#")]
    assert propose(model, sequence) == [next_tokens(sequence.tokens, 4)]
    held = backend.tokens(model._answers[sequence].slot_id)
    assert held[: len(sequence.tokens)] == sequence.tokens


def test_a_long_prompt_is_caught_up_with_over_several_steps() -> None:
    model = new_source(Drafting())
    sequence = new_answer("x" * 300)
    assert [len(propose(model, sequence)[0]) for _ in range(3)] == [0, 0, 4]


def test_the_next_turn_computes_new_tokens_only() -> None:
    backend = Drafting()
    model = new_source(backend)
    first = new_answer("a long prompt of the first turn")
    propose(model, first)
    model.release(first)
    n_decoded = backend.n_decoded
    propose(model, new_answer("a long prompt of the first turn, and more"), n_tokens=1)
    assert backend.n_decoded - n_decoded == len(", and more")


def test_without_room_for_all_some_get_no_draft_and_nothing_breaks() -> None:
    model = new_source(Drafting(n_ctx=64, n_cells=64))
    sequences = [new_answer(letter * 40) for letter in "ab"]
    drafts = propose(model, *sequences)
    assert sorted(map(len, drafts)) == [0, 4]


def test_a_text_longer_than_the_draft_models_context_gets_no_draft() -> None:
    assert propose(new_source(Drafting(n_ctx=32, n_cells=64)), new_answer("x" * 40)) == [[]]


def test_tokens_outside_the_vocabulary_of_the_draft_model_are_not_computed_by_it() -> None:
    model = new_source(Drafting())
    sequence = new_answer("a prompt")
    sequence.tokens[3] = 300
    assert propose(model, sequence) == [[]]


class BrokenOnce(Drafting):
    """Its second decode finds no slot."""

    n_decodes = 0

    def decode(self, chunks: Many[Chunk]) -> DecodeStatus:
        self.n_decodes += 1
        return DecodeStatus.NO_SLOT if self.n_decodes == 2 else super().decode(chunks)


def test_a_batch_that_fails_ends_the_draft_and_the_next_is_whole_again() -> None:
    model = new_source(BrokenOnce())
    sequence = new_answer("a prompt")
    sampled = next_tokens(sequence.tokens, 4)
    assert propose(model, sequence) == [sampled[:1]]
    assert propose(model, sequence) == [sampled]


def test_the_measured_cost_of_drafting_is_in_the_estimate() -> None:
    ticks = iter(range(1000))
    target_cost = StepCost(single_s=10.0)
    model = DraftModel(Drafting(), FakeBackend().facts, target_cost, clock=lambda: float(next(ticks)))
    sequence = new_answer("ab")
    for _ in range(40):
        propose(model, sequence)
        sequence.tokens.append(ord("#"))
    assert model.estimate(sequence, 4, 1).draft_cost == pytest.approx(0.1, rel=0.01)


def test_before_anything_is_measured_a_draft_costs_its_share_of_bytes() -> None:
    target, draft = FakeBackend(), Drafting()
    target.facts, draft.facts = replace(target.facts, model_bytes=1000), replace(draft.facts, model_bytes=50)
    assert new_source(draft, target).estimate(new_answer("ab"), 4, 1).draft_cost == pytest.approx(0.05)


def test_a_model_that_does_not_pay_drafts_a_probe_now_and_then() -> None:
    model = new_source(Drafting())
    sequence = new_answer("a prompt")
    probes = []
    for n_sampled in range(200):
        if model.n_probe_tokens(sequence):
            probes.append(n_sampled)
            propose(model, sequence, n_tokens=1)
        sequence.tokens.append(ord("#"))
    assert 2 <= len(probes) <= 4


TARGET = Vocabulary(kind=2, begin=1, end=None, texts=[f"t{index}".encode() for index in range(300)])


@pytest.mark.parametrize(
    ("draft", "reason"),
    [
        (replace(TARGET, kind=1), "its tokenizer is of kind 1 and not 2"),
        (replace(TARGET, begin=None), "it begins texts with token None and not 1"),
        (replace(TARGET, end=7), "it ends texts with token 7 and not None"),
        (replace(TARGET, texts=TARGET.texts[:171]), "it has 171 tokens and not 300"),
        (replace(TARGET, texts=[*TARGET.texts[:9], b"\xff", *TARGET.texts[10:]]), "token 9 is '\ufffd' and not 't9'"),
    ],
)
def test_a_vocabulary_that_differs_is_refused_with_the_difference(draft: Vocabulary, reason: str) -> None:
    assert vocabulary_mismatch(TARGET, draft) == reason


@pytest.mark.parametrize(
    "draft",
    [TARGET, replace(TARGET, texts=TARGET.texts[:172]), replace(TARGET, texts=[b"<s>", *TARGET.texts[1:]])],
    ids=["the same", "padded less", "another name for a special one"],
)
def test_a_vocabulary_that_differs_only_in_padding_and_special_names_matches(draft: Vocabulary) -> None:
    assert vocabulary_mismatch(TARGET, draft) == ""
