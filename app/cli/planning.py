"""The machine to plan for, as the command line names it: this one, or what is given of another."""

from __future__ import annotations

from collections.abc import Sequence

from app.cli.rpc_option import told_endpoints
from app.engine.machine import survey
from app.library.fit import Circumstances, circumstances, circumstances_here
from app.library.given_machine import given_machine
from app.settings import Settings

__all__ = ["wanted_circumstances"]


def wanted_circumstances(settings: Settings, vram: Sequence[str] = (), ram: str | None = None) -> Circumstances:
    """Return the machine to plan for: this one, or what is given of another. Raises UsageError."""
    endpoints = told_endpoints(settings)
    if not vram and ram is None:
        return circumstances_here(settings)
    return circumstances(settings, given_machine(lambda: survey(endpoints).machine, vram, ram))
