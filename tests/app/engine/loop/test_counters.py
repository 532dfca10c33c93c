from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.backend import Chunk, DecodeStatus
from app.engine.fake import FakeBackend
from app.engine.loop.core import Engine, Event
from app.engine.loop.counters import BOUNDS, Counters, Histogram
from app.engine.messages import Finished
from app.engine.request import Request, SamplingParams

FIGURES = st.lists(st.floats(min_value=BOUNDS[1], max_value=BOUNDS[-1]), min_size=1, max_size=200)


def _of(figures: list[float]) -> Histogram:
    histogram = Histogram()
    for figure in figures:
        histogram.record(figure)
    return histogram


@given(FIGURES, st.sampled_from([0.05, 0.5, 0.95, 1.0]))
def test_a_quantile_is_within_a_bucket_of_the_true_one(figures: list[float], share: float) -> None:
    ordered = sorted(figures)
    true = next(value for index, value in enumerate(ordered, 1) if index >= share * len(ordered))
    estimate = _of(figures).quantile(share)
    assert estimate is not None
    assert true / 2**0.25 - 1e-9 <= estimate <= true * 2**0.25 + 1e-9


@given(FIGURES, FIGURES)
def test_two_histograms_add_up_to_the_one_of_all_figures(some: list[float], others: list[float]) -> None:
    both = _of(some) + _of(others)
    assert both.counts == _of([*some, *others]).counts
    assert both.n_samples == len(some) + len(others)
    assert both.total == pytest.approx(sum(some) + sum(others))


def test_without_values_there_is_no_quantile_and_no_bucket() -> None:
    assert Histogram().quantile(0.5) is None
    assert Histogram().buckets() == []


@pytest.mark.parametrize(("value", "bound"), [(0.0, BOUNDS[0]), (1.0, 1.0), (1.01, 2**0.25), (1e9, float("inf"))])
def test_a_figure_falls_under_the_bound_that_is_not_below_it(value: float, bound: float) -> None:
    assert _of([value]).buckets() == [(bound, 1)]


def test_what_is_past_the_last_bound_counts_as_that_bound() -> None:
    assert _of([1e9]).quantile(1.0) == BOUNDS[-1]


def test_it_takes_the_same_memory_however_much_is_counted() -> None:
    few, many = _of([0.1]), _of([index / 7 for index in range(5000)])
    assert len(few.counts) == len(many.counts)


STEP_S = 0.25


class ClockedBackend(FakeBackend):
    """Each batch takes a quarter of a second of a clock of its own."""

    now_s = 0.0

    def decode(self, chunks: Sequence[Chunk]) -> DecodeStatus:
        self.now_s += STEP_S
        return super().decode(chunks)

    def clock(self) -> float:
        return self.now_s


def _engine(events: list[Event], **options: int) -> Engine:
    backend = ClockedBackend(**options)
    return Engine(backend, events.append, clock=backend.clock)


def _request(name: str, prompt: str, n_tokens: int) -> Request:
    sampling = SamplingParams(temperature=0.0)
    return Request(request_id=name, prompt=prompt, sampling=sampling, max_tokens=n_tokens, ignore_eos=True)


def _run(engine: Engine, *requests: Request) -> None:
    for request in requests:
        engine.submit(request)
    while not engine.is_idle:
        engine.step()


def test_waits_and_rates_are_those_of_the_clock() -> None:
    engine = _engine([], n_batch=16)
    _run(engine, _request("a", "p" * 32, 9))
    counters = engine.counters
    assert counters.first_token_s.total == 2 * STEP_S, "two batches of 16 prompt tokens"
    assert counters.inter_token_s.n_samples == counters.n_steps - 2
    assert counters.inter_token_s.quantile(0.5) == pytest.approx(STEP_S, rel=0.2)
    assert counters.prefill_rate == pytest.approx(32 / (2 * STEP_S))
    assert counters.decode_rate == pytest.approx(8 / counters.inter_token_s.total)
    assert counters.n_finished == 1


def test_a_repeated_prompt_counts_as_cached() -> None:
    engine = _engine([])
    for _ in range(2):
        _run(engine, _request("a", "the same prompt again", 2))
    assert engine.counters.cached_share == pytest.approx(20 / 42), "all of the second one but its last token"


def test_occupancy_counts_running_and_waiting_answers() -> None:
    engine = _engine([], n_sequences=1)
    for name in "abc":
        engine.submit(_request(name, f"{name} prompt", 4))
    engine.step()
    occupancy = engine.occupancy
    assert (occupancy.n_running, occupancy.n_waiting) == (1, 2)
    assert 0 < occupancy.n_cells_used <= occupancy.n_cells
    engine.close()


def test_passes_and_tokens_of_an_answer_agree_with_its_drafts() -> None:
    events: list[Event] = []
    engine = _engine(events)
    _run(engine, _request("a", "ab" * 20, 40))
    (finished,) = (event for event in events if isinstance(event, Finished))
    usage = finished.usage
    assert usage.n_passes == usage.n_output_tokens - usage.n_accepted_tokens
    assert engine.counters.n_accepted_tokens == usage.n_accepted_tokens


def test_without_requests_there_are_no_rates() -> None:
    assert (Counters().cached_share, Counters().prefill_rate, Counters().decode_rate) == (0.0, 0.0, 0.0)
