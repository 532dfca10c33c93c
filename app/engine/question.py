"""What a plan is asked, as the settings have it and the engine would load."""

from __future__ import annotations

from app.settings import Settings
from offload.kv_cache import parse_kv_types
from offload.machine import Machine
from offload.plan import PlanQuestion

__all__ = ["question_of"]


def question_of(settings: Settings, machine: Machine) -> PlanQuestion:
    """Return the question. Attention is fused on GPUs, where that is the faster way. Raises UsageError."""
    return PlanQuestion(
        n_ctx=settings.ctx,
        kv_types=parse_kv_types(settings.kv_type),
        n_sequences=settings.parallel,
        is_fused=bool(machine.gpus),
    )
