"""When the models screen asks the hub."""

from __future__ import annotations

import asyncio

import pytest

from app.connection import ServiceConnection
from tests.tui.model_scenes import client_with_models
from tui.jobs.monitor import JobMonitor
from tui.models.lists import ModelLists

pytestmark = pytest.mark.slow


async def test_the_hub_is_asked_only_after_a_pause_in_typing():
    client = client_with_models()
    typing_paused = asyncio.Event()
    pauses_s: asyncio.Queue[float] = asyncio.Queue()

    async def sleep(seconds: float) -> None:
        pauses_s.put_nowait(seconds)
        await typing_paused.wait()

    async with ServiceConnection(client.opened, "guide") as connection:
        connection.start()
        lists = ModelLists(connection, JobMonitor(connection), lambda: None, sleep)
        lists.narrow("ti")
        first = asyncio.create_task(lists.search())
        assert await pauses_s.get() > 0
        first.cancel()  # as the screen does at the next key
        lists.narrow("tiny")
        last = asyncio.create_task(lists.search())
        await pauses_s.get()
        assert client.library.searched == []
        typing_paused.set()
        await last
    assert client.library.searched == ["tiny"]
