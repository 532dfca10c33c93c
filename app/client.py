"""The typed client of the service: what every face uses to load models and to chat.

Owns the requests a face makes and the values it gets back. Knows nothing of how the service is started (see
`app.launcher`) nor of engines.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import asdict, dataclass, fields
from types import TracebackType
from typing import Any, Literal

import httpx

from quantizer.errors import ServiceError, UserError, rebuild

__all__ = [
    "Completed",
    "EngineCounters",
    "GenerationOptions",
    "Message",
    "ModelStatus",
    "Occupancy",
    "ServiceClient",
    "ServiceStatus",
    "Spread",
    "TextDelta",
    "error_of",
]

_START_AGAIN = "Start it with `localllm serve`, or start localllm again."


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """How to answer. None leaves the choice to the service and the model."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text of the running answer, as the model wrote it: not yet fit for a terminal.

    `n_tokens` is how many tokens the answer has by now; a verified draft brings many at once.
    """

    text: str
    n_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """The end of an answer and what it cost. Rates are tokens a second.

    `tokens_per_pass` is above 1 where draft tokens were taken; `saved_s` is what the service estimates that they saved.
    """

    finish_reason: str
    n_prompt_tokens: int
    n_cached_tokens: int
    n_output_tokens: int
    time_to_first_token_s: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    n_drafted_tokens: int = 0
    n_accepted_tokens: int = 0
    tokens_per_pass: float = 1.0
    saved_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Spread:
    """How long somebody waited, in seconds: how often, the median and the 95th percentile; None before the first."""

    n_samples: int
    p50: float | None
    p95: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCounters:
    """What a model's engine has done since it started. Rates are tokens a second as each answer got them."""

    n_finished: int
    n_prompt_tokens: int
    n_output_tokens: int
    cached_share: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    n_drafted_tokens: int
    n_accepted_tokens: int
    first_token_s: Spread
    inter_token_s: Spread


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What an engine holds at this moment: answers that run and that wait, and cells of its KV cache in use."""

    n_running: int
    n_waiting: int
    n_cells_used: int
    n_cells: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """One model of the service. `progress` runs from 0 to 1 while it is loading; `error` is set when it failed.

    `occupancy` and `counters` are None while its engine cannot tell.
    """

    id: str
    state: Literal["loading", "ready", "failed", "unloaded"]
    progress: float
    n_ctx: int
    notices: tuple[str, ...]
    error: UserError | None
    occupancy: Occupancy | None = None
    counters: EngineCounters | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """What the service is and which models it holds. `default_model` answers requests that name none."""

    version: str
    default_model: str
    models: tuple[ModelStatus, ...]

    def model(self, model_id: str) -> ModelStatus | None:
        return next((model for model in self.models if model.id == model_id), None)


class ServiceClient:
    """An open connection to the service at `base_url`. Use it as an async context manager.

    Every method raises ServiceError when the service cannot be reached, and the error that the service reports.
    """

    def __init__(self, base_url: str, api_key: str = "", transport: httpx.AsyncBaseTransport | None = None) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # The service is on this machine: no proxy, and an answer may take as long as it takes.
        self._http = httpx.AsyncClient(
            base_url=base_url,
            headers=headers,
            transport=transport or httpx.AsyncHTTPTransport(),
            timeout=httpx.Timeout(None, connect=5.0),
            trust_env=False,
        )
        self.base_url = base_url

    async def __aenter__(self) -> ServiceClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def status(self) -> ServiceStatus:
        """Return the service's version and the state of its models."""
        data = await self._call("GET", "/api/localllm/status")
        return ServiceStatus(
            version=data["version"],
            default_model=data["default_model"],
            models=tuple(_model_status(item) for item in data["models"]),
        )

    async def load(self, model: str, when_unfit: str = "") -> str:
        """Start loading `model` (guide, a name or a path to a GGUF) and return its id without waiting for it.

        `when_unfit` says what comes of one that fits only in part: "warn", "ask", "load"; "" leaves it to the service.
        """
        data = await self._call("POST", "/api/localllm/load", {"model": model, "when_unfit": when_unfit or None})
        return str(data["id"])

    async def count_tokens(self, text: str, model: str = "") -> int:
        """Return how many tokens `text` has in the vocabulary of `model`."""
        data = await self._call("POST", "/tokenize", {"content": text, "model": model})
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
            "reasoning_format": "none",  # faces show thoughts as part of the answer
            **given,
        }
        reason = "stop"
        usage: dict[str, Any] = {}
        timings: dict[str, Any] = {}
        async for event in self._events("/v1/chat/completions", body):
            for choice in event["choices"]:
                if text := choice["delta"].get("content"):
                    yield TextDelta(text, event["timings"]["predicted_n"])
                reason = choice["finish_reason"] or reason
            usage = event.get("usage") or usage
            timings = event.get("timings") or timings
        yield _completed(reason, usage, timings)

    async def _call(self, method: str, path: str, body: object = None) -> Any:
        try:
            response = await self._http.request(method, path, json=body)
        except httpx.TransportError as error:
            raise _unreachable(self.base_url) from error
        if response.is_error:
            raise _reported(response.content)
        return response.json()

    async def _events(self, path: str, body: object) -> AsyncIterator[dict[str, Any]]:
        try:
            async with self._http.stream("POST", path, json=body) as response:
                if response.is_error:
                    raise _reported(await response.aread())
                async for line in response.aiter_lines():
                    if line == "data: [DONE]":
                        return
                    if line.startswith("data: "):
                        event = json.loads(line[6:])
                        if "error" in event:
                            raise error_of(event["error"])
                        yield event
        except httpx.TransportError as error:
            raise _unreachable(self.base_url) from error
        raise ServiceError("The service ended the answer before it was complete.", _START_AGAIN)


