from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.service.pool.engine_status import CrashLimit
from quantizer.system.errors import EngineError


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def _failing(clock: Clock, *times_s: float) -> CrashLimit:
    limit = CrashLimit(max_failures=3, window_s=60, clock=clock)
    for clock.now_s in times_s:
        limit.record_failure()
    return limit


def test_two_failures_are_not_too_many() -> None:
    assert not _failing(Clock(), 0, 1).is_reached


def test_three_failures_within_a_minute_are_too_many_until_the_minute_is_over() -> None:
    clock = Clock()
    limit = _failing(clock, 0, 30, 59)
    assert limit.is_reached
    clock.now_s = 60
    assert not limit.is_reached


def test_three_failures_over_a_longer_time_are_not_too_many() -> None:
    assert not _failing(Clock(), 0, 30, 61).is_reached


def test_a_finished_answer_resets_the_count() -> None:
    clock = Clock()
    limit = _failing(clock, 0, 1)
    limit.record_success()
    limit.record_failure()
    assert not limit.is_reached


@given(st.lists(st.floats(0, 300), max_size=20))
def test_it_agrees_with_counting_the_last_three_by_hand(times_s: list[float]) -> None:
    clock = Clock()
    limit = _failing(clock, *sorted(times_s))
    recent = sorted(times_s)[-3:]
    assert limit.is_reached == (len(recent) == 3 and recent[-1] - recent[0] < 60)


def test_the_last_failure_explains_that_nothing_is_retried_only_where_that_is_so() -> None:
    error = EngineError("It died.", "Ask again.")
    assert _failing(Clock(), 0, 1).explained(error) is error
    explained = _failing(Clock(), 0, 1, 2).explained(error)
    assert explained.cause == "The engine failed 3 times within a minute. It died."
