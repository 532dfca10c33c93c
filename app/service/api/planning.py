"""What a model comes to on this machine, or on another: /api/localllm/plan, asked at every key of a planning screen.

Owns the body. A plan is made in a thread, for it reads files and asks the machine.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import Field

from app.plan_wish import PlanWish
from app.service.api.access import models_of, planner_of
from app.service.api.bodies import Body, Text
from app.service.body import read_body
from app.service.machine_look import Occupant
from app.service.openapi import takes
from app.service.served_model import ServedModel
from app.service.streaming import JsonBytes

__all__ = ["router"]

router = APIRouter(prefix="/api/localllm")

_MOST_CELLS = 1 << 30  # llama.cpp counts them in 32 bits
_MOST_SEQUENCES = 256
_MOST_GPUS = 64


class PlanBody(Body):
    """See `app.plan_wish.PlanWish`."""

    model: Text = ""
    n_ctx: Annotated[int, Field(ge=0, le=_MOST_CELLS)] = 0
    kv_type: Text = ""
    n_sequences: Annotated[int, Field(ge=0, le=_MOST_SEQUENCES)] = 0
    gpu_layers: Annotated[dict[str, int], Field(max_length=_MOST_GPUS)] | None = None
    vram: Annotated[tuple[Text, ...], Field(max_length=_MOST_GPUS)] = ()
    ram: Text = ""
    is_full: bool = False
    is_fresh: bool = False


@router.post("/plan", openapi_extra=takes(PlanBody))
async def plan(request: Request) -> Response:
    """What a model comes to: verdict, bytes by device, speeds, ways out; before anything is loaded."""
    body = await read_body(request, PlanBody)
    models = models_of(request)
    wish = PlanWish(**body.model_dump())
    served = next((model for model in models.loaded if wish.model in ("", model.ref.id)), None)
    if served is not None:
        wish = PlanWish(**body.model_dump() | {"model": str(served.ref.path)})
    occupants = tuple(filter(None, map(_occupant, models.loaded)))
    found = await asyncio.to_thread(planner_of(request).plan, wish, occupants)
    return JsonBytes(found | {"model": served.ref.id if served else wish.model})


def _occupant(model: ServedModel) -> Occupant | None:
    pid, status = model.engine.worker_pid, model.engine.status
    if pid is None or status.plan is None:
        return None
    held = {
        device["name"]: device["weights_bytes"] + device["kv_bytes"] + device["compute_bytes"]
        for device in status.plan["devices"]
        if device["kind"] != "cpu"
    }
    return Occupant(model.ref.path, pid, held)
