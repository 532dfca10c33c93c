from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np
import pytest
from numpy.typing import NDArray

from app.engine.backend import Chunk
from app.engine.fake import FakeBackend
from app.engine.loop.sequence import Sequence
from app.engine.request import Request, SamplingParams
from app.engine.speculative.cost_model import CONFIDENCE, Acceptance, StepCost
from app.engine.speculative.draft_heads import MAX_OBSERVED_WAITING, AutoregressiveHeadSource
from app.engine.speculative.draft_source import EXPECTED_ANSWER_TOKENS, PROBE_EVERY_TOKENS, DraftRequest
from tests.app.engine.fake_head import FakeHead

NAME = "mtp head"
GREEDY = SamplingParams(temperature=0.0)


class Counting(FakeHead):
    n_steps = 0

    def predict(self, chunks: Many[Chunk]) -> list[NDArray[np.float32]]:
        self.n_steps += 1
        return super().predict(chunks)


def new_sequence(backend: FakeBackend, prompt: str, place: int = 0) -> Sequence:
    """A sequence whose last token is the first of its answer; the backend has computed those before it."""
    tokens = list(prompt.encode())
    backend.decode([Chunk(place, 0, tokens[:-1], 1)])
    sampler = backend.new_sampler(GREEDY, ignore_eos=True)
    request = Request(request_id="a", prompt=prompt, sampling=GREEDY)
    acceptance = {NAME: Acceptance(CONFIDENCE)}
    sequence = Sequence(request, 1, tokens, len(tokens) - 1, 4096, sampler, acceptance, 0.0)
    sequence.sequence_id, sequence.n_computed = place, len(tokens) - 1
    return sequence


def new_source(head: FakeHead, share_of_bytes: float = 0.01) -> AutoregressiveHeadSource:
    """Drafts that cost only the bytes read for them, by the clock."""
    return AutoregressiveHeadSource(NAME, head, share_of_bytes, StepCost(), clock=lambda: 0.0)


def propose(drafts: AutoregressiveHeadSource, *sequences: Sequence, n_tokens: int = 4) -> list[list[int]]:
    return [
        list(draft.tokens) for draft in drafts.propose([DraftRequest(sequence, n_tokens) for sequence in sequences])
    ]


def next_tokens(backend: FakeBackend, sequence: Sequence, n_tokens: int) -> list[int]:
    sampled: list[int] = []
    for _ in range(n_tokens):
        sampled.append(backend.choose_after([*sequence.tokens, *sampled], "", ignore_eos=True))
    return sampled


def test_a_draft_is_the_greedy_output_of_the_head() -> None:
    backend = FakeBackend()
    sequence = new_sequence(backend, "a prompt")
    assert propose(new_source(FakeHead(backend)), sequence) == [next_tokens(backend, sequence, 4)]


def test_requests_of_one_call_are_drafted_in_the_same_batches() -> None:
    backend = FakeBackend()
    head = Counting(backend)
    sequences = [new_sequence(backend, prompt, place) for place, prompt in enumerate(("one prompt", "another"))]
    assert propose(new_source(head), *sequences) == [next_tokens(backend, sequence, 4) for sequence in sequences]
    assert head.n_steps == 4


def test_after_a_rejected_draft_the_next_continues_the_sampled_tokens() -> None:
    backend = FakeBackend()
    drafts = new_source(FakeHead(backend))
    sequence = new_sequence(backend, "a prompt")
    propose(drafts, sequence)
    backend.decode([Chunk(0, sequence.n_computed, sequence.tokens[-1:], 1)])
    sequence.n_computed += 1
    sequence.tokens.append(ord("!"))
    assert propose(drafts, sequence) == [next_tokens(backend, sequence, 4)]


def test_without_room_a_draft_ends() -> None:
    backend = FakeBackend()
    sequence = new_sequence(backend, "a prompt")
    assert propose(new_source(FakeHead(backend, n_ahead=2)), sequence) == [next_tokens(backend, sequence, 2)]
    assert propose(new_source(FakeHead(backend, n_ahead=0)), sequence) == [[]]


