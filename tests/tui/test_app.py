from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import Static

from tests.app.client.scripted_client import ScriptedClient

Opened = Callable[..., AbstractAsyncContextManager[Any]]


class Part(Static):
    """A widget that takes a moment to go."""

    def on_mount(self) -> None:
        self.has_gone = asyncio.Event()

    async def on_unmount(self) -> None:
        self.has_gone.set()


class WorkingScreen(Screen[None]):
    """A screen whose worker goes on when its part is gone, and looks for it."""

    def compose(self) -> ComposeResult:
        yield Part()

    def on_mount(self) -> None:
        self.worker = self.run_worker(self._look_again())

    async def _look_again(self) -> None:
        await self.query_one(Part).has_gone.wait()
        await asyncio.sleep(0)
        self.query_one(Part)


@pytest.mark.parametrize("leaves", ["the screen", "the app"])
async def test_nothing_works_for_a_screen_whose_parts_are_gone(open_app: Opened, leaves: str) -> None:
    screen = WorkingScreen()
    async with open_app(ScriptedClient()) as user:
        await user.app.push_screen(screen)
        await user.pilot.pause()
        if leaves == "the screen":
            await user.app.pop_screen()
    assert screen.worker.is_cancelled
