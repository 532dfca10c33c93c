"""A simulated user: presses keys and reads the screen."""

from __future__ import annotations

import asyncio
import time
import unicodedata
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from textual.app import App
from textual.events import Key, Paste
from textual.keys import REPLACED_KEYS, _character_to_key, _get_unicode_name_from_key
from textual.pilot import Pilot

from app.chat.repository import ChatRepository
from app.chat.state import Clock
from app.connection import ServiceConnection
from app.settings.settings import Settings
from app.tools.backend import ToolBackend
from tests.app.client.scripted_client import ScriptedClient
from tests.patience import PATIENCE_S
from tests.tui.screen_text import screen_text
from tui.app import LocalllmApp

NO_SETTINGS: Mapping[str, str] = MappingProxyType({})
QUICK_CLOCK: Clock = partial(next, count())  # a second passes at every look


async def wait_until(pilot: Pilot[None], predicate: Callable[[], bool], what: Callable[[], str]) -> None:
    """Let the app go on until `predicate` holds; else fail with what `what` says then."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not predicate():
        assert time.monotonic() < deadline_s, what()
        await asyncio.sleep(0.02)
        await _handle_events(pilot)


async def _handle_events(pilot: Pilot[None]) -> None:
    """Let every widget handle its queue, and draw. `Pilot.pause` waits 20 ms more for the process to idle."""
    await pilot._wait_for_screen()
    pilot.app.screen._on_timer_update()


def _key_event(app: App[Any], key: str) -> Key:
    """Return the event of a key, as Textual's `App._press_keys` makes it."""
    name = _character_to_key(key) if len(key) == 1 and not key.isalnum() else key
    try:
        character = unicodedata.lookup(_get_unicode_name_from_key(REPLACED_KEYS.get(name, name)))
    except KeyError:
        character = name if len(name) == 1 else None
    event = Key(name, character)
    event.set_sender(app)
    return event


class User:
    """Acts through keys and clicks, and knows only what is on the screen."""

    def __init__(self, pilot: Pilot[None]) -> None:
        self.pilot = pilot
        self.app = pilot.app

    @property
    def screen_text(self) -> str:
        """Everything on the screen, row by row."""
        return screen_text(self.app)

    async def presses(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def types(self, text: str) -> None:
        """Type fast: a letter comes once the one before is handled, where `Pilot.press` waits 40 ms after each."""
        names = {" ": "space", "/": "slash", "?": "question_mark", "\n": "ctrl+j", ".": "full_stop", ",": "comma"}
        if not text:
            return
        *letters, last = (names.get(character, character) for character in text)
        for letter in letters:
            self.app._driver.send_message(_key_event(self.app, letter))
            await _handle_events(self.pilot)
        await self.pilot.press(last)

    async def sends_at_once(self, *keys: str) -> None:
        """Send keys as one burst through the driver: all are there before the first is looked at."""
        for key in keys:
            self.app._driver.send_message(_key_event(self.app, "space" if key == " " else key))
        await self.pilot.pause()

    async def pastes(self, text: str) -> None:
        self.app.post_message(Paste(text))
        await self.pilot.pause()

    async def asks(self, question: str) -> None:
        """Put a question into the prompt at once (typing it key by key is slow) and send it."""
        await self.pastes(question)
        await self.presses("enter")

    async def sees(self, *texts: str) -> None:
        """Wait until each text has been on the screen; a notice may be gone before the last of them comes."""
        missing = set(texts)

        def has_seen_all() -> bool:
            screen_text = self.screen_text
            missing.difference_update([text for text in missing if text in screen_text])
            return not missing

        await wait_until(self.pilot, has_seen_all, lambda: f"never on the screen: {missing}\n{self.screen_text}")

    async def no_longer_sees(self, text: str) -> None:
        await self.until(lambda: text not in self.screen_text, f"{text!r} stayed on the screen")

    async def leaves(self) -> None:
        await wait_until(self.pilot, lambda: self.app._exit, lambda: f"The app stays:\n{self.screen_text}")

    async def until(self, predicate: Callable[[], bool], complaint: str) -> None:
        await wait_until(self.pilot, predicate, lambda: f"{complaint}:\n{self.screen_text}")


InlineSession = Callable[..., AbstractAsyncContextManager[User]]


@pytest.fixture
def open_app(tmp_path: Path) -> InlineSession:
    """Sit down at the app whose service is the given scripted client; the clock stands still unless another
    is given, the disk is a test's."""
    on_disk = Settings(data_dir=tmp_path / "data", cache_dir=tmp_path / "cache")

    @asynccontextmanager
    async def sit_down(
        client: ScriptedClient,
        size: tuple[int, int] = (80, 24),
        repository: ChatRepository | None = None,
        settings: Mapping[str, str] = NO_SETTINGS,
        tools: ToolBackend | None = None,
        clock: Clock = lambda: 0.0,
    ) -> AsyncIterator[User]:
        async with ServiceConnection(client.opened, "guide") as connection:
            changed: Any = settings
            own = replace(on_disk, **changed)
            app = LocalllmApp(connection, repository, clock=clock, settings=own, tools=tools)
            async with app.run_test(size=size, notifications=True) as pilot:
                yield User(pilot)

    return sit_down


@pytest.fixture
def user_of() -> type[User]:
    """Return a user for a pilot, for tests that run the app themselves."""
    return User


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("LOCALLLM_CONFIG", str(tmp_path / "config.toml"))  # never the real settings
