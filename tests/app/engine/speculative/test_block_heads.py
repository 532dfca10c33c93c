from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Many

from app.engine.backend import Chunk
from app.engine.fake import FakeBackend
from app.engine.loop.sequence import Sequence
from app.engine.request import Request, SamplingParams
from app.engine.speculative.cost_model import CONFIDENCE, Acceptance, StepCost, best_draft_length
from app.engine.speculative.draft_heads import BlockHeadSource, PredictedToken
from app.engine.speculative.draft_source import PROBE_EVERY_TOKENS, DraftRequest

NAME = "dflash head"
GREEDY = SamplingParams(temperature=0.0)


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


def new_sequence(place: int = 0) -> Sequence:
    backend, tokens = FakeBackend(), list(b"xyza")
    sampler = backend.new_sampler(GREEDY, ignore_eos=True)
    request = Request(request_id="a", prompt="xyza", sampling=GREEDY)
    sequence = Sequence(request, 1, tokens, len(tokens) - 1, 4096, sampler, {NAME: Acceptance(CONFIDENCE)}, 0.0)
    sequence.sequence_id, sequence.n_computed = place, len(tokens) - 1
    return sequence


def new_source(head: CountingHead) -> BlockHeadSource:
    return BlockHeadSource(NAME, head, 0.1, StepCost(), clock=lambda: 0.0)


def test_all_requests_are_drafted_in_one_pass_and_cut_to_what_was_asked() -> None:
    head = CountingHead()
    drafts = new_source(head).propose([DraftRequest(new_sequence(), 2), DraftRequest(new_sequence(1), 9)])
    assert [bytes(draft.tokens) for draft in drafts] == [b"bc", b"bcde"]
    assert drafts[0].chances == (0.5, 0.5)
    assert drafts[0].source == NAME
    assert head.calls == [[(0, 3), (1, 3)]]


def test_without_room_there_is_no_draft() -> None:
    (draft,) = new_source(CountingHead(has_room=False)).propose([DraftRequest(new_sequence(), 2)])
    assert not draft.tokens


def test_an_estimate_costs_a_whole_pass_whatever_its_length() -> None:
    source, sequence = new_source(CountingHead()), new_sequence()
    short, long = (source.estimate(sequence, n_max, 1) for n_max in (1, 9))
    assert short.pass_cost == long.pass_cost == 0.1 * StepCost().ratio(4)
    assert len(list(long.chances)) == 4


def test_a_pass_that_costs_more_than_its_tokens_spare_is_not_made() -> None:
    chances = [0.8] * 4
    assert best_draft_length(chances, StepCost({1: 1.0, 64: 1.0}), 1, 1, pass_cost=0.5).n_tokens == 4
    assert best_draft_length(chances, StepCost({1: 1.0, 64: 1.0}), 1, 1, pass_cost=3.0).n_tokens == 0


def test_a_head_that_does_not_pay_is_probed_now_and_then() -> None:
    source, sequence = new_source(CountingHead()), new_sequence()
    assert source.n_probe_tokens(sequence) == 0
    sequence.tokens.extend([1] * PROBE_EVERY_TOKENS)
    assert source.n_probe_tokens(sequence) == 1
    source.release(sequence)
    assert source.n_probe_tokens(sequence) == 0
