from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Many

import numpy as np
import pytest
from numpy.typing import NDArray

from app.engine.backend import Chunk
from app.engine.fake import FakeBackend
from app.engine.loop.sequence import Sequence
from app.engine.speculative.cost_model import CONFIDENCE, Acceptance, StepCost, best_draft_length
from app.engine.speculative.draft_heads import (
    MAX_OBSERVED_WAITING,
    AutoregressiveHeadSource,
    BlockHeadSource,
    PredictedToken,
    walk_lattice,
)
from app.engine.speculative.draft_source import EXPECTED_ANSWER_TOKENS, PROBE_EVERY_TOKENS, DraftRequest
from tests.app.engine.fake_head import FakeHead
from tests.app.engine.sequences import new_sequence

NAME = "mtp head"


class Counting(FakeHead):
    n_steps = 0

    def predict(self, chunks: Many[Chunk]) -> list[NDArray[np.float32]]:
        self.n_steps += 1
        return super().predict(chunks)


def new_answer(backend: FakeBackend, prompt: str, place: int = 0) -> Sequence:
    """A sequence whose last token is the first of its answer; the backend has computed those before it."""
    tokens = list(prompt.encode())
    backend.decode([Chunk(place, 0, tokens[:-1], 1)])
    return new_sequence(tokens[:-1], tokens[-1:], {NAME: Acceptance(CONFIDENCE)}, place=place)


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
    sequence = new_answer(backend, "a prompt")
    assert propose(new_source(FakeHead(backend)), sequence) == [next_tokens(backend, sequence, 4)]


def test_requests_of_one_call_are_drafted_in_the_same_batches() -> None:
    backend = FakeBackend()
    head = Counting(backend)
    sequences = [new_answer(backend, prompt, place) for place, prompt in enumerate(("one prompt", "another"))]
    assert propose(new_source(head), *sequences) == [next_tokens(backend, sequence, 4) for sequence in sequences]
    assert head.n_steps == 4


def test_after_a_rejected_draft_the_next_continues_the_sampled_tokens() -> None:
    backend = FakeBackend()
    drafts = new_source(FakeHead(backend))
    sequence = new_answer(backend, "a prompt")
    propose(drafts, sequence)
    backend.decode([Chunk(0, sequence.n_computed, sequence.tokens[-1:], 1)])
    sequence.n_computed += 1
    sequence.tokens.append(ord("!"))
    assert propose(drafts, sequence) == [next_tokens(backend, sequence, 4)]


def test_without_room_a_draft_ends() -> None:
    backend = FakeBackend()
    sequence = new_answer(backend, "a prompt")
    assert propose(new_source(FakeHead(backend, n_ahead=2)), sequence) == [next_tokens(backend, sequence, 2)]
    assert propose(new_source(FakeHead(backend, n_ahead=0)), sequence) == [[]]


def test_a_draft_ends_when_one_more_token_would_not_pay() -> None:
    backend = FakeBackend()
    sequence = new_answer(backend, "a prompt")
    sure = CONFIDENCE.prior_rates[-1]
    assert [len(draft) for draft in propose(new_source(FakeHead(backend), sure**2), sequence, n_tokens=9)] == [2]


def test_the_measured_cost_of_a_step_is_in_the_estimate() -> None:
    backend = FakeBackend()
    ticks = iter(range(1000))
    target, head = StepCost(single_s=10.0), FakeHead(backend)
    drafts = AutoregressiveHeadSource(NAME, head, 0.5, target, clock=lambda: float(next(ticks)))
    sequence = new_answer(backend, "a prompt")
    assert drafts.estimate(sequence, 4, 1).draft_cost == 0.5
    propose(drafts, sequence)
    assert drafts.estimate(sequence, 4, 1).draft_cost == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("n_behind", "timed"), [(MAX_OBSERVED_WAITING, [16, 0]), (MAX_OBSERVED_WAITING + 1, [17, 0, 0])]
)
def test_what_many_steps_left_is_computed_before_a_draft_is_timed(n_behind: int, timed: list[int]) -> None:
    backend = FakeBackend()
    sequence, head = new_answer(backend, "abc"), FakeHead(backend)
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
    sequence = new_answer(backend, "a prompt")
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
    sequence = new_answer(backend, "a prompt")
    propose(drafts, sequence)
    drafts.release(sequence)
    assert not drafts._probed_at


def test_what_the_head_must_compute_first_counts_against_its_drafts_and_delays_its_probes() -> None:
    backend = FakeBackend()
    head = FakeHead(backend)
    source, sequence = new_source(head, share_of_bytes=0.1), new_answer(backend, "a prompt")
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
    sequence = new_answer(backend, "a prompt")
    head.n_behind = 1000
    propose(source, sequence, n_tokens=1)
    head.n_behind = 100
    n_answer = EXPECTED_ANSWER_TOKENS
    assert source.estimate(sequence, 4, 1).pass_cost == pytest.approx(100 * (2.0 / 1000) / 0.1 / n_answer)


