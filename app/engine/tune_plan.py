"""Which settings are worth measuring, and how thoroughly. Pure.

All combinations would take hours, and most differ in one thing only: attention and repacking are tried together, then
everything else one at a time around the best of those. Knows nothing of how a speed is measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.engine.tuning import Setting, with_kv_type

__all__ = ["QUICK", "THOROUGH", "Effort", "first_settings", "refinements"]

_UBATCHES = (128, 256)  # beside the default: smaller ones take less memory, and on some machines no more time
_KV_TYPES = ("q8_0", "q4_0")  # what they cost is shown; a person chooses


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured under each setting: runs of each step, tokens of prefill, depths and step sizes."""

    n_repeats: int
    n_prefill: int
    depths: tuple[int, ...]
    step_sizes: tuple[int, ...]


THOROUGH = Effort(n_repeats=3, n_prefill=512, depths=(0, 512, 1792), step_sizes=(2, 4, 8, 15, 16, 17, 31, 32))
QUICK = Effort(n_repeats=2, n_prefill=96, depths=(0, 512, 1792), step_sizes=(4, 16))  # 1B on 2 cores: 5 s a setting


def first_settings(n_threads: int, *, extra_buffers_are_safe: bool) -> list[Setting]:
    """Return every combination of attention and repacking, those that share loaded weights one after the other."""
    repacking = [False, True] if extra_buffers_are_safe else [False]
    return [Setting(n_threads, flash, repacked) for repacked in repacking for flash in (False, True)]


def refinements(best: Setting, n_processors: int) -> list[Setting]:
    """Return the neighbours of `best`, one thing changed in each; how many they are depends on its threads only."""
    threads = sorted({max(1, best.n_threads // 2), n_processors} - {best.n_threads})
    return [
        *(replace(best, n_threads=n_threads) for n_threads in threads),
        *(replace(best, n_ubatch=n_ubatch) for n_ubatch in _UBATCHES),
        *(with_kv_type(best, kv_type) for kv_type in _KV_TYPES),
    ]
