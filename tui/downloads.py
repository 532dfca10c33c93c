"""The models that this app was told to fetch: begun as jobs of the service, followed on whatever screen a person is.

Owns which of them came last. Knows nothing of screens: `on_end` is called with each job that has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING

from quantizer.errors import UserError
from tui.connection import Connection
from tui.model_backend import model_backend

if TYPE_CHECKING:
    from app.client import Job

__all__ = ["Downloads", "model_of"]


class Downloads:
    """Fetches go on when the app is left if the service stays; then they are jobs like any other."""

    def __init__(self, connection: Connection, on_end: Callable[[Job], None]) -> None:
        self.newest = ""  # the path of the model that came last
        self.started: set[str] = set()  # ids of their jobs
        self._connection = connection
        self._on_end = on_end
        self._following: set[asyncio.Task[None]] = set()

    async def start(self, reference: str, quantize: str = "") -> Job:
        """Fetch what `reference` means, a checkpoint to be made a GGUF of the type `quantize`.

        Raises UserError where the service cannot be reached or refuses.
        """
        backend = await model_backend(self._connection)
        arguments = {"reference": reference} | ({"quantize": quantize} if quantize else {})
        job = await backend.start_job("pull", arguments)
        self.started.add(job.id)
        task = asyncio.create_task(self._follow(job.id))
        self._following.add(task)
        task.add_done_callback(self._following.discard)
        return job

    async def close(self) -> None:
        """Follow no more."""
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)

    async def _follow(self, job_id: str) -> None:
        try:
            backend = await model_backend(self._connection)
            async with aclosing(backend.watch_job(job_id)) as changes:
                async for job in changes:
                    if job.has_ended:
                        self.newest = model_of(job) or self.newest
                        self._on_end(job)
                        return
        except UserError:
            return  # the service is gone: whoever asks it next is told so


def model_of(job: Job) -> str:
    """Return the path of the model that a pull or a quantization has made, "" for one that made none."""
    result = job.result or {}
    return str(result.get("output") or result.get("path") or "") if job.state == "done" else ""
