"""A plan: what a model comes to on a machine, what to tell a person, and the ways out. Pure.

Owns what is asked and what is answered. Knows nothing of where a header or a machine's description comes from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from offload.assessment import Assessment, Verdict, assess
from offload.context import DEFAULT_N_CELLS, DEFAULT_N_CTX
from offload.kv_cache import KvTypes
from offload.machine import Machine
from offload.model import PlannedModel
from offload.profile import DEFAULT_DEPTH, Setting
from offload.remedies import Remedy, remedies_of
from offload.sentences import warnings_of
from offload.speed import Rates

__all__ = ["Plan", "PlanQuestion", "plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanQuestion:
    """How a model is wanted. `n_ctx` 0 leaves the context open, `n_cells` 0 how many cells all sequences share."""

    n_ctx: int = 0
    n_cells: int = 0
    kv_types: KvTypes
    n_sequences: int = 1
    is_fused: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The best there is: where everything goes (`found`), sentences to be told, ways out ranked by speed.

    A speed may be off by `uncertainty`, a share of it.
    """

    setting: Setting
    found: Assessment
    uncertainty: float
    warnings: tuple[str, ...]
    remedies: tuple[Remedy, ...]


def plan(model: PlannedModel, question: PlanQuestion, machine: Machine, rates: Rates) -> Plan:
    """Plan `model` for `machine`, whose speeds are `rates`. Raises UsageError for a cache that the model cannot have.

    Cells beyond one context, which only spare computing prefixes again, are given up first where memory is short.
    """
    setting = _setting(model, question)
    found = assess(model.profile(setting), machine, rates)
    if found.verdict is not Verdict.FITS and setting.n_cells > setting.n_ctx:
        smaller = replace(setting, n_cells=setting.n_ctx)
        other = assess(model.profile(smaller), machine, rates)
        is_better = (other.verdict.rank, -(other.decode_tps or 0.0)) < (found.verdict.rank, -(found.decode_tps or 0.0))
        if is_better or found.verdict is Verdict.WONT_RUN:
            setting, found = smaller, other
    return Plan(
        setting=setting,
        found=found,
        uncertainty=rates.uncertainty,
        warnings=warnings_of(found, rates),
        remedies=remedies_of(model, setting, machine, rates, found),
    )


def _setting(model: PlannedModel, question: PlanQuestion) -> Setting:
    """Return the sizes that the engine would choose with memory enough."""
    n_ctx = question.n_ctx or min(model.n_ctx_train or DEFAULT_N_CTX, DEFAULT_N_CTX)
    return Setting(
        n_ctx=n_ctx,
        n_cells=question.n_cells or max(n_ctx, min(n_ctx * question.n_sequences, DEFAULT_N_CELLS)),
        kv_types=question.kv_types,
        n_sequences=question.n_sequences,
        depth=min(n_ctx, DEFAULT_DEPTH),
        is_fused=question.is_fused or question.kv_types.needs_flash_attention,
    )
