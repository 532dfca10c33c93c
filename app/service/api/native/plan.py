"""Routes of plans: /api/localllm/plan for this machine or another, /reload, which loads a model by a plan, /context.

A plan is made in a thread: it reads files and queries devices.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Annotated

from fastapi import Request
from pydantic import AfterValidator, Field, StrictStr

from app.engine.messages import EngineConfig
from app.protocol.plan import PlanReport, PlanRequest
from app.protocol.status import ContextLength
from app.service.api.app_state import app_state, model_of
from app.service.api.fields import Body
from app.service.api.native.status import ModelId
from app.service.http.routing import Router, errors
from app.service.http.streaming import JsonResponse, while_connected
from app.service.pool.memory import LoadedModel
from app.settings.settings import SETTINGS
from offload.footprint.kv_cache import parse_kv_types
from quantizer.system.errors import UsageError

router = Router(prefix="/api/localllm")

_LEAST_CELLS = 64  # with fewer llama.cpp 0.3.36 aborts while it sizes its buffers
_MOST_GPUS = 64


def _check_n_ctx(n_ctx: int) -> int:
    if 0 < n_ctx < _LEAST_CELLS:
        raise ValueError(f"must be at least {_LEAST_CELLS}, or 0 to let the planner choose")
    return n_ctx


class PlanBody(Body):
    """See `app.protocol.plan.PlanRequest`."""

    model: StrictStr = ""
    n_ctx: Annotated[int, Field(ge=0, le=SETTINGS["ctx"].most), AfterValidator(_check_n_ctx)] = 0
    kv_type: StrictStr = ""
    n_sequences: Annotated[int, Field(ge=0, le=SETTINGS["parallel"].most)] = 0
    n_threads: Annotated[int, Field(ge=0, le=SETTINGS["threads"].most)] = 0
    context_shift: bool | None = None
    gpu_layers: Annotated[dict[str, int], Field(max_length=_MOST_GPUS)] | None = None
    vram: Annotated[tuple[StrictStr, ...], Field(max_length=_MOST_GPUS)] = ()
    ram: StrictStr = ""
    is_full: bool = False
    is_fresh: bool = False

    def plan_request(self) -> PlanRequest:
        return PlanRequest(**self.model_dump())


class ContextBody(Body):
    """The context that a model should have, in tokens."""

    model: StrictStr = ""
    n_ctx: Annotated[int, Field(ge=_LEAST_CELLS, le=SETTINGS["ctx"].most)]


@router.post("/plan", openapi_extra=errors(404, 502))
async def plan(request: Request, body: PlanBody) -> JsonResponse[PlanReport]:
    """The plan of a model before it is loaded: verdict, bytes by device, speeds, remedies."""
    wanted, models = body.plan_request(), app_state(request).models
    served = next((model for model in models.opened if wanted.model in ("", model.ref.id)), None)
    resolved = wanted if served is None else replace(wanted, model=str(served.ref.path))
    loaded = [
        LoadedModel(
            path=model.ref.path,
            worker_pid=model.engine.worker_pid,
            held_bytes={device.name: device.n_bytes - device.extras_bytes for device in known.devices if device.is_gpu},
        )
        for model in models.opened
        if model.engine.worker_pid is not None and (known := model.engine.status.plan) is not None
    ]
    report = await asyncio.to_thread(app_state(request).plan_service.plan, resolved, loaded)
    return JsonResponse(replace(report, model=served.ref.id if served else wanted.model))


@router.post("/reload", openapi_extra=errors(404))
async def reload(request: Request, body: PlanBody) -> JsonResponse[ModelId]:
    """Load a model with new settings; /status reports the progress. Its running answers fail."""
    wanted = body.plan_request()
    if not wanted.is_here:
        raise UsageError("This plan is for another machine.", "Plan for this one, without vram and ram.")
    parse_kv_types(wanted.kv_type)
    model = await app_state(request).models.reload(wanted.model, partial(apply_plan_request, wanted))
    return JsonResponse({"id": model.ref.id})


@router.post("/context", openapi_extra=errors(404))
async def lengthen_context(request: Request, body: ContextBody) -> JsonResponse[ContextLength]:
    """Load a model, or load it again, with a longer context before a prompt needs it.

    It has as many of the tokens as training and memory allow. Running answers end first. Returns when the model is
    loaded. A context of the user's choice stays.
    """
    model = await model_of(request, body.model)

    async def lengthened() -> JsonResponse[ContextLength]:
        return JsonResponse(await model.lengthen_context(body.n_ctx))

    return await while_connected(request, lengthened())


def apply_plan_request(request: PlanRequest, config: EngineConfig) -> EngineConfig:
    """Return `config` with the values that `request` gives; without layers on GPUs the planner places them anew."""
    return replace(
        config,
        n_ctx=request.n_ctx or config.n_ctx,
        n_cells=0,
        kv_type=request.kv_type or config.kv_type,
        n_sequences=request.n_sequences or config.n_sequences,
        n_threads=request.n_threads or config.n_threads,
        context_shift=config.context_shift if request.context_shift is None else request.context_shift,
        gpu_layers=request.gpu_layers,
    )
