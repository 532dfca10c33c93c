"""The models that this app was told to fetch: begun as jobs of the service.

Owns which of them came last. That one has ended it hears from whoever watches the jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tui.connection import ServiceConnection
from tui.own_service import own_service

if TYPE_CHECKING:
    from app.client import Job

__all__ = ["Downloads", "model_of"]


class Downloads:
    """Fetches go on when the app is left if the service stays; then they are jobs like any other."""

    def __init__(self, connection: ServiceConnection) -> None:
        self.newest = ""  # the path of the model that came last
        self._connection = connection
        self._started: set[str] = set()  # ids of their jobs

    async def start(self, reference: str, quantize: str = "") -> Job:
        """Fetch what `reference` means, a checkpoint to be made a GGUF of the type `quantize`.

        Raises UserError where the service cannot be reached or refuses.
        """
        service = await own_service(self._connection)
        arguments = {"reference": reference} | ({"quantize": quantize} if quantize else {})
        job = await service.start_job("pull", arguments)
        self._started.add(job.id)
        return job

    def note_end(self, job: Job) -> bool:
        """Take note of a job that has ended; return whether it was begun here."""
        if job.id not in self._started:
            return False
        self.newest = model_of(job) or self.newest
        return True


def model_of(job: Job) -> str:
    """Return the path of the model that a pull or a quantization has made, "" for one that made none."""
    result = job.result or {}
    return str(result.get("output") or result.get("path") or "") if job.state == "done" else ""
