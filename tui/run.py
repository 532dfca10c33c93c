"""Running the app for a person at a terminal: what it is made of, and its end when the terminal closes.

Owns the order in which its parts open and close, and the signals.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Mapping

from app.settings import Settings
from tui.app import LocalllmApp
from tui.backend import local_service
from tui.connection import Connection
from tui.first_run import is_first_run
from tui.kept_chat import KeptChat
from tui.settings_book import SettingsBook

__all__ = ["run"]


def run(settings: Settings, flags: Mapping[str, object]) -> int:
    """Run the app until the person leaves; return the exit status. `flags` are the part of `settings` that the command
    line gave."""
    return asyncio.run(_run(settings, SettingsBook(settings, flags)))


async def _run(settings: Settings, book: SettingsBook) -> int:
    async with (
        KeptChat(settings.data_dir) as keeper,
        Connection(local_service(settings), settings.model) as connection,
    ):
        app = LocalllmApp(connection, keeper, settings=settings, is_welcoming=is_first_run(settings), book=book)
        _leave_with_the_terminal(app)
        await app.run_async()
        return app.return_code or 0


def _leave_with_the_terminal(app: LocalllmApp) -> None:
    """Leave in good order when the terminal closes, so that the service that was started here stops."""
    if sys.platform == "win32":
        return  # its event loop takes no signal handlers; a closed console ends the child processes too
    from textual.drivers.linux_driver import LinuxDriver

    from tui.vanishing_terminal import VanishingTerminal

    for number in (signal.SIGHUP, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, app.leave_unasked)
    if app.driver_class is LinuxDriver:  # and not one that the environment names
        app.driver_class = VanishingTerminal
