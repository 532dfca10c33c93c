"""Under which setting a model comes out best on a machine: the wanted one, or one that takes less memory. Pure.

Owns what is given up, in which order, and for what. Knows nothing of words or of ways out that cost a person anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from offload.assessment import Assessment, Verdict, assess
from offload.machine import Machine
from offload.model import PlannedModel
from offload.profile import Setting
from offload.speed import Rates

__all__ = ["choose", "choose_pinned"]

_SMALLER_UBATCHES = (256, 128)
_EQUAL = 1 + 1e-9


def choose(model: PlannedModel, wanted: Setting, machine: Machine, rates: Rates) -> Assessment:
    """Return what comes of `model` under `wanted`, or under the first setting that helps more.

    Cells beyond one context, which only spare computing prefixes again, go first, for any gain. Attention is not fused
    where that is faster, as on processors. Smaller micro-batches, which slow prompts, and fused attention where it was
    not wanted, only help where the model then lies where it is read fastest, or runs at all: with more memory a plan is
    never slower.
    """
    found = assess(model.profile(wanted), machine, rates)
    for setting in _smaller(wanted):
        if _is_best(found):
            break
        other = assess(model.profile(setting), machine, rates, found.best)
        is_free = setting == replace(wanted, n_cells=setting.n_cells, is_fused=wanted.is_fused and setting.is_fused)
        if (is_free or found.placement is None or _is_fastest(other)) and _rank(other) < _rank(found):
            found = other
    return found


def choose_pinned(
    model: PlannedModel, wanted: Setting, machine: Machine, rates: Rates, gpu_layers: Mapping[str, int]
) -> Assessment:
    """Return what comes of `model` with `gpu_layers` on GPUs, under `wanted` or the first smaller setting that then
    fits; where none does, under the smallest. Raises UsageError for layers that cannot be so."""
    found = assess(model.profile(wanted), machine, rates, gpu_layers=gpu_layers)
    for setting in _smaller(wanted):
        if found.verdict is not Verdict.WONT_RUN:
            break
        other = assess(model.profile(setting), machine, rates, found.best, gpu_layers)
        if other.verdict is not Verdict.WONT_RUN or other.profile.total_bytes < found.profile.total_bytes:
            found = other
    return found


def _smaller(wanted: Setting) -> Iterator[Setting]:
    smaller = replace(wanted, n_cells=wanted.n_ctx)
    if smaller != wanted:
        yield smaller
    if wanted.is_fused and not wanted.kv_types.needs_flash_attention:
        yield replace(smaller, is_fused=False)
    for n_ubatch in _SMALLER_UBATCHES:
        if n_ubatch < wanted.n_ubatch:
            yield replace(smaller, n_ubatch=n_ubatch)
    if not wanted.is_fused:
        yield replace(smaller, is_fused=True)


def _is_best(found: Assessment) -> bool:
    return found.verdict is Verdict.FITS and _is_fastest(found)


def _is_fastest(found: Assessment) -> bool:
    """Whether more memory would not make it faster."""
    if found.placement is None or found.best is None:
        return False
    return found.placement.token_s <= found.best.token_s * _EQUAL


def _rank(found: Assessment) -> tuple[bool, float, int]:
    """The least is the best: it runs, it is fast, it has room to spare. Of what does not run it is the smallest."""
    if found.placement is None:
        return True, found.profile.total_bytes, 0
    return False, found.placement.token_s, found.verdict.rank
