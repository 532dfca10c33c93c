"""The machine to plan for: this one, or one described by --vram and --ram."""

from __future__ import annotations

from collections.abc import Sequence

from app.cli.options import announced_rpc_endpoints
from app.engine.load.machine import survey
from app.library.machine_fit.machine_spec import parse_machine
from app.library.machine_fit.planning import PlanningContext, local_planning_context, planning_context
from app.settings.settings import Settings

__all__ = ["requested_planning_context"]


def requested_planning_context(settings: Settings, vram: Sequence[str] = (), ram: str | None = None) -> PlanningContext:
    """Return this machine, or the described one, with its rates. Raises UsageError."""
    endpoints = announced_rpc_endpoints(settings)
    if not vram and ram is None:
        return local_planning_context(settings)
    return planning_context(settings, parse_machine(lambda: survey(endpoints).machine, vram, ram))
