"""The app: its first screen, its palette, its end.

Owns Textual's App and the order of leaving. Knows nothing of chats.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Iterable
from functools import partial
from importlib import import_module

from textual.app import App, SystemCommand
from textual.screen import Screen

from app.settings import Settings
from tui.backend import local_service
from tui.commands import COMMANDS
from tui.connection import Connection
from tui.keeper import Keeper, Unkept
from tui.kept_chat import KeptChat
from tui.meter import Clock
from tui.screens.chat import ChatScreen

__all__ = ["LocalllmApp", "run"]


class LocalllmApp(App[None]):
    """localllm in a terminal. It paints first and connects then; whoever runs it closes the connection and the
    keeper."""

    TITLE = "localllm"
    DEFAULT_MODE = "chat"

    def __init__(self, connection: Connection, keeper: Keeper | None = None, clock: Clock = time.monotonic) -> None:
        super().__init__()
        self.animation_level = "none"
        self.add_mode("chat", partial(ChatScreen, connection, keeper or Unkept(), clock))

    def on_mount(self) -> None:
        self.call_after_refresh(self._import_what_answers_need)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Fill the palette from the table of commands."""
        if isinstance(screen, ChatScreen):
            for command in COMMANDS:
                if command.slash:
                    yield SystemCommand(command.title, command.tooltip, partial(screen.run_command, command.id))

    def _import_what_answers_need(self) -> None:
        """Import in a thread what would otherwise hold up the first answer: half the time of the first frame."""
        self.run_worker(partial(import_module, "textual.widgets._markdown"), thread=True)


def run(settings: Settings) -> int:
    """Run the app until the person leaves; return the exit status."""
    return asyncio.run(_run(settings))


async def _run(settings: Settings) -> int:
    async with (
        KeptChat(settings.data_dir) as keeper,
        Connection(local_service(settings), settings.model) as connection,
    ):
        app = LocalllmApp(connection, keeper)
        _leave_when_told_to(app)
        await app.run_async()
        return app.return_code or 0


def _leave_when_told_to(app: LocalllmApp) -> None:
    """Leave in good order when the terminal closes, so that the service that was started here stops."""
    if sys.platform == "win32":
        return  # its event loop takes no signal handlers; a closed console ends the child processes too
    for number in (signal.SIGHUP, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, app.exit)
