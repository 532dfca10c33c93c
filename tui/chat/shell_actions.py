"""The person's own commands in the chat: one runs at a time, its output is offered to the next question."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from quantizer.system.errors import UserError
from tui.chat.actions import ChatView
from tui.chat.composer.shell_command import run_shell_command

if TYPE_CHECKING:
    from tui.chat.transcript.shell_view import ShellView


class ShellActions:
    """Runs commands in `folder`, with `variables` of the environment besides the usual ones. Nothing is stored, and
    nothing sent but the attachment, with the next question."""

    def __init__(self, view: ChatView, folder: Path, variables: Sequence[str]) -> None:
        self._view = view
        self._folder = folder
        self._variables = tuple(variables)
        self._running: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self._running is not None

    def run(self, command: str) -> bool:
        """Start a command, unless another one runs; return whether it was started."""
        if self._running is not None:
            self._view.screen.inform("A command is running: Esc stops it.")
            return False
        from tui.chat.transcript.shell_view import ShellView  # not at the start

        self._running = asyncio.create_task(self._run(command, ShellView(command)))
        self._running.add_done_callback(self._ended)
        return True

    async def stop(self) -> bool:
        """Stop the command that runs, with all that it started; return whether there was one."""
        running = self._running
        if running is None:
            return False
        running.cancel()
        await asyncio.wait({running})
        return True

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._view.run(partial(fail, error), "shell")

    async def _run(self, command: str, shown: ShellView) -> None:
        await self._view.transcript.add_beside(shown)
        try:
            done = await run_shell_command(command, self._folder, shown.add, variables=self._variables)
        except UserError as error:
            shown.end(str(error), has_failed=True)
        except asyncio.CancelledError:
            shown.end("stopped", has_failed=True)
            raise
        else:
            shown.end(done.how, has_failed=done.status != 0, output=done.output)
            if done.attachment is not None and shown.is_attached:
                self._view.composer.add([done.attachment])


async def fail(error: BaseException) -> None:
    """Raise the error of a task, run as a worker: as an error of the screen."""
    raise error
