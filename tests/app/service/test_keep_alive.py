from __future__ import annotations

import asyncio
import time

import pytest

from app.service.door import Door
from app.service.engine_status import EngineStatus
from app.service.keep_alive import KeepAlive


class Engine:
    """Counts how often it was let go; a test says when it works."""

    def __init__(self) -> None:
        self.status = EngineStatus(state="ready")
        self.n_unloads = 0
        self.door = Door()

    def work(self) -> None:
        self.door.tell_work()

    def rest(self) -> None:
        self.door.tell_rest()

    def unload(self) -> None:
        self.n_unloads += 1


def _keeping(idle_s: float | None = None) -> tuple[KeepAlive, Engine]:
    engine = Engine()
    return KeepAlive(engine, idle_s), engine  # type: ignore[arg-type]


async def test_a_model_that_is_to_stay_stays_until_a_request_says_for_how_long() -> None:
    kept, engine = _keeping()
    engine.rest()
    assert kept.expires_s is None
    kept.keep(0.02)
    kept.begin_again()
    assert kept.expires_s == pytest.approx(time.time() + 0.02, abs=0.01)
    await asyncio.sleep(0.05)
    assert engine.n_unloads == 1


async def test_use_stops_the_clock_and_its_end_starts_it_anew() -> None:
    kept, engine = _keeping(idle_s=0.05)
    engine.rest()
    await asyncio.sleep(0.03)
    engine.work()
    assert kept.expires_s == pytest.approx(time.time() + 0.05, abs=0.01), "as if it ended now"
    await asyncio.sleep(0.05)
    engine.rest()
    await asyncio.sleep(0.03)
    assert engine.n_unloads == 0
    kept.keep(None)
    engine.rest()
    await asyncio.sleep(0.05)
    assert (engine.n_unloads, kept.expires_s) == (0, None)


async def test_how_long_one_stays_counts_from_its_next_rest_on() -> None:
    kept, engine = _keeping()
    engine.rest()
    kept.keep(0)
    await asyncio.sleep(0.01)
    assert engine.n_unloads == 0, "the request that says so has not begun yet"
    engine.work()
    engine.rest()
    await asyncio.sleep(0.01)
    assert engine.n_unloads == 1


async def test_a_model_that_is_not_loaded_has_no_clock() -> None:
    kept, engine = _keeping(idle_s=0)
    engine.status = EngineStatus(state="failed")
    engine.rest()
    await asyncio.sleep(0.01)
    assert engine.n_unloads == 0
    assert kept.expires_s is not None
