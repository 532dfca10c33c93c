"""The websockets of LM Studio's SDK, one for each of its namespaces, and the route by which it finds a service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from starlette.websockets import WebSocket
from typing_extensions import TypedDict

from app.service.api.lmstudio.sdk_library import FILES_ENDPOINTS, REPOSITORY_ENDPOINTS, SYSTEM_ENDPOINTS
from app.service.api.lmstudio.sdk_models import MODEL_ENDPOINTS
from app.service.api.lmstudio.sdk_session import Namespace, serve_namespace
from app.service.api.lmstudio.sdk_text import EMBEDDING_ENDPOINTS, LLM_ENDPOINTS
from app.service.http.routing import Router
from app.service.http.streaming import JsonResponse

router = Router()

# Those that are empty say of each call that it is not here, instead of failing to connect.
_NAMESPACES: Mapping[str, Namespace] = {
    "llm": {**MODEL_ENDPOINTS, **LLM_ENDPOINTS},
    "embedding": {**MODEL_ENDPOINTS, **EMBEDDING_ENDPOINTS},
    "system": SYSTEM_ENDPOINTS,
    "repository": REPOSITORY_ENDPOINTS,
    "files": FILES_ENDPOINTS,
    "diagnostics": {},
    "plugins": {},
    "runtime": {},
}


class Greeting(TypedDict):
    """What tells LM Studio's SDK that it has found a service."""

    lmstudio: Literal[True]


@router.get("/lmstudio-greeting")
async def greeting() -> JsonResponse[Greeting]:
    """The answer by which LM Studio's SDK recognises a service; needs no key."""
    return JsonResponse({"lmstudio": True})


async def _serve(websocket: WebSocket) -> None:
    domain = websocket.url.path.strip("/")
    await serve_namespace(websocket, domain, _NAMESPACES[domain])


for _name in _NAMESPACES:
    router.add_api_websocket_route(f"/{_name}", _serve)
