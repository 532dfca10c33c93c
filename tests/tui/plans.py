"""Plans of published models on machines that people have, made by the planner itself for the scripted client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from app.protocol.plan import PlanRequest
from offload.footprint.kv_cache import KV_TYPES, KvTypes, can_have, parse_kv_types
from offload.footprint.model import PlannedModel
from offload.plan import PlanConstraints, plan, plan_json
from offload.speed.cost_model import expected_rates
from quantizer.gguf.file_types import file_type_named
from tests.offload.machines import MACHINES
from tests.offload.model_outlines import header_of

__all__ = ["planner_for"]

RTX_3060 = "RTX 3060 12 GB, 32 GB RAM"


def planner_for(
    name: str = "gemma-2-9b", file_type: str = "Q8_0", machine: str = RTX_3060, measured: tuple[Any, ...] = ()
) -> Callable[[PlanRequest], Mapping[str, Any]]:
    """Return what plans the model called `name` for a machine of tests/offload, as the service would."""
    header, here = header_of(name), MACHINES[machine]
    model = PlannedModel(header, header.tensors).quantized(file_type_named(file_type))

    def answer(wish: PlanRequest) -> Mapping[str, Any]:
        question = PlanConstraints(
            n_ctx=wish.n_ctx,
            kv_types=parse_kv_types(wish.kv_type),
            n_sequences=wish.n_sequences or 8,
            is_fused=bool(here.gpus),
            gpu_layers=wish.gpu_layers,
        )
        found = plan(model, question, here, expected_rates(here), wants_remedies=wish.is_full)
        return plan_json(found) | {
            "model": wish.model or name,
            "is_full": wish.is_full,
            "gpu_layers": wish.gpu_layers,
            "n_ctx_train": model.n_ctx_train,
            "kv_types": [kind for kind in KV_TYPES if can_have(KvTypes(kind, kind), model.kv_shape)],
            "measured": list(measured),
        }

    return answer
