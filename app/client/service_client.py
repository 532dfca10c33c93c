"""The typed client of the service: loading, chat, plans, jobs and, through `library`, models.

Owns these calls. Independent of how the service is started (`app.client.launcher` does that) and engines.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import httpx

from app.client.connection import Connection, chat_body
from app.client.library import LibraryClient
from app.protocol.chat import Completed, GenerationOptions, Message, TextDelta, completed_of
from app.protocol.codec import decode
from app.protocol.job import Job, JobKind
from app.protocol.plan import PlanReport, PlanRequest
from app.protocol.status import ServiceStatus

__all__ = ["PlannerClient", "ServiceClient"]


class PlannerClient:
    """The planner of a service, for its machine. Every method raises as those of `ServiceClient`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def plan(self, request: PlanRequest) -> PlanReport:
        """Return the plan for `request`. Raises the errors of an unavailable model, UsageError for invalid settings."""
        return decode(PlanReport, await self._connection.call("POST", "/api/localllm/plan", request))

    async def reload(self, request: PlanRequest) -> str:
        """Start to reload the model with the settings of `request`, and return its id without waiting.

        Running answers fail. Raises as `plan`, and UsageError for a request for another machine.
        """
        return str((await self._connection.call("POST", "/api/localllm/reload", request))["id"])


_JOBS = "/api/localllm/jobs"


class ServiceClient(Connection):
    """An open connection to the service at `base_url`. Use it as an async context manager.

    Every method raises ServiceError when the service cannot be reached, and the error that the service reports.
    `library` has the calls about models on the disk and on the hub.
    `is_staying` is True once `stay_until_jobs_end` was called: the service then outlives the process that started it.
    """

    def __init__(self, base_url: str, api_key: str = "", transport: httpx.AsyncBaseTransport | None = None) -> None:
        super().__init__(base_url, api_key, transport)
        self.library = LibraryClient(self)
        self.planner = PlannerClient(self)
        self.is_staying = False

    async def status(self) -> ServiceStatus:
        """Return the service's version and the state of its models."""
        return decode(ServiceStatus, await self.call("GET", "/api/localllm/status"))

    async def load(self, model: str, when_unfit: str = "") -> str:
        """Start loading `model` (guide, a name or a path to a GGUF) and return its id without waiting for it.

        `when_unfit` is the policy for a model that fits only partly: "warn", "ask", "load", or "" for the service's.
        """
        data = await self.call("POST", "/api/localllm/load", {"model": model, "when_unfit": when_unfit or None})
        return str(data["id"])

    async def count_tokens(self, text: str, model: str = "") -> int:
        """Return how many tokens `text` has in the vocabulary of `model`."""
        data = await self.call("POST", "/tokenize", {"content": text, "model": model})
        return len(data["tokens"])

    async def chat(
        self, messages: Sequence[Message], model: str = "", options: GenerationOptions | None = None
    ) -> AsyncGenerator[TextDelta | Completed, None]:
        """Yield the answer as it is made and, last, one Completed. Closing the iterator stops the answer.

        Waits while the model is loading. Raises ContextOverflowError when the conversation does not fit.
        """
        body = {
            "timings_per_token": True,
            "reasoning_format": "deepseek",  # thoughts apart from the answer
            **chat_body(messages, model, options),
        }
        reason = "stop"
        usage: dict[str, Any] = {}
        timings: dict[str, Any] = {}
        async for event in self.events("POST", "/v1/chat/completions", body):
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
        data = await self.call("GET", _JOBS)
        return tuple(decode(Job, item) for item in data["jobs"])

    async def job(self, job_id: str) -> Job:
        """Return one job. Raises RequestError for an unknown id."""
        return decode(Job, await self.call("GET", f"{_JOBS}/{job_id}"))

    async def start_job(self, kind: JobKind, arguments: Mapping[str, Any]) -> Job:
        """Queue a job. Raises RequestError for invalid arguments."""
        return decode(Job, await self.call("POST", _JOBS, {"kind": kind, "arguments": dict(arguments)}))

    async def watch_jobs(self) -> AsyncGenerator[Job, None]:
        """Yield every job, oldest first, then each as it changes, without end; a deleted one as "forgotten"."""
        async for data in self.events("GET", f"{_JOBS}/events"):
            yield decode(Job, data)

    async def watch_job(self, job_id: str) -> AsyncGenerator[Job, None]:
        """Yield one job, now and as it changes, until it has ended."""
        async for data in self.events("GET", f"{_JOBS}/{job_id}/events"):
            yield decode(Job, data)

    async def job_log(self, job_id: str) -> str:
        """Return the last part of a job's log, not yet safe for a terminal."""
        return str((await self.call("GET", f"{_JOBS}/{job_id}/log"))["log"])

    async def cancel_job(self, job_id: str) -> Job:
        """Cancel a waiting job, or interrupt a running one without waiting for its end: a partial download is kept, a
        partial conversion is deleted."""
        return decode(Job, await self.call("POST", f"{_JOBS}/{job_id}/cancel"))

    async def retry_job(self, job_id: str) -> Job:
        """Queue an ended job again, under the same id. Raises RequestError for one that has not ended."""
        return decode(Job, await self.call("POST", f"{_JOBS}/{job_id}/retry"))

    async def forget_job(self, job_id: str) -> None:
        """Delete an ended job, with its log. Raises RequestError for one that has not ended."""
        await self.call("DELETE", f"{_JOBS}/{job_id}")

    async def stay_until_jobs_end(self) -> None:
        """Keep the service running until its last job has ended and no client watches."""
        await self.call("POST", "/api/localllm/stay", {"until": "jobs-end"})
        self.is_staying = True
