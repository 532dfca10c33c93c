"""The app connected to an engine of another program, acted on through keys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.connection import ServiceConnection, local_service
from app.settings.settings import Settings
from tests.tui.far_engine import FarEngine
from tui.app import LocalllmApp


@pytest.fixture
def engine() -> Iterator[FarEngine]:
    with FarEngine.serving() as engine:
        yield engine


@pytest.fixture
def sit_down(engine: FarEngine, tmp_path: Path, user_of):
    @asynccontextmanager
    async def opened() -> AsyncIterator:
        settings = Settings(
            connect=engine.url, model="", data_dir=tmp_path / "data", cache_dir=tmp_path / "cache", theme=""
        )
        async with ServiceConnection(local_service(settings), "") as connection:
            app = LocalllmApp(connection, settings=settings)
            async with app.run_test(size=(80, 24), notifications=True) as pilot:
                user = user_of(pilot)
                await user.sees("far  ● ready")
                yield user

    return opened


@pytest.mark.slow
async def test_a_failure_of_the_engine_shows_its_own_message_and_the_next_question_is_answered(engine, sit_down):
    async with sit_down() as user:
        engine.failure = (500, "CUDA out of memory")
        await user.asks("Hello?")
        await user.sees("responds 500: CUDA out of memory", "far  ● ready")
        assert "Lost the" not in user.screen_text
        engine.failure = None
        engine.send("All is well.")
        engine.end()
        await user.asks("Again?")
        await user.sees("All is well.")


async def test_thoughts_that_the_engine_leaves_in_the_answer_are_folded(engine, sit_down):
    async with sit_down() as user:
        engine.send("<think>Hmm, let me see.</think>\n\nIt is so.")
        engine.end()
        await user.asks("Is it?")
        await user.sees("It is so.", "thought for")
        assert "<think>" not in user.screen_text
        assert "let me see" not in user.screen_text


@pytest.mark.slow
async def test_another_model_of_the_engine_is_chosen_in_the_list(engine, sit_down):
    engine.models = ["far", "farther"]
    async with sit_down() as user:
        await user.presses("f6")
        await user.sees("At the connected engine", "farther")
        await user.presses("down", "enter")
        await user.sees("farther  ● ready")
        engine.send("Yes.")
        engine.end()
        await user.asks("Are you the other one?")
        await user.sees("Yes.")
    assert engine.requests[-1]["model"] == "farther"