def _completed(reason: str, usage: dict[str, Any], timings: dict[str, Any]) -> Completed:
    details = usage.get("prompt_tokens_details") or {}
    return Completed(
        finish_reason=reason,
        n_prompt_tokens=usage.get("prompt_tokens", 0),
        n_cached_tokens=details.get("cached_tokens", 0),
        n_output_tokens=usage.get("completion_tokens", 0),
        time_to_first_token_s=timings.get("time_to_first_token_ms", 0.0) / 1000,
        prefill_tokens_per_s=timings.get("prompt_per_second", 0.0),
        decode_tokens_per_s=timings.get("predicted_per_second", 0.0),
        n_drafted_tokens=timings.get("draft_n", 0),
        n_accepted_tokens=timings.get("draft_n_accepted", 0),
        tokens_per_pass=timings.get("tokens_per_pass", 1.0),
        saved_s=timings.get("draft_saved_ms", 0.0) / 1000,
    )


def _model_status(item: dict[str, Any]) -> ModelStatus:
    return ModelStatus(
        id=item["id"],
        state=item["state"],
        progress=item["progress"],
        n_ctx=item["n_ctx"],
        notices=tuple(item["notices"]),
        error=error_of(item["error"]) if item["error"] else None,
        occupancy=Occupancy(**item["occupancy"]) if item["occupancy"] else None,
        counters=_counters(item["counters"]) if item["counters"] else None,
    )


def _counters(data: dict[str, Any]) -> EngineCounters:
    waits = {name: _spread(data[name]) for name in ("first_token_s", "inter_token_s")}
    return EngineCounters(**{field.name: data[field.name] for field in fields(EngineCounters)} | waits)


def _spread(data: dict[str, Any]) -> Spread:
    return Spread(data["count"], data["p50"], data["p95"])


def error_of(data: dict[str, Any]) -> UserError:
    """Return the error that the service described: OpenAI's fields plus `kind`, `cause`, `remedy`, `details`."""
    cause = data.get("cause") or data.get("message") or "The service failed."
    return rebuild(data.get("kind", "ServiceError"), cause, data.get("remedy", ""), data.get("details", {}))


def _reported(body: bytes) -> UserError:
    try:
        return error_of(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return ServiceError("What answers on the service's port is not localllm.", "Give another --port.")


def _unreachable(base_url: str) -> ServiceError:
    return ServiceError(f"No localllm service answers at {base_url}.", _START_AGAIN)
