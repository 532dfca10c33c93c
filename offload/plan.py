"""A plan: what a model comes to on a machine, what to tell a person, and the ways out. Pure.

Owns what is asked and what is answered. Knows nothing of where a header or a machine's description comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from offload.assessment import Assessment
from offload.choice import choose, choose_pinned
from offload.context import DEFAULT_N_CELLS, DEFAULT_N_CTX
from offload.kv_cache import KvTypes
from offload.machine import Machine
from offload.model import PlannedModel
from offload.profile import DEFAULT_DEPTH, Setting
from offload.remedies import Remedy, remedies_of
from offload.sentences import beyond_training, warnings_of
from offload.speed import Rates

__all__ = ["Plan", "PlanQuestion", "plan", "settled", "told"]

_DEPTH_SHARE = 4  # a speed is told for a quarter of the context: who asks for a long one will not leave it empty


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanQuestion:
    """How a model is wanted. `n_ctx` 0 leaves the context open, `n_cells` 0 how many cells all sequences share.

    `gpu_layers` are layers by names of GPUs, the output counted as one; None leaves them to the planner.
    """

    n_ctx: int = 0
    n_cells: int = 0
    kv_types: KvTypes
    n_sequences: int = 1
    is_fused: bool = True
    gpu_layers: Mapping[str, int] | None = None


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


def plan(
    model: PlannedModel, question: PlanQuestion, machine: Machine, rates: Rates, *, wants_remedies: bool = True
) -> Plan:
    """Plan `model` for `machine`, whose speeds are `rates`. Raises UsageError for a cache that it cannot have, and for
    layers on GPUs that are not there."""
    found = settled(model, question, machine, rates)
    return told(found, model, question, machine, rates, wants_remedies=wants_remedies)


def settled(model: PlannedModel, question: PlanQuestion, machine: Machine, rates: Rates) -> Assessment:
    """Return the best that `model` comes to, without what to tell of it. Raises as `plan` does."""
    wanted = _setting(model, question)
    if question.gpu_layers is not None:
        return choose_pinned(model, wanted, machine, rates, question.gpu_layers)
    return choose(model, wanted, machine, rates)


def told(
    found: Assessment,
    model: PlannedModel,
    question: PlanQuestion,
    machine: Machine,
    rates: Rates,
    *,
    wants_remedies: bool = True,
) -> Plan:
    """Return what was `found` of a model with all that there is to tell of it; looking for ways out takes longest, and
    who asks at every key leaves them out."""
    return Plan(
        setting=found.profile.setting,
        found=found,
        uncertainty=rates.uncertainty,
        warnings=(*warnings_of(found, rates), *beyond_training(found.profile.setting.n_ctx, model.n_ctx_train)),
        remedies=remedies_of(model, _setting(model, question), machine, rates, found) if wants_remedies else (),
    )


def _setting(model: PlannedModel, question: PlanQuestion) -> Setting:
    """Return the sizes that the engine would choose with memory enough."""
    n_ctx = question.n_ctx or min(model.n_ctx_train or DEFAULT_N_CTX, DEFAULT_N_CTX)
    return Setting(
        n_ctx=n_ctx,
        n_cells=question.n_cells or max(n_ctx, min(n_ctx * question.n_sequences, DEFAULT_N_CELLS)),
        kv_types=question.kv_types,
        n_sequences=question.n_sequences,
        depth=min(n_ctx, max(DEFAULT_DEPTH, n_ctx // _DEPTH_SHARE)),
        is_fused=question.is_fused or question.kv_types.needs_flash_attention,
    )
