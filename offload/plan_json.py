"""A plan as one JSON object, for `localllm plan --json` and the service's API. Pure.

Owns the names of its fields. Knows nothing of who reads them.
"""

from __future__ import annotations

from typing import Any

from offload.companions import Extra
from offload.plan import Plan

__all__ = ["plan_json"]


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return the plan as one object; numbers that nobody can know are null, and `extras` are there where any are.

    What extras take is not in the other figures of a device, but for the bytes that lie among its layers.
    """
    found = plan.found
    told: dict[str, Any] = {
        "verdict": found.verdict.value,
        "devices": [
            {
                "name": share.device.name,
                "weights_bytes": share.weight_bytes,
                "kv_bytes": share.cache_bytes,
                "compute_bytes": share.compute_bytes + share.host_bytes,
                "free_bytes": share.device.free_bytes,
                "layers": share.n_layers,
            }
            for share in found.shares
        ],
        "decode_tps": _rounded(found.decode_tps),
        "prefill_tps": _rounded(found.speed.prefill_tps if found.speed else None),
        "curve": [{"gpu_layers": count, "decode_tps": _rounded(tps)} for count, tps in enumerate(found.curve)],
        "warnings": list(plan.warnings),
        "remedies": [
            {"what": remedy.what, "decode_tps": _rounded(remedy.decode_tps), "cost": remedy.cost}
            for remedy in plan.remedies
        ],
    }
    if found.profile.extras:
        told["extras"] = [_extra(extra) for extra in found.profile.extras]
        for device, share in zip(told["devices"], found.shares, strict=True):
            device["extras_bytes"] = share.beside_bytes
    return told


def _extra(extra: Extra) -> dict[str, Any]:
    return {
        "what": extra.what,
        "weights_bytes": extra.weight_bytes,
        "kv_bytes": extra.cache_bytes,
        "compute_bytes": extra.compute_bytes + extra.host_bytes,
    }


def _rounded(tps: float | None) -> float | None:
    return None if tps is None else round(tps, 3)
