"""The command table of the jobs screen.

Owns ids, keys and texts. The implementations are methods of the screen, typed as `JobsActions`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

from tui.commands import Command, CommandTable

__all__ = ["JOBS_COMMANDS", "JobsActions"]


class JobsActions(Protocol):
    """The methods of the screen that its commands call."""

    def cancel_job(self) -> Awaitable[None]: ...

    def retry_job(self) -> Awaitable[None]: ...

    def forget_job(self) -> Awaitable[None]: ...


JOBS_COMMANDS: CommandTable[Any] = CommandTable(
    (
        Command[JobsActions](
            id="jobs-cancel",
            title="Cancel",
            tooltip="Cancel the job; a download keeps its partial data",
            keys="c",
            has_priority=False,
            is_shown=True,
            run=lambda jobs, _: jobs.cancel_job(),
        ),
        Command[JobsActions](
            id="jobs-retry",
            title="Retry",
            tooltip="Run it again, or resume where it stopped",
            keys="r",
            has_priority=False,
            is_shown=True,
            run=lambda jobs, _: jobs.retry_job(),
        ),
        Command[JobsActions](
            id="jobs-forget",
            title="Forget",
            tooltip="Remove a finished job and its log",
            keys="delete,x",
            has_priority=False,
            is_shown=True,
            run=lambda jobs, _: jobs.forget_job(),
        ),
    )
)
