"""Routes of llama-server's dialect for its state: /health, /props, /lora-adapters, /slots.

A running answer has the slot of its place in order of arrival: the engine's own slots are those of its cache, which
outlive answers. Source of a slot's fields: `server_slot::to_json` of llama-server (2026), without prompts, grammars,
biases and stop strings, which are other users'.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, NoReturn, NotRequired, cast

from pydantic import NonNegativeInt
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from app import __version__
from app.engine import request as engine_request
from app.engine.messages import AnswerProgress
from app.engine.request import SamplingParams
from app.protocol.errors import ServiceError
from app.protocol.sampling import SamplingOrigin
from app.service.api.app_state import app_state, model_of
from app.service.api.llamacpp.responses import GenerationSettings, generation_settings
from app.service.generation.template_caps import TemplateCaps
from app.service.http.errors import LlamaCppError, RefusedError, llamacpp_error
from app.service.http.routing import Router, errors
from app.service.http.streaming import JsonResponse
from app.service.models.served_model import ServedModel

router = Router()


class HealthResponse(TypedDict):
    status: Literal["ok"]


class _UnavailableFields(TypedDict):
    code: Literal[503]
    message: Literal["Loading model", "no slot available"]
    type: Literal["unavailable_error"]


class UnavailableError(TypedDict):
    """The default model is not loaded yet, or every slot is busy."""

    error: _UnavailableFields


class LoraAdapter(TypedDict):
    """An adapter of the default model, and its scale in requests that name none."""

    id: NonNegativeInt
    name: str
    scale: float


class DefaultSettings(TypedDict):
    """How a request is answered that says nothing about it; `origins` has who decided each of `params`."""

    n_ctx: NonNegativeInt
    params: SamplingParams
    origins: dict[str, SamplingOrigin]


class Modalities(TypedDict):
    vision: bool
    video: Literal[False]
    audio: bool


class Props(TypedDict):
    default_generation_settings: DefaultSettings
    total_slots: NonNegativeInt
    batch_slots: NonNegativeInt
    model_alias: str
    model_path: str
    chat_template: str
    chat_template_tool_use: NotRequired[str]
    chat_template_caps: TemplateCaps
    bos_token: str
    eos_token: str
    modalities: Modalities
    media_marker: str
    endpoint_slots: Literal[True]
    endpoint_props: Literal[False]
    endpoint_metrics: Literal[True]
    build_info: str
    is_sleeping: bool


_NONE = -1
_LOADING: UnavailableError = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
_HEALTH_ERRORS = errors(503, kind=UnavailableError | LlamaCppError)


@router.get("/health", refusals=_HEALTH_ERRORS)
@router.get("/v1/health", refusals=_HEALTH_ERRORS)
async def health(request: Request) -> JsonResponse[HealthResponse] | Response:
    """200 when the default model can answer, if need be after loading it again, 503 while it cannot."""
    status = app_state(request).models.default.engine.status
    if status.state in ("ready", "unloaded"):
        return JsonResponse({"status": "ok"})
    if status.state == "loading":
        return JsonResponse(_LOADING, 503)
    return JsonResponse(llamacpp_error(status.error or ServiceError("The model could not be loaded.")), 503)


@router.get("/lora-adapters")
async def lora_adapters(request: Request) -> JsonResponse[list[LoraAdapter]]:
    """The adapters of the default model, and the scale of each in requests that name none."""
    adapters = app_state(request).models.default.adapters
    return JsonResponse([{"id": index, "name": name, "scale": 1.0} for index, name in enumerate(adapters)])


@router.post("/lora-adapters", refusals=errors(501))
async def change_lora_adapters() -> NoReturn:
    """Refused: the scale of an adapter is each request's own."""
    cause = "The scales of adapters cannot be changed for all requests."
    raise RefusedError(501, "not_implemented", cause, 'Send "lora": [{"id": 0, "scale": 0.5}] with each request.')


@router.get("/props", refusals=errors(404))
async def props(request: Request, model: str = "") -> JsonResponse[Props]:
    """The facts that clients read before they send work: context, slots, template; without the model's folder. To ask
    for them is no use of the model: one that is unloaded as idle stays so, as in llama-server."""
    served = await model_of(request, model)
    is_sleeping = served.engine.status.state == "unloaded" and served.engine.last_facts is not None
    ready = served.engine.status.facts or (served.engine.last_facts if is_sleeping else None) or await served.ready()
    answer: Props = {
        "default_generation_settings": {
            "n_ctx": ready.n_ctx,
            "params": _default_params(served),
            "origins": {name: option.origin for name, option in served.file.sampling.options.items()},
        },
        "total_slots": ready.n_sequences,
        "batch_slots": ready.n_batch_answers or ready.n_sequences,
        "model_alias": served.ref.id,
        "model_path": served.ref.path.name,
        "chat_template": served.file.chat_template,
        "chat_template_caps": await served.template_probe.caps_of(served.file, served.renderer),
        "bos_token": served.file.bos_token,
        "eos_token": served.file.eos_token,
        "modalities": {"vision": ready.sees, "video": False, "audio": ready.hears},
        "media_marker": app_state(request).media_marker,
        "endpoint_slots": True,
        "endpoint_props": False,
        "endpoint_metrics": True,
        "build_info": f"localllm {__version__}",
        "is_sleeping": is_sleeping,
    }
    if served.file.tool_template:
        answer["chat_template_tool_use"] = served.file.tool_template
    return JsonResponse(answer)