BLOCK_NAME = "dflash head"


class CountingHead:
    """A head that predicts the next letters of the alphabet, if it `has_room`."""

    n_block = 4

    def __init__(self, *, has_room: bool = True) -> None:
        self.calls: list[list[tuple[int, int]]] = []
        self._has_room = has_room

    def n_waiting(self, _sequence_ids: Collection[int]) -> int:
        return 0

    def catch_up(self, _sequence_ids: Collection[int]) -> None:
        raise AssertionError("nothing waits")

    def predict_blocks(self, chunks: Many[Chunk]) -> list[list[PredictedToken]]:
        self.calls.append([(chunk.sequence_id, chunk.position) for chunk in chunks])
        if not self._has_room:
            return []
        return [[PredictedToken(chunk.tokens[0] + 1 + i, 0.5) for i in range(self.n_block)] for chunk in chunks]


def new_block_answer(place: int = 0) -> Sequence:
    return new_sequence(b"xyz", b"a", {BLOCK_NAME: Acceptance(CONFIDENCE)}, place=place)


def new_block_source(head: CountingHead) -> BlockHeadSource:
    return BlockHeadSource(BLOCK_NAME, head, 0.1, StepCost(), clock=lambda: 0.0)


def test_all_requests_are_drafted_in_one_pass_and_cut_to_what_was_asked() -> None:
    head = CountingHead()
    drafts = new_block_source(head).propose([DraftRequest(new_block_answer(), 2), DraftRequest(new_block_answer(1), 9)])
    assert [bytes(draft.tokens) for draft in drafts] == [b"bc", b"bcde"]
    assert drafts[0].chances == (0.5, 0.5)
    assert drafts[0].source == BLOCK_NAME
    assert head.calls == [[(0, 3), (1, 3)]]


def test_without_room_there_is_no_draft() -> None:
    (draft,) = new_block_source(CountingHead(has_room=False)).propose([DraftRequest(new_block_answer(), 2)])
    assert not draft.tokens


def test_an_estimate_costs_a_whole_pass_whatever_its_length() -> None:
    source, sequence = new_block_source(CountingHead()), new_block_answer()
    short, long = (source.estimate(sequence, n_max, 1) for n_max in (1, 9))
    assert short.pass_cost == long.pass_cost == 0.1 * StepCost().ratio(4)
    assert len(list(long.chances)) == 4


def test_a_pass_that_costs_more_than_its_tokens_spare_is_not_made() -> None:
    chances = [0.8] * 4
    assert best_draft_length(chances, StepCost({1: 1.0, 64: 1.0}), 1, 1, pass_cost=0.5).n_tokens == 4
    assert best_draft_length(chances, StepCost({1: 1.0, 64: 1.0}), 1, 1, pass_cost=3.0).n_tokens == 0


def test_a_head_that_does_not_pay_is_probed_now_and_then() -> None:
    source, sequence = new_block_source(CountingHead()), new_block_answer()
    assert source.n_probe_tokens(sequence) == 0
    sequence.tokens.extend([1] * PROBE_EVERY_TOKENS)
    assert source.n_probe_tokens(sequence) == 1
    source.release(sequence)
    assert source.n_probe_tokens(sequence) == 0


def lattice_row(candidates: list[int], *scores: list[float]) -> list[float]:
    """A place of a lattice; `scores` has a list for each candidate of the place before."""
    return [*map(float, candidates), *(score for of_one in scores for score in of_one), 0.0, 0.0]


FIRST = lattice_row([10, 11], [1.0, 3.0], [1.0, 3.0])
LATTICE = np.array(
    [FIRST, lattice_row([20, 21], [9.0, 0.0], [2.0, 5.0]), lattice_row([30, 31], [9.0, 9.5], [4.0, 1.0])], np.float32
)


def test_a_walk_follows_the_likeliest_successor_of_each_token() -> None:
    predicted = walk_lattice(LATTICE, 2)
    assert [item.token for item in predicted] == [11, 21, 30], "and not those with the highest scores of a place"


def test_the_chance_of_a_walked_token_is_that_among_the_candidates() -> None:
    chances = [item.chance for item in walk_lattice(LATTICE, 2)]
    assert chances == pytest.approx([1 / (1 + np.exp(-gap)) for gap in (2.0, 3.0, 3.0)])


@pytest.mark.parametrize("place", [(1, 5), (1, 1)])
def test_a_walk_ends_where_damaged_weights_left_no_number(place: tuple[int, int]) -> None:
    damaged = LATTICE.copy()
    damaged[place] = np.nan
    assert [item.token for item in walk_lattice(damaged, 2)] == [11]


def test_a_lattice_of_one_candidate_leaves_no_choice() -> None:
    (only,) = walk_lattice(np.array([[7.0, -3.0, 0.0]], np.float32), 1)
    assert only == PredictedToken(7, 1.0)
