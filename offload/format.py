"""Numbers formatted for plans. Pure."""

from __future__ import annotations

from quantizer.figures import format_speed

_MIB, _GIB = 1 << 20, 1 << 30
_NOTABLE_UNCERTAINTY = 0.2
_MOST_SLOWER, _MOST_FASTER = 0.95, 0.5  # what makes a speed this uncertain is load, which only slows


def format_memory(n_bytes: float) -> str:
    """Return memory: 7.9 GiB, or 512 MiB below one GiB."""
    return f"{n_bytes / _GIB:.1f} GiB" if n_bytes >= _GIB else f"{n_bytes / _MIB:,.0f} MiB"


def format_bandwidth(bytes_per_s: float) -> str:
    """Return bandwidth in decimal gigabytes, as makers count: 936, or 1.8."""
    gigabytes = bytes_per_s / 1e9
    return f"{gigabytes:,.0f}" if gigabytes >= 10 else f"{gigabytes:.1f}"  # of 10 and more tenths say nothing


def format_speed_range(tps: float, uncertainty: float) -> str:
    """Return tokens per second as `format_speed` does, or a range where they may be off by a share that matters."""
    if uncertainty < _NOTABLE_UNCERTAINTY:
        return format_speed(tps)
    low = format_speed(tps * (1 - min(uncertainty, _MOST_SLOWER)))
    high = format_speed(tps * (1 + min(uncertainty, _MOST_FASTER)))
    return low if low == high else f"{low}–{high}"
