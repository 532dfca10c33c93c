"""Plans of published models on machines that people have, made by the planner itself for the scripted client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from app.protocol.library import VerdictName
from app.protocol.plan import MeasuredRun, Plan, PlanChange, PlanRemedy, PlanReport, PlanRequest, describe_plan
from offload.footprint.kv_cache import KV_TYPES, KvTypes, parse_kv_types, supports_kv_types
from offload.footprint.model import PlannedModel, RunConfig
from offload.plan import plan
from offload.speed.cost_model import expected_rates
from quantizer.gguf.tensor_types import file_type_named
from tests.app.client.scripted_client import PLAN
from tests.offload.machines import MACHINES
from tests.offload.model_outlines import header_of

__all__ = ["planner_for", "split_plan"]

RTX_3060 = "RTX 3060 12 GB, 32 GB RAM"


def planner_for(
    name: str = "gemma-2-9b", file_type: str = "Q8_0", machine: str = RTX_3060, measured: tuple[MeasuredRun, ...] = ()
) -> Callable[[PlanRequest], PlanReport]:
    """Return what plans the model called `name` for a machine of tests/offload, as the service would."""
    model = _model_of(name, file_type)

    def answer(request: PlanRequest) -> PlanReport:
        layers = None if request.gpu_layers is None else tuple(request.gpu_layers.items())
        question = request.n_ctx, request.kv_type, request.n_sequences or 8, layers, request.is_full
        return PlanReport.of(
            _plan_of(name, file_type, machine, *question),
            replace(request, model=request.model or name),
            n_ctx_train=model.n_ctx_train,
            kv_types=tuple(kind for kind in KV_TYPES if supports_kv_types(KvTypes(kind, kind), model.kv_shape)),
            measured=measured,
        )

    return answer


@cache
def _model_of(name: str, file_type: str) -> PlannedModel:
    header = header_of(name)
    return PlannedModel(header, header.tensors).quantized(file_type_named(file_type))


@cache  # a plan with remedies takes a third of a second, and the tests of one screen ask for the same few
def _plan_of(
    name: str,
    file_type: str,
    machine: str,
    n_ctx: int,
    kv_type: str,
    n_sequences: int,
    gpu_layers: tuple[tuple[str, int], ...] | None,
    is_full: bool,
) -> Plan:
    here = MACHINES[machine]
    question = RunConfig(
        n_ctx=n_ctx,
        kv_types=parse_kv_types(kv_type),
        n_sequences=n_sequences,
        is_fused=bool(here.gpus),
        gpu_layers=None if gpu_layers is None else dict(gpu_layers),
    )
    found = plan(_model_of(name, file_type), question, here, expected_rates(here), wants_remedies=is_full)
    return describe_plan(found)


def split_plan(verdict: VerdictName, n_on_gpus: int, n_layers: int, warning: str = "", remedy: str = "") -> Plan:
    """Return a plan of which a status shows a part: layers on a GPU, the first warning and the first remedy."""
    (cpu,) = PLAN.devices
    gpu = replace(cpu, name="CUDA0", kind="gpu", layers=n_on_gpus)
    return replace(
        PLAN,
        verdict=verdict,
        n_layers=n_layers,
        devices=(gpu, replace(cpu, layers=n_layers - n_on_gpus)),
        warnings=(warning,) if warning else (),
        remedies=(PlanRemedy(remedy, None, "", PlanChange()),) if remedy else (),
    )
