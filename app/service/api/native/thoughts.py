"""Routes that end the reasoning of a running answer: /api/localllm/requests/{id}/end-thought, and llama-server's own.

Clients send them while they read the answer, whose text then begins.
"""

from __future__ import annotations

from typing import Literal, NotRequired

from fastapi import Request
from pydantic import StrictStr
from typing_extensions import TypedDict

from app.service.api.app_state import app_state
from app.service.api.fields import Body
from app.service.http.errors import RefusedError
from app.service.http.openapi import errors
from app.service.http.routing import Router
from app.service.http.streaming import JsonResponse

router = Router()

_NONE_RUNNING = "no active completion for this id"  # as llama-server has it


class EndedThought(TypedDict):
    """The response whose reasoning ends."""

    id: str


class ControlBody(Body):
    """The `id` of a streamed chat completion, and what to do with it."""

    id: StrictStr
    action: Literal["reasoning_end"]
    model: StrictStr | None = None


class ControlResult(TypedDict):
    """Whether there is such a completion."""

    success: bool
    message: NotRequired[str]


@router.post("/api/localllm/requests/{response_id}/end-thought", openapi_extra=errors(404))
async def end_thought(request: Request, response_id: str) -> JsonResponse[EndedThought]:
    """End the reasoning in a running response of any dialect, by its id, so that its text begins.

    A response whose reasoning has ended goes on as it is.
    """
    if not app_state(request).models.end_thought(response_id):
        raise RefusedError(404, "not_found", "No response of that id is running.", "It has ended, or never began.")
    return JsonResponse({"id": response_id})


@router.post("/v1/chat/completions/control")
async def control(request: Request, body: ControlBody) -> JsonResponse[ControlResult]:
    """End the reasoning in a running chat completion, as llama-server does; `reasoning_control` need not be set."""
    if app_state(request).models.end_thought(body.id):
        return JsonResponse({"success": True})
    return JsonResponse({"success": False, "message": _NONE_RUNNING})
