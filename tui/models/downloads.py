"""The downloads started by this app, as jobs of the service.

Owns which model is the latest. The job monitor reports their ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tui.connection import ServiceConnection, localllm_service

if TYPE_CHECKING:
    from app.protocol.job import Job

__all__ = ["Downloads", "model_of"]


class Downloads:
    """Downloads continue after the app quits if the service stays."""

    def __init__(self, connection: ServiceConnection) -> None:
        self.newest = ""  # the path of the latest model
        self._connection = connection
        self._started: set[str] = set()  # ids of their jobs

    async def start(self, reference: str, quantize: str = "") -> Job:
        """Download `reference`; quantize a checkpoint to the type `quantize`.

        Raises UserError if the service is unreachable or refuses.
        """
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
