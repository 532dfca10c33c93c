"""llama.cpp's dialect: /health, /tokenize, /detokenize, /lora-adapters."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import StrictInt

from app.service.api.access import models_of
from app.service.api.bodies import Body
from app.service.body import read_body
from app.service.problems import llamacpp_error
from app.service.streaming import JsonBytes
from quantizer.errors import ServiceError

__all__ = ["router"]

router = APIRouter()

_LOADING = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}


class TokenizeBody(Body):
    """`content` as text; special tokens written in it count as such unless `parse_special` is false."""

    content: str
    add_special: bool = False
    parse_special: bool = True
    model: str = ""


class DetokenizeBody(Body):
    """`tokens` of the model's vocabulary."""

    tokens: list[StrictInt]
    model: str = ""


@router.get("/health")
@router.get("/v1/health")
async def health(request: Request) -> Response:
    """200 when the default model can answer, 503 while it cannot."""
    status = models_of(request).default.engine.status
    if status.state == "ready":
        return JsonBytes({"status": "ok"})
    if status.state == "loading":
        return JsonBytes(_LOADING, 503)
    return JsonBytes(llamacpp_error(status.error or ServiceError("The model could not be loaded.")), 503)


@router.get("/lora-adapters")
async def lora_adapters(request: Request) -> Response:
    """The adapters of the default model, and the scale that each has where a request names none."""
    adapters = models_of(request).default.adapters
    return JsonBytes([{"id": index, "name": name, "scale": 1.0} for index, name in enumerate(adapters)])


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    """Text to token ids."""
    body = await read_body(request, TokenizeBody)
    model = await models_of(request).named(body.model)
    tokens = await model.engine.tokenize(body.content, add_special=body.add_special, parse_special=body.parse_special)
    return JsonBytes({"tokens": tokens})


@router.post("/detokenize")
async def detokenize(request: Request) -> Response:
    """Token ids to text."""
    body = await read_body(request, DetokenizeBody)
    model = await models_of(request).named(body.model)
    return JsonBytes({"content": await model.engine.detokenize(body.tokens)})
