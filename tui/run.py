"""The app's process: opening and closing its parts, signals, and crash reports. A crash report has the types of errors
and their positions in the code, never messages or variables: those may contain chats or control sequences."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app import __version__
from app.chat.repository import SqliteChatRepository
from app.common.event_log import log_event, logging_to_file
from app.common.terminal import printable
from app.connection import ServiceConnection, local_service
from app.settings.private_files import keep_private, mark_in_use
from app.settings.settings import Settings
from quantizer.system.errors import UserError
from quantizer.system.files import open_private, private_folder
from tui.app import LocalllmApp
from tui.models.first_run import is_first_run
from tui.settings.controller import SettingsController

if TYPE_CHECKING:
    from app.cli.prompts import ChatOptions

_ROOT = Path(__file__).parents[1]
_PACKAGES = {"app", "offload", "quantizer", "tui"}
_N_KEPT = 10


def report_crash(error: BaseException, folder: Path, *, is_saved: bool) -> int:
    """Report on standard error what ended the app and how to restart; return the exit status. Writes the report to
    `folder`, or to standard error if that fails. `is_saved`: all messages are saved."""
    _write_lines(
        f"localllm has crashed: {_summarize(error)}.",
        "All messages are saved." if is_saved else "Messages of the last seconds may be lost.",
        _save_report([error], folder),
        "Restart it with: localllm",
    )
    return 1


def _write_lines(*lines: str) -> None:
    sys.stderr.write(printable("".join(f"{line}\n" for line in lines)))


def _save_report(errors: Sequence[BaseException], folder: Path) -> str:
    report = report_of(errors)
    try:
        return f"Full report (without chat texts): {write_report(report, folder, datetime.now())}"
    except OSError as error:
        return f"Cannot write the report to {folder} ({error.strerror}). It follows:\n\n{report}"


def report_of(errors: Sequence[BaseException]) -> str:
    """Return the types and positions of the errors and their causes, oldest first, without messages and variables."""
    python = f"Python {platform.python_version()}, {platform.platform()}"
    made_with = f"localllm {__version__}, Textual {version('textual')}, {python}\n"
    parts = (
        f"\n{_summarize(each)}\n{''.join(traceback.format_list(_frames(each)))}"
        for error in errors
        for each in _chain(error)
    )
    return printable(made_with + "".join(parts))


def write_report(report: str, folder: Path, now: datetime) -> Path:
    """Write the report to a new file in `folder` readable by its owner only, and delete the oldest beyond ten; return
    its path. Raises OSError."""
    private_folder(folder)
    path = folder / f"crash-{now:%Y-%m-%d-%H%M%S}-{os.getpid()}.txt"
    with open_private(path, is_new=True) as file:
        file.write(report.encode())
    for old in sorted(folder.glob("crash-*.txt"))[:-_N_KEPT]:
        old.unlink(missing_ok=True)
    return path


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error's causes, the members of an error group, then the error."""
    if error is not None:
        yield from _chain(error.__cause__ or (None if error.__suppress_context__ else error.__context__))
        for part in getattr(error, "exceptions", ()):
            yield from _chain(part)
        yield error


def _summarize(error: BaseException) -> str:
    """Return the error's type and its position in our code, or else in other code."""
    name = type(error).__qualname__
    if isinstance(error, OSError) and error.errno is not None:
        name += f" ({os.strerror(error.errno)})"
    frames = _frames(error)
    if not frames:
        return name
    ours = [frame for frame in frames if _is_ours(frame)]
    frame = (ours or frames)[-1]
    path = Path(frame.filename)
    position = path.relative_to(_ROOT).as_posix() if _is_ours(frame) else path.name
    return f"{name} in {position}, line {frame.lineno} ({frame.name})"


def _frames(error: BaseException) -> traceback.StackSummary:
    return traceback.StackSummary.extract(traceback.walk_tb(error.__traceback__), capture_locals=False)


def _is_ours(frame: traceback.FrameSummary) -> bool:
    path = Path(frame.filename)
    return path.is_relative_to(_ROOT) and path.relative_to(_ROOT).parts[0] in _PACKAGES


def run(settings: Settings, flags: Mapping[str, object], opening: ChatOptions | None = None) -> int:
    """Run the app until the user quits; return the exit status, also after a reported crash. `flags` is the part of
    `settings` from the command line, `opening` how the first chat begins. Raises the UserError that ended the app."""
    app_run = _AppRun(settings, SettingsController(settings, flags), opening, str(flags.get("when_unfit") or ""))
    try:
        asyncio.run(app_run.run())
    except Exception as error:  # Python would print its message, which may contain chats
        app_run.failure = app_run.failure or error
    if errors := app_run.background_errors:
        report = _save_report(errors, settings.cache_dir)
        _write_lines(f"A background task of localllm failed: {_summarize(errors[0])}.", report)
    if isinstance(app_run.failure, UserError):
        raise app_run.failure
    if app_run.failure is not None:
        return report_crash(app_run.failure, settings.cache_dir, is_saved=app_run.is_saved)
    return app_run.status


class _AppRun:
    """The app from start to end. `failure` is the error that ended it, `background_errors` those of background tasks;
    `is_saved` is true once all messages are saved."""

    def __init__(
        self,
        settings: Settings,
        settings_controller: SettingsController,
        opening: ChatOptions | None,
        when_unfit: str,
    ) -> None:
        self._settings = settings
        self._opening = opening
        self._when_unfit = when_unfit
        self._settings_controller = settings_controller
        self.status = 0
        self.failure: Exception | None = None
        self.background_errors: list[Exception] = []
        self.is_saved = False

    async def run(self) -> None:
        asyncio.get_running_loop().set_exception_handler(self._on_task_error)
        with logging_to_file(self._settings.cache_dir), mark_in_use(self._settings):
            for sentence in await asyncio.to_thread(keep_private, self._settings):
                log_event("app", sentence)
            async with SqliteChatRepository(self._settings.data_dir, self._settings.cache_dir) as repository:
                try:
                    await self._show(repository)
                except Exception as error:  # reported once everything is saved
                    self.failure = self.failure or error
        self.is_saved = True

    async def _show(self, repository: SqliteChatRepository) -> None:
        settings = self._settings
        async with ServiceConnection(local_service(settings), settings.model, self._when_unfit) as connection:
            app = LocalllmApp(
                connection,
                repository,
                settings=settings,
                is_welcoming=is_first_run(settings),
                settings_controller=self._settings_controller,
                opening=self._opening,
            )
            _quit_on_signals(app)
            try:
                await app.run_async()
            finally:
                self.failure, self.status = app.failure, app.return_code or 0

    def _on_task_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Store the error of a background task: asyncio would print its message."""
        if isinstance(error := context.get("exception"), Exception):
            self.background_errors.append(error)
        else:
            loop.default_exception_handler(context)


def _quit_on_signals(app: LocalllmApp) -> None:
    """Quit cleanly when the terminal closes, so that a service started here stops."""
    if sys.platform == "win32":
        return  # its event loop has no signal handlers; a closed console ends child processes too
    from textual.drivers.linux_driver import LinuxDriver

    from tui.terminal_driver import DisconnectAwareDriver

    for number in (signal.SIGHUP, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, app.quit_without_asking)
    if app.driver_class is LinuxDriver:  # unless the environment names a driver
        app.driver_class = DisconnectAwareDriver
