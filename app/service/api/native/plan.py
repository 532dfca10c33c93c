"""What a model comes to on this machine, or on another, and loading it so: /api/localllm/plan and /reload.

Owns the body, and what a wish changes of how a model is loaded. A plan is made in a thread, for it reads files and asks
the machine.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import AfterValidator, Field, StrictStr

from app.engine.protocol.messages import EngineConfig
from app.protocol.plan import PlanReport, PlanRequest
from app.service.api.app_state import models_of, plan_service_of
from app.service.api.fields import Body
from app.service.api.native.schemas import ModelId
from app.service.http.body import read_body
from app.service.http.openapi import gives, refuses, takes
from app.service.http.streaming import JsonResponse
from app.service.models.served_model import ServedModel
from app.service.pool.eviction import LoadedModel
from offload.footprint.kv_cache import parse_kv_types
from quantizer.errors import UsageError

__all__ = ["apply_plan_request", "router"]

router = APIRouter(prefix="/api/localllm")

_MOST_CELLS = 1 << 30  # llama.cpp counts them in 32 bits
_LEAST_CELLS = 64  # with fewer llama.cpp 0.3.36 aborts while it sizes its buffers
_MOST_SEQUENCES = 256
_MOST_THREADS = 512  # llama.cpp makes no more
_MOST_GPUS = 64


def _enough(n_ctx: int) -> int:
    if 0 < n_ctx < _LEAST_CELLS:
        raise ValueError(f"must be at least {_LEAST_CELLS}, or 0 for what suits the model")
    return n_ctx


class PlanBody(Body):
    """See `app.protocol.plan.PlanRequest`."""

    model: StrictStr = ""
    n_ctx: Annotated[int, Field(ge=0, le=_MOST_CELLS), AfterValidator(_enough)] = 0
    kv_type: StrictStr = ""
    n_sequences: Annotated[int, Field(ge=0, le=_MOST_SEQUENCES)] = 0
    n_threads: Annotated[int, Field(ge=0, le=_MOST_THREADS)] = 0
    context_shift: bool | None = None
    gpu_layers: Annotated[dict[str, int], Field(max_length=_MOST_GPUS)] | None = None
    vram: Annotated[tuple[StrictStr, ...], Field(max_length=_MOST_GPUS)] = ()
    ram: StrictStr = ""
    is_full: bool = False
    is_fresh: bool = False


@router.post("/plan", openapi_extra=takes(PlanBody) | gives(PlanReport) | refuses(404, 502))
async def plan(request: Request) -> Response:
    """What a model comes to: verdict, bytes by device, speeds, ways out; before anything is loaded."""
    wish, models = await _wish(request), models_of(request)
    served = next((model for model in models.loaded if wish.model in ("", model.ref.id)), None)
    meant = wish if served is None else replace(wish, model=str(served.ref.path))
    loaded = tuple(filter(None, map(_loaded, models.loaded)))
    found = await asyncio.to_thread(plan_service_of(request).plan, meant, loaded)
    return JsonResponse(replace(found, model=served.ref.id if served else wish.model))


@router.post("/reload", openapi_extra=takes(PlanBody) | gives(ModelId) | refuses(404))
async def reload(request: Request) -> Response:
    """Load a model so, in place of how it is loaded; /status tells how far it is. What it is answering fails."""
    wish = await _wish(request)
    if not wish.is_here:
        raise UsageError("This plan is for another machine.", "Plan for this one, without vram and ram.")
    parse_kv_types(wish.kv_type)
    model = await models_of(request).reload(wish.model, partial(apply_plan_request, wish))
    return JsonResponse({"id": model.ref.id})


async def _wish(request: Request) -> PlanRequest:
    return PlanRequest(**(await read_body(request, PlanBody)).model_dump())


def apply_plan_request(wish: PlanRequest, config: EngineConfig) -> EngineConfig:
    """Return `config` with what is wished; what the wish leaves open stays as it is, but for layers on GPUs."""
    return replace(
        config,
        n_ctx=wish.n_ctx or config.n_ctx,
        n_cells=0,
        kv_type=wish.kv_type or config.kv_type,
        n_sequences=wish.n_sequences or config.n_sequences,
        n_threads=wish.n_threads or config.n_threads,
        context_shift=config.context_shift if wish.context_shift is None else wish.context_shift,
        gpu_layers=None if wish.gpu_layers is None else tuple(wish.gpu_layers.items()),
    )


def _loaded(model: ServedModel) -> LoadedModel | None:
    pid, status = model.engine.worker_pid, model.engine.status
    if pid is None or status.plan is None:
        return None
    held = {device.name: device.n_bytes - device.extras_bytes for device in status.plan.devices if device.is_gpu}
    return LoadedModel(path=model.ref.path, worker_pid=pid, held_bytes=held)
