"""Quitting the app: running jobs continue or stop, as the settings or the user choose.

Owns the choices and asks at most once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from app.terminal import printable
from quantizer.errors import UserError
from tui.connection import localllm_service

if TYPE_CHECKING:
    from textual.app import App

    from tui.widgets.screens import AppContext

__all__ = ["QuitFlow"]

_ASK, _GO_ON, _STOP = "ask", "go-on", "stop"  # values of the setting jobs_at_exit
_CHOICES: Mapping[str, str] = {
    _GO_ON: "Quit; the jobs continue until they finish",
    _STOP: "Cancel the jobs and quit; partial downloads are kept",
}
_QUIT_TIMEOUT_S = 3.0  # for the service, after the terminal closed


class QuitFlow:
    """Ends `app` cleanly."""

    def __init__(self, app: App[None], app_context: AppContext) -> None:
        self._app = app
        self._jobs = app_context.jobs
        self._connection = app_context.connection
        self._settings_controller = app_context.settings_controller
        self._is_asking = False
        self._is_quitting = False  # started after the terminal closed

    def quit(self) -> None:
        """End the app; handle running jobs by the setting, or ask."""
        choice = self._settings_controller.settings.jobs_at_exit
        if not self._jobs.n_busy:
            self._app.exit()
        elif choice != _ASK:
            self._start(choice)
        elif not self._is_asking:
            self._is_asking = True
            self._app.run_worker(self._ask())

    def quit_without_asking(self) -> None:
        """End the app after the terminal closed: jobs continue unless the settings say otherwise. Does not wait for an
        unresponsive service."""
        choice = self._settings_controller.settings.jobs_at_exit
        if not self._jobs.n_busy or not self._app.is_running:
            self._app.exit()
        elif not self._is_quitting:  # a signal and the driver may both report it
            self._is_quitting = True
            silently = self._quit_silently(_GO_ON if choice == _ASK else choice)
            self._app.run_worker(silently, group="leave", exclusive=True)

    def _start(self, choice: str) -> None:
        self._app.run_worker(self._quit_with_jobs(choice), group="leave", exclusive=True)

    async def _ask(self) -> None:
        from tui.widgets.dialogs import ChoiceDialog

        text = f"Running or queued jobs: {self._jobs.n_busy}."
        choice = await self._app.push_screen_wait(ChoiceDialog("Quit", text, _CHOICES))
        self._is_asking = False
        if choice is not None:
            self._start(choice)

    async def _quit_with_jobs(self, choice: str) -> None:
        try:
            await self._settle_jobs(choice)
        except UserError as error:
            self._app.notify(printable(str(error)), severity="error", markup=False)
        else:
            self._app.exit()

    async def _quit_silently(self, choice: str) -> None:
        try:
            async with asyncio.timeout(_QUIT_TIMEOUT_S):
                await self._settle_jobs(choice)
        except (UserError, TimeoutError):
            pass  # no one is left to inform: jobs end with the service, partial downloads are kept
        finally:
            self._app.exit()

    async def _settle_jobs(self, choice: str) -> None:
        """Keep the service until its jobs end, or cancel them all."""
        client = await localllm_service(self._connection)
        if choice == _GO_ON:
            await client.stay_until_jobs_end()
            return
        for job in [job for job in self._jobs.jobs.values() if not job.has_ended]:
            await client.cancel_job(job.id)
