"""Routes of temporary API keys: /api/localllm/metered-keys.

A program that starts another one, such as `localllm launch`, gives it such a key and learns what it used.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from fastapi import Request

from app.protocol.metering import MeteredKey, MeteredUsage
from app.service.api.app_state import app_state
from app.service.api.native.status import error_body
from app.service.http.errors import RefusedError
from app.service.http.openapi import errors
from app.service.http.routing import Router
from app.service.http.streaming import DONE_EVENTS, EventStream, JsonResponse

router = Router(prefix="/api/localllm/metered-keys")


@router.post("")
async def open_key(request: Request) -> EventStream[MeteredKey]:
    """Create a key that may ask models until this stream is closed; its one event has it."""

    async def events() -> AsyncGenerator[MeteredKey, None]:
        state = app_state(request)
        with state.metered_keys.open() as key:
            yield key
            await state.shutdown_policy.closed()

    return EventStream(events(), error_body, DONE_EVENTS)


@router.get("/{key_id}", openapi_extra=errors(404))
async def usage(request: Request, key_id: str) -> JsonResponse[MeteredUsage]:
    """What the requests with a key used so far."""
    meter = app_state(request).metered_keys.of_id(key_id)
    if meter is None:
        raise RefusedError(404, "not_found", "There is no such key.", "It ends with the stream that created it.")
    return JsonResponse(meter.usage)
