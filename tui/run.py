"""Running the app for a person at a terminal: what it is made of, its end when the terminal closes, and a crash.

Owns the order in which its parts open and close, and the signals.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Mapping
from typing import Any

from app.settings import Settings
from quantizer.errors import UserError
from tui.app import LocalllmApp
from tui.backend import local_service
from tui.connection import Connection
from tui.crash import tell_crash, tell_unseen
from tui.first_run import is_first_run
from tui.kept_chat import KeptChat
from tui.settings_book import SettingsBook

__all__ = ["run"]


def run(settings: Settings, flags: Mapping[str, object]) -> int:
    """Run the app until the person leaves; return the exit status, that of a crash too, which is told. `flags` are the
    part of `settings` that the command line gave. Raises the UserError that ended the app."""
    sitting = _Sitting(settings, SettingsBook(settings, flags))
    try:
        asyncio.run(sitting.hold())
    except Exception as error:  # whatever it is: Python would print the texts that it may hold
        sitting.failure = sitting.failure or error
    if sitting.unseen:
        tell_unseen(sitting.unseen, settings.cache_dir)
    if isinstance(sitting.failure, UserError):
        raise sitting.failure
    if sitting.failure is not None:
        return tell_crash(sitting.failure, settings.cache_dir, is_kept=sitting.is_kept)
    return sitting.status


class _Sitting:
    """The app from its beginning to its end. `failure` is what ended it, `unseen` are the errors of tasks that nobody
    waited for; `is_kept` holds once what was said is on the disk."""

    def __init__(self, settings: Settings, book: SettingsBook) -> None:
        self._settings = settings
        self._book = book
        self.status = 0
        self.failure: Exception | None = None
        self.unseen: list[Exception] = []
        self.is_kept = False

    async def hold(self) -> None:
        """Show the app until it ends."""
        asyncio.get_running_loop().set_exception_handler(self._note)
        async with KeptChat(self._settings.data_dir) as keeper:
            try:
                await self._show(keeper)
            except Exception as error:  # told once everything is kept
                self.failure = self.failure or error
        self.is_kept = True

    async def _show(self, keeper: KeptChat) -> None:
        settings = self._settings
        async with Connection(local_service(settings), settings.model) as connection:
            is_new = is_first_run(settings)
            app = LocalllmApp(connection, keeper, settings=settings, is_welcoming=is_new, book=self._book)
            _leave_with_the_terminal(app)
            try:
                await app.run_async()
            finally:
                self.failure, self.status = app.failure, app.return_code or 0

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Take the error of a task that nobody waits for: asyncio would print it with its text."""
        if isinstance(error := context.get("exception"), Exception):
            self.unseen.append(error)
        else:
            loop.default_exception_handler(context)


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
