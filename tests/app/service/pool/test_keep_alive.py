from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import pytest

from app.service.pool.engine_client import EngineClient
from app.service.pool.engine_status import EngineStatus
from app.service.pool.keep_alive import IdleLimit, KeepAlive


@dataclass
class Timer:
    at_s: float
    callback: Callable[[], object]
    is_cancelled: bool = False

    def when(self) -> float:
        return self.at_s

    def cancel(self) -> None:
        self.is_cancelled = True


@dataclass
class Clock:
    """An event loop's timers, which run when a test lets time pass."""

    now_s: float = 0.0
    timers: list[Timer] = field(default_factory=list)

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        self.timers.append(Timer(self.now_s + delay_s, callback))
        return self.timers[-1]

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
        due = [timer for timer in self.timers if timer.at_s <= self.now_s]
        self.timers = [timer for timer in self.timers if timer not in due]
        for timer in due:
            if not timer.is_cancelled:
                timer.callback()


class Name:
    """A name of an engine whose state a test sets; it counts its releases."""

    def __init__(self, idle_s: float | None = None) -> None:
        self.status = EngineStatus(state="ready")
        self.clock = Clock()
        self.n_released = 0
        self.hold = KeepAlive(
            cast("EngineClient", self), idle_s, self._release, cast("asyncio.AbstractEventLoop", self.clock)
        )

    def _release(self) -> None:
        self.n_released += 1


def test_an_unused_name_holds_nothing() -> None:
    name = Name(idle_s=0)
    name.hold.ensure_timer()
    name.clock.advance(1)
    assert (name.hold.is_holding, name.n_released) == (False, 0)


def test_a_model_without_limit_stays_until_a_request_sets_one() -> None:
    name = Name()
    with name.hold.in_use():
        assert (name.hold.is_used, name.hold.is_holding) == (True, True)
    name.clock.advance(10**6)
    assert (name.hold.is_used, name.hold.is_holding, name.hold.expires_s) == (False, True, None)
    name.hold.set_idle_limit(1000)
    name.hold.restart_timer()
    name.clock.advance(400)
    assert name.hold.expires_s == pytest.approx(time.time() + 600, abs=100)
    name.clock.advance(600)
    assert (name.hold.is_holding, name.n_released) == (False, 1)


def test_a_use_stops_the_timer_and_its_end_restarts_it() -> None:
    name = Name(idle_s=1000)
    with name.hold.in_use(), name.hold.in_use():
        assert name.hold.expires_s == pytest.approx(time.time() + 1000, abs=100), "as if it ended now"
        name.clock.advance(2000)
        assert name.n_released == 0
    name.clock.advance(999)
    assert name.n_released == 0
    name.clock.advance(1)
    assert name.n_released == 1


def test_removing_the_limit_stops_the_timer() -> None:
    name = Name(idle_s=1)
    with name.hold.in_use():
        pass
    name.hold.set_idle_limit(None)
    name.hold.restart_timer()
    name.clock.advance(2)
    assert (name.n_released, name.hold.expires_s) == (0, None)


def test_the_end_of_one_use_of_two_starts_no_timer() -> None:
    name = Name(idle_s=0)
    with name.hold.in_use():
        with name.hold.in_use():
            pass
        name.clock.advance(1)
        assert name.n_released == 0
    name.clock.advance(0)
    assert name.n_released == 1


def test_the_idle_limit_counts_from_the_next_idle_time_on() -> None:
    name = Name()
    name.hold.hold()
    name.hold.set_idle_limit(0)
    name.clock.advance(1)
    assert name.n_released == 0, "the request that sets it has not begun yet"
    name.hold.ensure_timer()
    name.clock.advance(0)
    assert name.n_released == 1


def test_another_names_idleness_does_not_restart_the_timer() -> None:
    name = Name(idle_s=100)
    name.hold.hold()
    name.hold.ensure_timer()
    name.clock.advance(60)
    name.hold.ensure_timer()
    name.clock.advance(40)
    assert name.n_released == 1


def test_a_model_that_is_loaded_beforehand_waits_a_minute_for_its_first_use_and_then_its_idle_time() -> None:
    name = Name(idle_s=0)
    name.hold.hold()
    name.hold.ensure_timer()
    name.clock.advance(59)
    assert name.n_released == 0
    with name.hold.in_use():
        pass
    name.clock.advance(0)
    assert name.n_released == 1


