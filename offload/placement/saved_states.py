"""The memory of chats that left the cache and can come back: at most how much, by plan and at each moment. Pure.

Their states are the first to go when memory is short, since they are on disk too. So no model has to make way for them,
and plans name them apart from what a model needs.
"""

from __future__ import annotations

from collections.abc import Iterable

from offload.devices.machine import Device
from offload.placement.shares import Share, margin_bytes

_MEMORY_SHARE = 3  # a third of the memory, wherever that much is free
_LEFT_SHARE = 2  # as much as they take is left to other programs
# Of the last ten seconds: below it programs wait for a page now and then, which reading a large file does too.
STALLED_SHARE = 0.05


def planned_state_bytes(host: Device, shares: Iterable[Share], max_bytes: int | None = None) -> int:
    """Return the most memory that saved states may take beside a model with `shares`: half of what it leaves free. Of
    `max_bytes`, where models may take no more, they get what the model leaves."""
    model_bytes = sum(share.n_bytes for share in shares if share.device.shares_host)
    left_bytes = (host.free_bytes - margin_bytes(host) - model_bytes) // _LEFT_SHARE
    if max_bytes is not None:
        left_bytes = min(left_bytes, max_bytes - model_bytes)
    return max(0, min(host.total_bytes // _MEMORY_SHARE, left_bytes))


def state_limit_bytes(held_bytes: int, planned_bytes: int, free_bytes: int, margin: int, stalled_share: float) -> int:
    """Return how much memory saved states may take now, of which they hold `held_bytes`, with `free_bytes` free beside
    them. Where programs were stalled for `stalled_share` of the time they give back half at once, and half of the rest
    at the next look."""
    if stalled_share > STALLED_SHARE:
        return min(planned_bytes, held_bytes // 2)
    return max(0, min(planned_bytes, (held_bytes + free_bytes - margin) // _LEFT_SHARE))