def test_a_draft_ends_when_one_more_token_would_not_pay() -> None:
    backend = FakeBackend()
    sequence = new_sequence(backend, "a prompt")
    sure = CONFIDENCE.prior_rates[-1]
    assert [len(draft) for draft in propose(new_source(FakeHead(backend), sure**2), sequence, n_tokens=9)] == [2]


def test_the_measured_cost_of_a_step_is_in_the_estimate() -> None:
    backend = FakeBackend()
    ticks = iter(range(1000))
    target, head = StepCost(single_s=10.0), FakeHead(backend)
    drafts = AutoregressiveHeadSource(NAME, head, 0.5, target, clock=lambda: float(next(ticks)))
    sequence = new_sequence(backend, "a prompt")
    assert drafts.estimate(sequence, 4, 1).draft_cost == 0.5
    propose(drafts, sequence)
    assert drafts.estimate(sequence, 4, 1).draft_cost == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("n_behind", "timed"), [(MAX_OBSERVED_WAITING, [16, 0]), (MAX_OBSERVED_WAITING + 1, [17, 0, 0])]
)
def test_what_many_steps_left_is_computed_before_a_draft_is_timed(n_behind: int, timed: list[int]) -> None:
    backend = FakeBackend()
    sequence, head = new_sequence(backend, "abc"), FakeHead(backend)
    head.n_behind = n_behind
    waiting: list[int] = []  # whenever the time is taken

    def clock() -> float:
        waiting.append(head.n_behind)
        return 0.0

    AutoregressiveHeadSource(NAME, head, 0.01, StepCost(), clock).propose([DraftRequest(sequence, 1)])
    assert waiting[: len(timed)] == timed


def test_a_head_that_does_not_pay_drafts_a_probe_now_and_then() -> None:
    backend = FakeBackend()
    drafts = new_source(FakeHead(backend))
    sequence = new_sequence(backend, "a prompt")
    n_probes = 0
    for _ in range(200):
        if drafts.n_probe_tokens(sequence):
            n_probes += 1
            propose(drafts, sequence, n_tokens=1)
        backend.decode([Chunk(0, sequence.n_computed, sequence.tokens[-1:], 1)])
        sequence.n_computed += 1
        sequence.tokens.append(ord("!"))
    assert 2 <= n_probes <= 4


def test_a_sequence_that_ended_is_forgotten() -> None:
    backend = FakeBackend()
    drafts = new_source(FakeHead(backend))
    sequence = new_sequence(backend, "a prompt")
    propose(drafts, sequence)
    drafts.release(sequence)
    assert not drafts._probed_at


def test_what_the_head_must_compute_first_counts_against_its_drafts_and_delays_its_probes() -> None:
    backend = FakeBackend()
    head = FakeHead(backend)
    source, sequence = new_source(head, share_of_bytes=0.1), new_sequence(backend, "a prompt")
    assert source.estimate(sequence, 4, 1).pass_cost == 0.0
    head.n_behind = 2000
    assert source.estimate(sequence, 4, 1).pass_cost > 0.3
    assert source.n_probe_tokens(sequence) == 0
    sequence.tokens.extend([1] * PROBE_EVERY_TOKENS)
    assert source.n_probe_tokens(sequence) == 0
    head.n_behind = 0
    assert source.n_probe_tokens(sequence) == 1


def test_the_time_to_catch_up_is_measured() -> None:
    backend, times_s = FakeBackend(), iter([0.0, 2.0, *[3.0] * 20])
    head, target = FakeHead(backend), StepCost(single_s=0.1)
    source = AutoregressiveHeadSource(NAME, head, 0.1, target, clock=lambda: next(times_s))
    sequence = new_sequence(backend, "a prompt")
    head.n_behind = 1000
    propose(source, sequence, n_tokens=1)
    head.n_behind = 100
    n_answer = EXPECTED_ANSWER_TOKENS
    assert source.estimate(sequence, 4, 1).pass_cost == pytest.approx(100 * (2.0 / 1000) / 0.1 / n_answer)
