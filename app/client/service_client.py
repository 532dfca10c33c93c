"""The planner behind the service, on the machine that the service runs on.

The typed client of the service: what every face uses to load models, to chat and to have long work done.

Owns the calls a face makes. Knows nothing of how the service is started (see `app.client.launcher`) nor of engines.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any

import httpx

from app.client.connection import Connection
from app.client.library import LibraryClient
from app.protocol.chat import Completed, GenerationOptions, Message, TextDelta, completed_of
from app.protocol.codec import decode
from app.protocol.job import Job, JobKind
from app.protocol.plan import PlanReport, PlanRequest
from app.protocol.status import ServiceStatus

__all__ = ["PlannerClient", "ServiceClient"]


class PlannerClient:
    """What a service says that models come to. Every method raises as `ServiceClient` says."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def plan(self, wish: PlanRequest) -> PlanReport:
        """Return what `wish` comes to. Raises the errors of a model that cannot be had, UsageError for nonsense."""
        return decode(PlanReport, await self._connection.call("POST", "/api/localllm/plan", wish))

    async def reload(self, wish: PlanRequest) -> str:
        """Begin to load the model of `wish` so, in place of how it is loaded, and return its id without waiting.

        Answers under way fail. Raises as `plan`, and UsageError for a wish that is for another machine.
        """
        return str((await self._connection.call("POST", "/api/localllm/reload", wish))["id"])


_JOBS = "/api/localllm/jobs"


class ServiceClient:
    """An open connection to the service at `base_url`. Use it as an async context manager.

    Every method raises ServiceError when the service cannot be reached, and the error that the service reports.
    `library` has the calls about models on the disk and on the hub.
    `is_staying` is True once `stay_until_jobs_end` was called: the service then outlives whoever started it.
    """

    def __init__(self, base_url: str, api_key: str = "", transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._connection = Connection(base_url, api_key, transport)
        self.library = LibraryClient(self._connection)
        self.planner = PlannerClient(self._connection)
        self.base_url = base_url
        self.is_staying = False

    async def __aenter__(self) -> ServiceClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._connection.close()

    async def status(self) -> ServiceStatus:
        """Return the service's version and the state of its models."""
        return decode(ServiceStatus, await self._connection.call("GET", "/api/localllm/status"))

    async def load(self, model: str, when_unfit: str = "") -> str:
        """Start loading `model` (guide, a name or a path to a GGUF) and return its id without waiting for it.

        `when_unfit` says what comes of one that fits only in part: "warn", "ask", "load"; "" leaves it to the service.
        """
        data = await self._connection.call(
            "POST", "/api/localllm/load", {"model": model, "when_unfit": when_unfit or None}
        )
        return str(data["id"])

    async def count_tokens(self, text: str, model: str = "") -> int:
        """Return how many tokens `text` has in the vocabulary of `model`."""
        data = await self._connection.call("POST", "/tokenize", {"content": text, "model": model})
        return len(data["tokens"])

    async def chat(
        self, messages: Sequence[Message], model: str = "", options: GenerationOptions | None = None
    ) -> AsyncGenerator[TextDelta | Completed, None]:
        """Yield the answer as it is made and, last, one Completed. Closing the iterator stops the answer.

        Waits while the model is loading. Raises ContextOverflowError when the conversation does not fit.
        """
        given = {name: value for name, value in asdict(options or GenerationOptions()).items() if value is not None}
        body = {
            "model": model,
            "messages": [asdict(message) for message in messages],
            "stream": True,
            "stream_options": {"include_usage": True},
            "timings_per_token": True,
            "reasoning_format": "deepseek",  # thoughts apart from the answer
            **given,
        }
        reason = "stop"
        usage: dict[str, Any] = {}
        timings: dict[str, Any] = {}
        async for event in self._connection.events("POST", "/v1/chat/completions", body):
            for choice in event["choices"]:
                delta = choice["delta"]
                text, reasoning = delta.get("content") or "", delta.get("reasoning_content") or ""
                if text or reasoning:
                    yield TextDelta(text, event["timings"]["predicted_n"], reasoning)
                reason = choice["finish_reason"] or reason
            usage = event.get("usage") or usage
            timings = event.get("timings") or timings
        yield completed_of(reason, usage, timings)

    async def jobs(self) -> tuple[Job, ...]:
        """Return the jobs that run, wait or ended, oldest first."""
        data = await self._connection.call("GET", _JOBS)
        return tuple(decode(Job, item) for item in data["jobs"])

    async def job(self, job_id: str) -> Job:
        """Return one job as it stands. Raises RequestError for one that is not there."""
        return decode(Job, await self._connection.call("GET", f"{_JOBS}/{job_id}"))

    async def start_job(self, kind: JobKind, arguments: Mapping[str, Any]) -> Job:
        """Put a job into the queue. Raises RequestError for arguments that this kind does not take."""
        return decode(Job, await self._connection.call("POST", _JOBS, {"kind": kind, "arguments": dict(arguments)}))

    async def watch_jobs(self) -> AsyncGenerator[Job, None]:
        """Yield every job as it stands, oldest first, then each as it changes, without end; one that is removed comes
        once more as "forgotten"."""
        async for data in self._connection.events("GET", f"{_JOBS}/events"):
            yield decode(Job, data)

    async def watch_job(self, job_id: str) -> AsyncGenerator[Job, None]:
        """Yield one job as it stands and as it changes, until it has ended."""
        async for data in self._connection.events("GET", f"{_JOBS}/{job_id}/events"):
            yield decode(Job, data)

    async def job_log(self, job_id: str) -> str:
        """Return what the job has said, its last part where that is long; not yet fit for a terminal."""
        return str((await self._connection.call("GET", f"{_JOBS}/{job_id}/log"))["log"])

    async def cancel_job(self, job_id: str) -> Job:
        """Take a job from the queue, or end it as Ctrl-C would without waiting for its end: a download keeps what
        came, a conversion leaves nothing."""
        return decode(Job, await self._connection.call("POST", f"{_JOBS}/{job_id}/cancel"))

    async def retry_job(self, job_id: str) -> Job:
        """Put a job that ended into the queue again, under the same id. Raises RequestError for one that has not."""
        return decode(Job, await self._connection.call("POST", f"{_JOBS}/{job_id}/retry"))

    async def forget_job(self, job_id: str) -> None:
        """Remove a job that ended, with its log. Raises RequestError for one that has not."""
        await self._connection.call("DELETE", f"{_JOBS}/{job_id}")

    async def stay_until_jobs_end(self) -> None:
        """Let the service outlive whoever started it until its last job has ended and nobody watches any more."""
        await self._connection.call("POST", "/api/localllm/stay", {"until": "jobs-end"})
        self.is_staying = True
