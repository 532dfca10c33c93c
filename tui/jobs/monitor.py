"""The service's jobs: following them for the whole app, downloads started here, and quitting while jobs run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from app.common.terminal import printable, printable_line
from app.connection import ServiceConnection, localllm_service
from app.protocol.errors import ServiceError
from quantizer.system.errors import UserError
from tui.widgets.dialogs import ChoiceDialog

if TYPE_CHECKING:
    from textual.app import App

    from app.protocol.job import Job
    from tui.settings.controller import SettingsController


_ASK, _GO_ON, _STOP = "ask", "go-on", "stop"  # values of the setting jobs_at_exit
_CHOICES: Mapping[str, str] = {
    _GO_ON: "Quit; the jobs continue until they finish",
    _STOP: "Cancel the jobs and quit; partial downloads are kept",
}
_QUIT_TIMEOUT_S = 3.0  # for the service, after the terminal closed
_LONG_S = 30.0  # by then the user has turned to something else


class JobMonitor:
    """The jobs by id, oldest first; `trouble` is the error that prevents following them, or None."""

    def __init__(self, connection: ServiceConnection) -> None:
        self.jobs: dict[str, Job] = {}
        self.trouble: UserError | None = None
        self._connection = connection
        self._changed: list[Callable[[], None]] = []
        self._ended: list[Callable[[Job], None]] = []
        self._phase = ""
        self._has_moved = asyncio.Event()

    @property
    def n_busy(self) -> int:
        return sum(not job.has_ended for job in self.jobs.values())

    def watch(self, changed: Callable[[], None]) -> None:
        self._changed.append(changed)

    def on_end(self, ended: Callable[[Job], None]) -> None:
        self._ended.append(ended)

    async def run(self) -> None:
        """Follow the jobs whenever there is a service, until cancelled; the chat starts the service."""
        self._connection.watch(self._note_phase)
        self._note_phase()
        while True:
            while self._phase in {"idle", "starting"} or isinstance(self._connection.state.error, ServiceError):
                self._has_moved.clear()
                await self._has_moved.wait()
            self._has_moved.clear()
            try:
                await self._follow()
            except UserError as error:
                self.trouble = error
                self._notify()
            await self._has_moved.wait()

    async def _follow(self) -> None:
        client = await localllm_service(self._connection)
        self.jobs = {job.id: job for job in await client.jobs()}
        self.trouble = None
        self._notify()
        try:
            async for job in client.watch_jobs():
                before = self.jobs.get(job.id)
                if job.state == "forgotten":
                    self.jobs.pop(job.id, None)
                else:
                    self.jobs[job.id] = job
                if job.has_ended and job.state != "forgotten" and not (before and before.has_ended):
                    for callback in self._ended:  # also for a new job, which may have failed at once
                        callback(job)
                self._notify()
        except ServiceError:
            try:  # no other request may be running that would report a lost service
                await (await self._connection.service()).status()
            except ServiceError as gone:
                await self._connection.report_failure(gone)
            raise

    def _note_phase(self) -> None:
        """Record another phase, not each step of loading: each phase causes one retry."""
        if self._connection.state.phase != self._phase:
            self._phase = self._connection.state.phase
            self._has_moved.set()

    def _notify(self) -> None:
        for callback in self._changed:
            callback()


class Downloads:
    """The downloads that this app started; they continue after it quits if the service stays."""

    def __init__(self, connection: ServiceConnection) -> None:
        self.newest = ""  # the path of the latest model
        self._connection = connection
        self._started: set[str] = set()  # ids of their jobs

    async def start(self, reference: str, quantize: str = "") -> Job:
        """Download `reference`; quantize a checkpoint to the type `quantize`. Raises UserError if the service is
        unreachable or refuses."""
        service = await localllm_service(self._connection)
        arguments = {"reference": reference} | ({"quantize": quantize} if quantize else {})
        job = await service.start_job("pull", arguments)
        self._started.add(job.id)
        return job

    def note_end(self, job: Job) -> bool:
        """Record the end of a job; return whether it was started here."""
        if job.id not in self._started:
            return False
        self.newest = model_of(job) or self.newest
        return True


def model_of(job: Job) -> str:
    """Return the path of the model that a pull or a quantization produced, "" for none."""
    result = job.result or {}
    return str(result.get("output") or result.get("path") or "") if job.state == "done" else ""


class QuitFlow:
    """Ends `app` cleanly: running jobs continue or stop, as the settings or the user choose."""

    def __init__(
        self, app: App[None], jobs: JobMonitor, connection: ServiceConnection, settings_controller: SettingsController
    ) -> None:
        self._app = app
        self._jobs = jobs
        self._connection = connection
        self._settings_controller = settings_controller
        self._is_asking = False
        self._is_quitting = False  # started after the terminal closed

    def quit(self) -> None:
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
        client = await localllm_service(self._connection)
        if choice == _GO_ON:
            await client.stay_until_jobs_end()
            return
        for job in [job for job in self._jobs.jobs.values() if not job.has_ended]:
            await client.cancel_job(job.id)


def ending(job: Job) -> str:
    how = {"done": "is finished", "failed": "failed", "cancelled": "is cancelled"}.get(job.state, f"is {job.state}")
    cause = f": {printable_line(job.error.cause)}" if job.error else "."
    return f"{printable_line(job.title)} {how}{cause}"


def is_long(job: Job) -> bool:
    """Return whether the job ran so long that the user turned to something else."""
    return job.started_s is not None and job.ended_s is not None and job.ended_s - job.started_s >= _LONG_S
