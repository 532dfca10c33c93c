"""llama.cpp's dialect for what there is: /health, /props, /slots, /lora-adapters, /tokenize, /detokenize.

Knows nothing of answers, whose routes are in `llamacpp_text`.
"""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Request, Response
from pydantic import StrictInt

from app import __version__
from app.engine.request import SamplingParams
from app.service.api.app_state import model_of, models_of
from app.service.api.fields import Body
from app.service.api.llamacpp.schemas import Content, Health, Loading, LoraAdapter, Pieces, Props, SlotState, Tokens
from app.service.http.body import read_body
from app.service.http.errors import LlamaCppError, llamacpp_error
from app.service.http.openapi import gives, refuses, takes
from app.service.http.streaming import JsonResponse
from quantizer.errors import ServiceError

__all__ = ["router"]

router = APIRouter()

_LOADING = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
_HEALTH = gives(Health) | gives(Loading | LlamaCppError, status=503)


class TokenizeBody(Body):
    """`content` as text; special tokens written in it count as such unless `parse_special` is false."""

    content: str
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False
    model: str = ""


class DetokenizeBody(Body):
    """`tokens` of the model's vocabulary."""

    tokens: list[StrictInt]
    model: str = ""


@router.get("/health", openapi_extra=_HEALTH)
@router.get("/v1/health", openapi_extra=_HEALTH)
async def health(request: Request) -> Response:
    """200 when the default model can answer, if need be after loading it again, 503 while it cannot."""
    status = models_of(request).default.engine.status
    if status.state in ("ready", "unloaded"):
        return JsonResponse({"status": "ok"})
    if status.state == "loading":
        return JsonResponse(_LOADING, 503)
    return JsonResponse(llamacpp_error(status.error or ServiceError("The model could not be loaded.")), 503)


@router.get("/lora-adapters", openapi_extra=gives(list[LoraAdapter]))
async def lora_adapters(request: Request) -> Response:
    """The adapters of the default model, and the scale that each has where a request names none."""
    adapters = models_of(request).default.adapters
    return JsonResponse([{"id": index, "name": name, "scale": 1.0} for index, name in enumerate(adapters)])


@router.get("/props", openapi_extra=gives(Props) | refuses(404))
async def props(request: Request, model: str = "") -> Response:
    """What clients ask before they send work: context, places, template. The model's folder is not told."""
    served = await model_of(request, model)
    ready = await served.ready()
    return JsonResponse(
        {
            "default_generation_settings": {"n_ctx": ready.n_ctx, "params": asdict(SamplingParams())},
            "total_slots": ready.n_sequences,
            "model_alias": served.ref.id,
            "model_path": served.ref.path.name,
            "chat_template": served.file.chat_template,
            "bos_token": served.file.bos_token,
            "eos_token": served.file.eos_token,
            "modalities": {"vision": False, "audio": False},
            "build_info": f"localllm {__version__}",
        }
    )


@router.get("/slots", openapi_extra=gives(list[SlotState]) | refuses(404))
async def slots(request: Request, model: str = "") -> Response:
    """The places for answers. Which answer has which is not told: they are told apart by nothing else."""
    served = await model_of(request, model)
    ready, observed = await served.ready(), await served.engine.metrics()
    n_running = observed.occupancy.n_running if observed else 0
    places = range(ready.n_sequences)
    return JsonResponse([{"id": place, "n_ctx": ready.n_ctx, "is_processing": place < n_running} for place in places])


@router.post("/tokenize", openapi_extra=takes(TokenizeBody) | gives(Tokens | Pieces) | refuses(404))
async def tokenize(request: Request) -> Response:
    """Text to token ids, with the text of each where that is wanted."""
    body = await read_body(request, TokenizeBody)
    how = {"add_special": body.add_special, "parse_special": body.parse_special}
    with (await model_of(request, body.model)).in_use() as engine:
        if body.with_pieces:
            pieces = await engine.pieces(body.content, **how)
            return JsonResponse({"tokens": [{"id": token, "piece": _piece(piece)} for token, piece in pieces]})
        return JsonResponse({"tokens": await engine.tokenize(body.content, **how)})


@router.post("/detokenize", openapi_extra=takes(DetokenizeBody) | gives(Content) | refuses(404))
async def detokenize(request: Request) -> Response:
    """Token ids to text."""
    body = await read_body(request, DetokenizeBody)
    with (await model_of(request, body.model)).in_use() as engine:
        return JsonResponse({"content": await engine.detokenize(body.tokens)})


def _piece(piece: bytes) -> str | list[int]:
    """Return the text of a token, its bytes where they are part of a character (source: llama-server's README)."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
