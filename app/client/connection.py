"""The HTTP connection to the service: requests, server-sent events, errors.

Owns HTTP. Independent of what is requested.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from app.protocol.codec import encode
from quantizer.errors import ErrorInfo, ServiceError, UserError

__all__ = ["Connection", "error_of"]

_START_AGAIN = "Start it with `localllm serve`, or start localllm again."


class Connection:
    """An open connection to the service at `base_url`.

    Every method raises ServiceError when the service cannot be reached, and the error that the service reports.
    """

    def __init__(self, base_url: str, api_key: str, transport: httpx.AsyncBaseTransport | None) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        # The service is on this machine: no proxy, and no limit on how long an answer takes.
        self._http = httpx.AsyncClient(
            base_url=base_url,
            headers=headers,
            transport=transport or httpx.AsyncHTTPTransport(),
            timeout=httpx.Timeout(None, connect=5.0),
            trust_env=False,
        )
        self._base_url = base_url

    async def close(self) -> None:
        await self._http.aclose()

    async def call(self, method: str, path: str, body: object = None) -> Any:
        """Return the JSON of the response."""
        with self._reachable():
            response = await self._http.request(method, path, json=encode(body))
        if response.is_error:
            raise _reported(response.content)
        return response.json()

    async def events(self, method: str, path: str, body: object = None) -> AsyncIterator[dict[str, Any]]:
        """Yield the data of server-sent events until `[DONE]`. Raises ServiceError where they end without it."""
        with self._reachable():
            async with self._http.stream(method, path, json=encode(body)) as response:
                if response.is_error:
                    raise _reported(await response.aread())
                async for line in response.aiter_lines():
                    if line == "data: [DONE]":
                        return
                    if line.startswith("data: "):
                        event = json.loads(line[6:])
                        if event.keys() == {"error"}:
                            raise error_of(event["error"])
                        yield event
        raise ServiceError("The service ended the answer before it was complete.", _START_AGAIN)

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        """Raise ServiceError where the service is unreachable, or this connection was closed."""
        try:
            yield
        except (httpx.TransportError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not self._http.is_closed:
                raise
            raise _unreachable(self._base_url) from error


def error_of(data: dict[str, Any]) -> UserError:
    """Return the error of an OpenAI error object with our `kind`, `cause`, `remedy`, `details`."""
    cause = data.get("cause") or data.get("message") or "The service failed."
    return ErrorInfo(data.get("kind", "ServiceError"), cause, data.get("remedy", ""), data.get("details", {})).error()


def _reported(body: bytes) -> UserError:
    try:
        return error_of(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return ServiceError("Another program than localllm listens on the service's port.", "Use another --port.")


def _unreachable(base_url: str) -> ServiceError:
    return ServiceError(f"No localllm service answers at {base_url}.", _START_AGAIN)
