"""A plan as one JSON object, for `localllm plan --json` and the service's API. Pure.

Owns the names of its fields. Knows nothing of who reads them.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from offload.companions import Extra
from offload.plan import Plan
from offload.profile import Setting
from offload.remedies import Remedy

__all__ = ["plan_json"]


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return the plan as one object; numbers that nobody can know are null, and `extras` are there where any are.

    What extras take is not in the other figures of a device, but for the bytes that lie among its layers. `change` of a
    remedy is what a program can set to follow it, empty where that is no setting.
    """
    found, speed = plan.found, plan.found.speed
    told: dict[str, Any] = {
        "verdict": found.verdict.value,
        "setting": _setting(plan.setting),
        "layers": len(found.profile.layers),
        "devices": [
            {
                "name": share.device.name,
                "weights_bytes": share.weight_bytes,
                "kv_bytes": share.cache_bytes,
                "compute_bytes": share.compute_bytes + share.host_bytes,
                "free_bytes": share.device.free_bytes,
                "total_bytes": share.device.total_bytes,
                "bytes_per_s": share.device.bytes_per_s,
                "kind": share.device.kind.value,
                "description": share.device.description,
                "layers": share.n_layers,
            }
            for share in found.shares
        ],
        "decode_tps": _rounded(found.decode_tps),
        "best_tps": _rounded(found.best_tps),
        "prefill_tps": _rounded(speed.prefill_tps if speed else None),
        "first_token_s": _rounded(speed.first_token_s if speed else None),
        "uncertainty": round(plan.uncertainty, 3),
        "curve": [{"gpu_layers": count, "decode_tps": _rounded(tps)} for count, tps in enumerate(found.curve)],
        "warnings": list(plan.warnings),
        "remedies": [_remedy(remedy) for remedy in plan.remedies],
    }
    if found.profile.extras:
        told["extras"] = [_extra(extra) for extra in found.profile.extras]
        for device, share in zip(told["devices"], found.shares, strict=True):
            device["extras_bytes"] = share.beside_bytes
    return told


def _setting(setting: Setting) -> dict[str, Any]:
    return {
        "ctx": setting.n_ctx,
        "cells": setting.n_cells,
        "kv_type": str(setting.kv_types),
        "sequences": setting.n_sequences,
        "ubatch": setting.n_ubatch,
        "depth": setting.depth,
        "flash_attention": setting.is_fused,
    }


def _remedy(remedy: Remedy) -> dict[str, Any]:
    return {
        "what": remedy.what,
        "decode_tps": _rounded(remedy.decode_tps),
        "cost": remedy.cost,
        "change": {name: value for name, value in asdict(remedy.change).items() if value},
    }


def _extra(extra: Extra) -> dict[str, Any]:
    return {
        "what": extra.what,
        "weights_bytes": extra.weight_bytes,
        "kv_bytes": extra.cache_bytes,
        "compute_bytes": extra.compute_bytes + extra.host_bytes,
    }


def _rounded(tps: float | None) -> float | None:
    return None if tps is None else round(tps, 3)
