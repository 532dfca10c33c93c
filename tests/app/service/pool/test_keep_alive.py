from __future__ import annotations

import asyncio
import time

import pytest

from app.service.pool.engine_status import EngineStatus
from app.service.pool.keep_alive import KeepAlive


class Engine:
    """An engine whose state a test sets; it counts releases of its name."""

    def __init__(self) -> None:
        self.status = EngineStatus(state="ready")
        self.released = asyncio.Event()

    async def until_released(self) -> None:
        async with asyncio.timeout(5):
            await self.released.wait()


def _keeping(idle_s: float | None = None) -> tuple[KeepAlive, Engine]:
    engine = Engine()
    return KeepAlive(engine, idle_s, engine.released.set), engine  # type: ignore[arg-type]


async def test_an_unused_name_holds_nothing() -> None:
    kept, engine = _keeping(idle_s=0)
    kept.ensure_timer()
    await asyncio.sleep(0.01)
    assert (kept.is_holding, engine.released.is_set()) == (False, False)


async def test_a_model_without_limit_stays_until_a_request_sets_one() -> None:
    kept, engine = _keeping()
    with kept.in_use():
        assert (kept.is_used, kept.is_holding) == (True, True)
    assert (kept.is_used, kept.is_holding, kept.expires_s) == (False, True, None)
    kept.set_idle_limit(0.02)
    kept.restart_timer()
    assert kept.expires_s == pytest.approx(time.time() + 0.02, abs=0.01)
    await engine.until_released()
    assert not kept.is_holding


async def test_a_use_stops_the_timer_and_its_end_restarts_it() -> None:
    kept, engine = _keeping(idle_s=0.05)
    with kept.in_use(), kept.in_use():
        assert kept.expires_s == pytest.approx(time.time() + 0.05, abs=0.01), "as if it ended now"
        await asyncio.sleep(0.1)
        assert not engine.released.is_set()
    kept.set_idle_limit(None)
    kept.restart_timer()
    await asyncio.sleep(0.1)
    assert (engine.released.is_set(), kept.expires_s) == (False, None)


async def test_the_end_of_one_use_of_two_starts_no_timer() -> None:
    kept, engine = _keeping(idle_s=0)
    with kept.in_use():
        with kept.in_use():
            pass
        await asyncio.sleep(0.01)
        assert not engine.released.is_set()
    await engine.until_released()


async def test_the_idle_limit_counts_from_the_next_idle_time_on() -> None:
    kept, engine = _keeping()
    kept.hold()
    kept.set_idle_limit(0)
    await asyncio.sleep(0.01)
    assert not engine.released.is_set(), "the request that sets it has not begun yet"
    kept.ensure_timer()
    await engine.until_released()


async def test_another_names_idleness_does_not_restart_the_timer() -> None:
    kept, engine = _keeping(idle_s=0.2)
    kept.hold()
    kept.ensure_timer()
    first_s = kept.expires_s
    await asyncio.sleep(0.05)
    kept.ensure_timer()
    assert kept.expires_s == pytest.approx(first_s, abs=0.02)
    await engine.until_released()


async def test_a_failed_model_has_no_timer_and_is_still_held() -> None:
    kept, engine = _keeping(idle_s=0)
    engine.status = EngineStatus(state="failed")
    with kept.in_use():
        pass
    kept.ensure_timer()
    await asyncio.sleep(0.01)
    assert not engine.released.is_set()
    assert kept.expires_s is not None
    assert kept.is_holding


async def test_a_waiting_use_goes_on_waiting_when_the_model_is_evicted() -> None:
    kept, engine = _keeping(idle_s=None)
    with kept.in_use():
        kept.clear()
        assert kept.is_holding
    assert kept.is_holding, "it was loaded again for this use"
    with kept.in_use():
        engine.status = EngineStatus(state="unloaded")
    assert not kept.is_holding
