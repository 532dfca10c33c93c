"""What becomes of jobs when the person leaves: the choices, and how each is carried out."""

from __future__ import annotations

from collections.abc import Mapping

from tui.connection import Connection
from tui.job_board import JobBoard
from tui.own_service import own_service

__all__ = ["ASK", "GO_ON", "LEAVING", "leave_jobs"]

ASK, GO_ON, _STOP = "ask", "go-on", "stop"  # as the setting jobs_at_exit has them
LEAVING: Mapping[str, str] = {
    GO_ON: "Leave; the jobs go on until they are done",
    _STOP: "Stop the jobs and leave; what was downloaded is kept",
}


async def leave_jobs(board: JobBoard, connection: Connection, choice: str) -> None:
    """Let the service outlive the app until its jobs have ended, or cancel them all. Raises what the service does."""
    client = await own_service(connection)
    if choice == GO_ON:
        await client.stay_until_jobs_end()
        return
    for job in [job for job in board.jobs.values() if not job.has_ended]:
        await client.cancel_job(job.id)
