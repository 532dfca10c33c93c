"""HTTP connections: requests, server-sent events and errors, of the service and of engines of others."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import httpx

from app.protocol.codec import encode
from app.protocol.errors import ServiceError
from quantizer.system.errors import ErrorInfo, UserError

MAX_QUOTED = 300  # characters of a server's text, in an error
_START_AGAIN = "Start it with `localllm serve`, or start localllm again."


class HttpConnection(ABC):
    """An open connection to the server at `base_url`, as an async context manager; `options` are httpx's.

    Every method raises ServiceError where the server cannot be reached, this connection was closed, or the answer is
    invalid, and the error of a refusal. A subclass words them.
    """

    _requires_done: ClassVar = False  # not every server sends [DONE] after its events

    def __init__(self, base_url: str, api_key: str, transport: httpx.AsyncBaseTransport | None, **options: Any) -> None:
        self.base_url = base_url
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http = httpx.AsyncClient(base_url=base_url, headers=headers, transport=transport, **options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._http.aclose()

    async def call(self, method: str, path: str, body: object = None) -> Any:
        """Return the JSON of the response."""
        with self._reachable():
            response = await self._http.request(method, path, json=encode(body))
        if not response.is_success:
            raise self._refusal(path, response.status_code, response.content)
        with self._parsing():
            return response.json()

    async def events(self, method: str, path: str, body: object = None) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the data of server-sent events until they end. Raises ServiceError without a required `[DONE]`."""
        is_done = False
        with self._reachable():
            async with self._http.stream(method, path, json=encode(body)) as response:
                if not response.is_success:
                    raise self._refusal(path, response.status_code, await response.aread())
                async for line in response.aiter_lines():
                    if not line.startswith("data:"):
                        continue
                    if line[5:].strip() == "[DONE]":
                        is_done = True
                        continue
                    with self._parsing():
                        event = self._event(line[5:])
                    yield event
        if self._requires_done and not is_done:
            raise ServiceError("The service ended the answer before it was complete.", _START_AGAIN)

    def _event(self, data: str) -> Any:
        """Return the value of an event's JSON. Raises the error that it reports."""
        return json.loads(data)

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        try:
            yield
        except (httpx.TransportError, httpx.InvalidURL, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not self._http.is_closed:  # closed by its owner
                raise
            raise self._unreachable(error) from error

    @contextmanager
    def _parsing(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise self._invalid(str(error)[:MAX_QUOTED]) from error

    @abstractmethod
    def _unreachable(self, error: Exception) -> ServiceError:
        """Return the error for a server that does not answer."""

    @abstractmethod
    def _invalid(self, reason: str) -> ServiceError:
        """Return the error for an answer that is not of the expected form."""

    @abstractmethod
    def _refusal(self, path: str, status: int, body: bytes) -> UserError:
        """Return the error that a status other than success means."""


class Connection(HttpConnection):
    """An open connection to the service."""

    _requires_done = True

    def __init__(self, base_url: str, api_key: str, transport: httpx.AsyncBaseTransport | None) -> None:
        # The service is on this machine: no proxy, and no limit on how long an answer takes.
        transport = transport or httpx.AsyncHTTPTransport()
        super().__init__(base_url, api_key, transport, timeout=httpx.Timeout(None, connect=5.0), trust_env=False)

    def _unreachable(self, error: Exception) -> ServiceError:  # noqa: ARG002 - the remedy is the same for each
        return ServiceError(f"No localllm service answers at {self.base_url}.", _START_AGAIN)

    def _invalid(self, reason: str) -> ServiceError:  # noqa: ARG002
        return ServiceError("Another program than localllm listens on the service's port.", "Use another --port.")

    def _refusal(self, path: str, status: int, body: bytes) -> UserError:  # noqa: ARG002 - the body says it
        with self._parsing():
            return error_of(json.loads(body)["error"])

    def _event(self, data: str) -> Any:
        event = super()._event(data)
        if event.keys() == {"error"}:
            raise error_of(event["error"])
        return event


def error_of(data: dict[str, Any]) -> UserError:
    """Return the error of an OpenAI error object with our `kind`, `cause`, `remedy`, `details`."""
    cause = data.get("cause") or data.get("message") or "The service failed."
    return ErrorInfo(data.get("kind", "ServiceError"), cause, data.get("remedy", ""), data.get("details", {})).error()


def error_message(body: bytes) -> str:
    """Return the message of an error in OpenAI's or Ollama's form; another text unchanged. Long ones are cut."""
    text = body.decode("utf-8", "replace")
    try:
        error = json.loads(text)["error"]
    except (ValueError, LookupError, TypeError):
        error = text
    return str(error.get("message", error) if isinstance(error, dict) else error).strip()[:MAX_QUOTED]
