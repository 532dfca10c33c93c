from __future__ import annotations

import asyncio
import time

import pytest

from app.service import keep_alive
from app.service.keep_alive import KeepAlive


class Engine:
    """Counts how often it was let go."""

    def __init__(self) -> None:
        self.is_busy = False
        self.n_unloads = 0

    def unload(self) -> None:
        self.n_unloads += 1


def _keeping() -> tuple[KeepAlive, Engine]:
    engine = Engine()
    return KeepAlive(engine), engine  # type: ignore[arg-type]


async def test_a_model_stays_until_a_request_says_for_how_long() -> None:
    kept, engine = _keeping()
    kept.begin_again()
    assert kept.expires_s is None
    kept.keep(0.02)
    kept.begin_again()
    assert kept.expires_s == pytest.approx(time.time() + 0.02, abs=0.01)
    await asyncio.sleep(0.05)
    assert (engine.n_unloads, kept.expires_s) == (1, None)


async def test_use_stops_the_clock_and_its_end_starts_it_anew() -> None:
    kept, engine = _keeping()
    kept.keep(0.05)
    kept.begin_again()
    await asyncio.sleep(0.03)
    kept.pause()
    await asyncio.sleep(0.05)
    kept.begin_again()
    await asyncio.sleep(0.03)
    assert engine.n_unloads == 0
    kept.keep(None)
    kept.begin_again()
    await asyncio.sleep(0.05)
    assert engine.n_unloads == 0


async def test_a_busy_engine_is_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep_alive, "_BUSY_S", 0.03)
    kept, engine = _keeping()
    engine.is_busy = True
    kept.keep(0)
    kept.begin_again()
    await asyncio.sleep(0.02)
    assert engine.n_unloads == 0
    engine.is_busy = False
    await asyncio.sleep(0.04)
    assert engine.n_unloads == 1
