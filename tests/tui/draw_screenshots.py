"""Draw the README's pictures with the real app, its real service and the guide.

Run: `uv run python tests/tui/draw_screenshots.py`, on an idle machine: the rates in the pictures are measured. Writes
assets/screenshots/NAME-{dark,light}.svg for chat, models and plan. The chats at the side are made up; the answer is the
guide's.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from textual.pilot import Pilot

from app.chat.conversation import Chat, Message, Transcript
from app.chat.repository import SqliteChatRepository
from app.chat.store.chat_store import ChatStore
from app.connection import ServiceConnection, local_service
from app.settings.settings import Settings
from tests.tui.screen_text import screen_text
from tui.app import LocalllmApp

PICTURES = Path(__file__).parents[2] / "assets" / "screenshots"
SIZE = (120, 36)
THEMES = {"dark": "textual-dark", "light": "textual-light"}
PATIENCE_S = 120.0
_SETTLE_S = 8.0
_CHATS = (
    ("Leek soup for four", 0.1),
    ("A regex for dates", 3.0),
    ("Trip to Lisbon", 26.0),
    ("Letter to the bank", 30.0),
    ("Why is the sky blue?", 24.0 * 9),
)  # titles, and how many hours ago


class _Sitting:
    """The app with somebody before it who waits for what is to be seen."""

    def __init__(self, pilot: Pilot[None]) -> None:
        self._pilot = pilot

    async def presses(self, *keys: str) -> None:
        await self._pilot.press(*keys)

    async def sees(self, text: str) -> None:
        await self._until(lambda: text in self._text, text)

    async def no_longer_sees(self, text: str) -> None:
        await self._until(lambda: text not in self._text, f"the end of {text}")

    def draw(self, name: str) -> None:
        path = PICTURES / f"{name}.svg"
        path.write_text(self._pilot.app.export_screenshot(title="localllm"), encoding="utf-8")
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")

    async def draw_all(self, name: str) -> None:
        """Draw the screen in every theme."""
        for suffix, theme in THEMES.items():
            self._pilot.app.theme = theme
            await self._pilot.pause(0.5)
            self.draw(f"{name}-{suffix}")

    @property
    def _text(self) -> str:
        return screen_text(self._pilot.app)

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not holds():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{what!r} was never seen:\n{self._text}")
            await self._pilot.pause(0.05)


@asynccontextmanager
async def _sitting(folder: Path):
    settings = Settings(data_dir=folder / "data", cache_dir=folder / "cache", port=0)
    async with (
        SqliteChatRepository(settings.data_dir) as repository,
        ServiceConnection(local_service(settings), settings.model) as connection,
    ):
        app = LocalllmApp(connection, repository, settings=settings)
        async with app.run_test(size=SIZE) as pilot:
            yield _Sitting(pilot)


def keep_chats(folder: Path) -> None:
    """Store chats of the last days, so that the list of chats is not empty."""
    now_ms = round(time.time() * 1000)
    with ChatStore(folder) as store:
        for title, hours in _CHATS:
            moment_ms = now_ms - round(hours * 3_600_000)
            question = Message(id=1, parent_id=None, role="user", content=title, created_ms=moment_ms)
            answer = Message(id=2, parent_id=1, role="assistant", content="…", created_ms=moment_ms, model="guide")
            chat = Chat(id=1, title=title, created_ms=moment_ms, updated_ms=moment_ms, model="guide", leaf_id=2)
            store.transcripts.insert(Transcript(chat, (question, answer)))


async def draw() -> None:
    """Go through the app and draw what is worth a picture."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="localllm-pictures-") as folder:
        os.environ["HOME"] = folder  # its paths are shown
        keep_chats(Path(folder) / "data")
        async with _sitting(Path(folder)) as open_app:
            await open_app.sees("● ready")
            await asyncio.sleep(_SETTLE_S)  # what starts with the app has ended
            await open_app.presses("ctrl+n")
            await open_app.presses("f3")
            await open_app.sees("Q4_K_M")
            await open_app.sees("● ready")
            await open_app.draw_all("chat")
            await open_app.presses("f6")
            await open_app.sees("Recommended")
            await open_app.no_longer_sees("…")
            await open_app.draw_all("models")
            await open_app.presses("f7")
            await asyncio.sleep(_SETTLE_S)
            await open_app.draw_all("plan")


if __name__ == "__main__":
    asyncio.run(draw())
