"""A scripted stand-in for `app.client.planner.PlannerClient`: same calls, answers that a test gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.client.plan_report import PlanReport, report_of
from app.plan_wish import PlanWish

__all__ = ["PLAN", "ScriptedPlanner"]

_MIB = 1 << 20

# The guide on a processor: the object that the service would answer with.
PLAN: Mapping[str, Any] = {
    "model": "guide",
    "verdict": "fits",
    "setting": {
        "ctx": 2048,
        "cells": 16384,
        "kv_type": "f16",
        "sequences": 8,
        "ubatch": 512,
        "depth": 512,
        "flash_attention": False,
    },
    "layers": 7,
    "devices": [
        {
            "name": "CPU",
            "kind": "cpu",
            "layers": 7,
            "weights_bytes": 9 * _MIB,
            "kv_bytes": 24 * _MIB,
            "compute_bytes": 170 * _MIB,
            "free_bytes": 8192 * _MIB,
            "total_bytes": 16384 * _MIB,
            "bytes_per_s": 20e9,
        }
    ],
    "decode_tps": 900.0,
    "best_tps": 900.0,
    "prefill_tps": 9000.0,
    "first_token_s": 0.2,
    "uncertainty": 0.35,
    "curve": [{"gpu_layers": 0, "decode_tps": 900.0}],
    "warnings": [],
    "remedies": [],
    "gpu_layers": None,
    "n_ctx_train": 2048,
    "kv_types": ["f16", "q8_0"],
    "measured": [],
    "is_full": True,
}


def _guide(_: PlanWish) -> Mapping[str, Any]:
    return PLAN


@dataclass(slots=True)
class ScriptedPlanner:
    """Answers every wish with what `answer` makes of it; `wishes` are those that came, `reloads` those to load so."""

    answer: Callable[[PlanWish], Mapping[str, Any]] = _guide
    wishes: list[PlanWish] = field(default_factory=list)
    reloads: list[PlanWish] = field(default_factory=list)

    async def plan(self, wish: PlanWish) -> PlanReport:
        """Return what the script says."""
        self.wishes.append(wish)
        return report_of(self.answer(wish))

    async def reload(self, wish: PlanWish) -> str:
        """Note the wish, and return the model that it names."""
        self.reloads.append(wish)
        return wish.model or "guide"
