from __future__ import annotations

import asyncio
import time

import pytest

from app.service.pool.engine_status import EngineStatus
from app.service.pool.keep_alive import KeepAlive


class Engine:
    """An engine whose state a test sets; it counts how often its name let go."""

    def __init__(self) -> None:
        self.status = EngineStatus(state="ready")
        self.let_go = asyncio.Event()

    async def until_let_go(self) -> None:
        async with asyncio.timeout(5):
            await self.let_go.wait()


def _keeping(idle_s: float | None = None) -> tuple[KeepAlive, Engine]:
    engine = Engine()
    return KeepAlive(engine, idle_s, engine.let_go.set), engine  # type: ignore[arg-type]


async def test_a_name_that_nobody_used_holds_nothing() -> None:
    kept, engine = _keeping(idle_s=0)
    kept.rest()
    await asyncio.sleep(0.01)
    assert (kept.is_holding, engine.let_go.is_set()) == (False, False)


async def test_a_model_that_is_to_stay_stays_until_a_request_says_for_how_long() -> None:
    kept, engine = _keeping()
    with kept.in_use():
        assert (kept.is_used, kept.is_holding) == (True, True)
    assert (kept.is_used, kept.is_holding, kept.expires_s) == (False, True, None)
    kept.keep(0.02)
    kept.restart_timer()
    assert kept.expires_s == pytest.approx(time.time() + 0.02, abs=0.01)
    await engine.until_let_go()
    assert not kept.is_holding


async def test_use_stops_the_clock_and_its_end_starts_it_anew() -> None:
    kept, engine = _keeping(idle_s=0.05)
    with kept.in_use(), kept.in_use():
        assert kept.expires_s == pytest.approx(time.time() + 0.05, abs=0.01), "as if it ended now"
        await asyncio.sleep(0.1)
        assert not engine.let_go.is_set()
    kept.keep(None)
    kept.restart_timer()
    await asyncio.sleep(0.1)
    assert (engine.let_go.is_set(), kept.expires_s) == (False, None)


async def test_the_end_of_one_use_of_two_starts_no_clock() -> None:
    kept, engine = _keeping(idle_s=0)
    with kept.in_use():
        with kept.in_use():
            pass
        await asyncio.sleep(0.01)
        assert not engine.let_go.is_set()
    await engine.until_let_go()


async def test_how_long_one_stays_counts_from_its_next_rest_on() -> None:
    kept, engine = _keeping()
    kept.hold()
    kept.keep(0)
    await asyncio.sleep(0.01)
    assert not engine.let_go.is_set(), "the request that says so has not begun yet"
    kept.rest()
    await engine.until_let_go()


async def test_the_rest_of_another_name_does_not_start_the_clock_anew() -> None:
    kept, engine = _keeping(idle_s=0.2)
    kept.hold()
    kept.rest()
    first_s = kept.expires_s
    await asyncio.sleep(0.05)
    kept.rest()
    assert kept.expires_s == pytest.approx(first_s, abs=0.02)
    await engine.until_let_go()


async def test_a_model_that_is_not_loaded_has_no_clock_and_what_failed_is_still_told_of() -> None:
    kept, engine = _keeping(idle_s=0)
    engine.status = EngineStatus(state="failed")
    with kept.in_use():
        pass
    kept.rest()
    await asyncio.sleep(0.01)
    assert not engine.let_go.is_set()
    assert kept.expires_s is not None
    assert kept.is_holding


async def test_who_waits_goes_on_waiting_when_the_model_goes_for_want_of_room() -> None:
    kept, engine = _keeping(idle_s=None)
    with kept.in_use():
        kept.lose()
        assert kept.is_holding
    assert kept.is_holding, "it was loaded again for this use"
    with kept.in_use():
        engine.status = EngineStatus(state="unloaded")
    assert not kept.is_holding