@router.post("/props", refusals=errors(501))
async def change_props() -> NoReturn:
    """Refused: settings are those of the service."""
    cause = "The properties of a running server cannot be changed."
    raise RefusedError(501, "not_implemented", cause, "Send options with each request, or change the settings.")


class NextToken(TypedDict):
    """How far an answer is; `n_remain` is -1 where it has no limit."""

    has_next_token: bool
    has_new_line: bool
    n_remain: int
    n_decoded: NonNegativeInt


class SlotState(TypedDict):
    """A slot; an idle one has no task, and the default options."""

    id: NonNegativeInt
    id_task: int
    n_ctx: NonNegativeInt
    speculative: Literal[True]
    is_processing: bool
    n_prompt_tokens: NonNegativeInt
    n_prompt_tokens_processed: NonNegativeInt
    n_prompt_tokens_cache: NonNegativeInt
    params: GenerationSettings
    next_token: list[NextToken]


_NO_SLOT: UnavailableError = {"error": {"code": 503, "message": "no slot available", "type": "unavailable_error"}}
_NOTHING = dict.fromkeys(("n_prompt_tokens", "n_cached_tokens", "n_computed_tokens", "n_output_tokens"), 0)
_IDLE = AnswerProgress(request_id="", arrival=_NONE, has_new_line=False, **_NOTHING)


def _default_params(served: ServedModel) -> SamplingParams:
    return SamplingParams(**cast("dict[str, Any]", served.file.sampling.stated))


@router.get("/slots", refusals=errors(404) | errors(503, kind=UnavailableError | LlamaCppError))
async def slots(
    request: Request, model: str = "", fail_on_no_slot: str = ""
) -> JsonResponse[list[SlotState]] | Response:
    """The slots, the busy ones first; with `fail_on_no_slot` 503 where none is idle."""
    served = await model_of(request, model)
    ready, observed = await served.ready(), await served.engine.metrics()
    running = observed.running if observed else ()
    if fail_on_no_slot and len(running) >= ready.n_sequences:
        return JsonResponse(_NO_SLOT, 503)
    default = engine_request.Request(request_id="", prompt="", sampling=_default_params(served))
    requests = [served.engine.running_request(answer.request_id) or default for answer in running]
    busy = sorted(zip(running, requests, strict=True), key=lambda pair: pair[0].arrival)
    idle = [(_IDLE, default)] * (ready.n_sequences - len(busy))
    return JsonResponse([_state(slot, ready.n_ctx, *pair) for slot, pair in enumerate([*busy, *idle])])


@router.post("/slots/{slot_id}", refusals=errors(501))
async def change_slot(slot_id: str) -> NoReturn:
    """Refused: the engine saves and restores states by itself."""
    cause = f"The state of slot {slot_id[:20]!r} cannot be saved, restored or erased by hand."
    raise RefusedError(501, "not_implemented", cause, "Send the prompt again: what was computed is reused.")


def _state(slot: int, n_ctx: int, answer: AnswerProgress, request: engine_request.Request) -> SlotState:
    is_processing = answer is not _IDLE
    n_processed = min(answer.n_computed_tokens, answer.n_prompt_tokens) - answer.n_cached_tokens
    n_remain = _NONE if request.max_tokens is None else max(0, request.max_tokens - answer.n_output_tokens)
    sampling = replace(request.sampling, grammar="", calls=None, logit_bias=(), text_bias=())
    shown = replace(request, stop=(), sampling=sampling)
    next_token: NextToken = {
        "has_next_token": is_processing,
        "has_new_line": answer.has_new_line,
        "n_remain": n_remain,
        "n_decoded": answer.n_output_tokens,
    }
    return {
        "id": slot,
        "id_task": answer.arrival,
        "n_ctx": n_ctx,
        "speculative": True,
        "is_processing": is_processing,
        "n_prompt_tokens": answer.n_prompt_tokens,
        "n_prompt_tokens_processed": max(0, n_processed),
        "n_prompt_tokens_cache": answer.n_cached_tokens,
        "params": generation_settings(shown),
        "next_token": [next_token],
    }