def test_a_failed_model_has_no_timer_and_is_still_held() -> None:
    name = Name(idle_s=0)
    name.status = EngineStatus(state="failed")
    with name.hold.in_use():
        pass
    name.hold.ensure_timer()
    name.clock.advance(1)
    assert (name.n_released, name.hold.is_holding) == (0, True)
    assert name.hold.expires_s is not None


def test_a_waiting_use_goes_on_waiting_when_the_model_is_evicted() -> None:
    name = Name()
    with name.hold.in_use():
        name.hold.clear()
        assert name.hold.is_holding
    assert name.hold.is_holding, "it was loaded again for this use"
    with name.hold.in_use():
        name.status = EngineStatus(state="unloaded")
    assert not name.hold.is_holding


def _unload(name: Name) -> None:
    """Do what the engine's owner does when the engine is unloaded."""
    name.status = EngineStatus(state="unloaded")
    name.hold.clear()


@pytest.mark.parametrize("asked_s", [0, 5, 1000, None])
def test_a_limit_of_a_request_ends_with_the_hold_and_the_next_one_has_the_usual_limit(asked_s: float | None) -> None:
    name = Name(idle_s=100)
    with name.hold.in_use(IdleLimit(asked_s)):
        pass
    name.clock.advance(2000)
    assert name.n_released == (asked_s is not None)
    _unload(name)
    name.status = EngineStatus(state="ready")
    with name.hold.in_use():
        pass
    name.clock.advance(99)
    assert name.hold.is_holding
    name.clock.advance(1)
    assert not name.hold.is_holding


def test_a_limit_of_a_request_holds_for_later_uses_until_the_model_is_unloaded() -> None:
    name = Name(idle_s=10)
    with name.hold.in_use(IdleLimit(1000)):
        pass
    with name.hold.in_use():
        pass
    name.clock.advance(999)
    assert name.hold.is_holding


def test_a_limit_outlives_an_eviction_during_the_use_that_set_it() -> None:
    name = Name(idle_s=10)
    with name.hold.in_use(IdleLimit(1000)):
        name.hold.clear()
    name.clock.advance(999)
    assert name.hold.is_holding


def test_a_use_whose_model_cannot_be_loaded_leaves_the_usual_limit() -> None:
    name = Name(idle_s=None)
    with name.hold.in_use(IdleLimit(0)):
        name.status = EngineStatus(state="unloaded")
    assert name.hold.expires_s is None


def test_a_model_pinned_at_the_start_is_pinned_again_after_it_was_stopped() -> None:
    name = Name(idle_s=10)
    name.hold.set_usual_limit(None)
    name.hold.hold()
    name.hold.expire()
    name.clock.advance(0)
    assert name.n_released == 1
    with name.hold.in_use():
        pass
    assert name.hold.expires_s is None


def test_stopping_waits_for_the_uses_that_have_begun_and_is_forgotten_without_a_hold() -> None:
    name = Name(idle_s=100)
    name.hold.expire()
    with name.hold.in_use():
        pass
    assert name.hold.expires_s == pytest.approx(time.time() + 100, abs=50), "it was not loaded when it was stopped"
    with name.hold.in_use():
        name.hold.expire()
        name.clock.advance(1)
        assert name.n_released == 0
    name.clock.advance(0)
    assert name.n_released == 1


def test_a_request_that_uses_the_engine_twice_keeps_it_between_both() -> None:
    name = Name(idle_s=100)
    with name.hold.in_request():
        for _ in range(2):
            with name.hold.in_use(IdleLimit(0)):
                pass
            name.clock.advance(1)
            assert name.n_released == 0
    name.clock.advance(0)
    assert name.n_released == 1


def test_an_idle_time_that_ends_during_a_request_ends_the_hold_only_after_its_use() -> None:
    name = Name(idle_s=10)
    with name.hold.in_use():
        pass
    with name.hold.in_request():
        name.clock.advance(20)
        assert name.hold.is_holding
    assert name.hold.is_holding, "it counts anew"
    name.clock.advance(10)
    assert not name.hold.is_holding


def test_a_request_that_asks_the_engine_nothing_does_not_lengthen_the_idle_time() -> None:
    name = Name(idle_s=10)
    with name.hold.in_use():
        pass
    name.clock.advance(6)
    with name.hold.in_request():
        pass
    name.clock.advance(4)
    assert not name.hold.is_holding
