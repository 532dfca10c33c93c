"""The HTTP client of servers that have an address: bounds on what they answer, and what their refusals mean.

Imported by `sdk` only: it needs httpx2, which comes with the package `mcp`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import httpx2

from app.tools.mcp.transport.process import MAX_MESSAGE_BYTES

_TIMEOUT = httpx2.Timeout(30.0, read=300.0)  # seconds; a call's own limit is shorter
_UNAUTHORIZED, _FORBIDDEN = 401, 403


class HttpStatus:
    """The status of the last answer: the SDK's errors do not tell it."""

    def __init__(self) -> None:
        self.last = 0

    async def note(self, response: httpx2.Response) -> None:
        self.last = response.status_code


def http_client(headers: Mapping[str, str], status: HttpStatus) -> httpx2.AsyncClient:
    """Return a client whose answers are not compressed and have a largest size; events are bounded by the SDK."""
    return httpx2.AsyncClient(
        transport=_BoundedTransport(httpx2.AsyncHTTPTransport()),
        headers={"accept-encoding": "identity", **headers},
        timeout=_TIMEOUT,
        event_hooks={"response": [status.note]},
    )


def explained_http(error: BaseException, status: HttpStatus) -> tuple[str, str]:
    """Return the cause and the remedy of what went wrong on the way to a server."""
    code = error.response.status_code if isinstance(error, httpx2.HTTPStatusError) else status.last
    if code in (_UNAUTHORIZED, _FORBIDDEN):
        return f"answers {code}: it wants to know who asks", "Put its token into `headers` in mcp.json."
    if isinstance(error, httpx2.ConnectError):
        return f"cannot be reached: {error}", "Start it, or correct its `url` in mcp.json."
    if isinstance(error, httpx2.HTTPError):
        return f"does not answer as it should: {error or type(error).__name__}", "Correct its `url` in mcp.json."
    return (f"answers {code}" if code >= 400 else "does not speak the protocol"), "Correct its `url` in mcp.json."


class _BoundedTransport(httpx2.AsyncBaseTransport):
    """Passes requests on, and ends an answer that is compressed or too large."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            raise httpx2.RemoteProtocolError("its answer is compressed, which was not asked for")
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _BoundedStream(response.stream)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _BoundedStream(httpx2.AsyncByteStream):
    """A body of at most the largest size of a message."""

    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        n_bytes = 0
        async for piece in self._inner:
            n_bytes += len(piece)
            if n_bytes > MAX_MESSAGE_BYTES:
                raise httpx2.StreamError(f"the answer has more than {MAX_MESSAGE_BYTES >> 20} MiB")
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()
