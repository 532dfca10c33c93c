"""The plan of a model on a machine: the placement, warnings and remedies; and predicted speeds at several depths.

Pure but for a dry run of the engine, which is repeated until its compute buffers agree with the placement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from offload.advice.drafts import DraftOffer, Siblings, draft_offers
from offload.advice.remedies import Remedy, find_remedies, plan_warnings
from offload.devices.machine import Machine
from offload.footprint.kv_cache import DEFAULT_N_CELLS, DEFAULT_N_CTX
from offload.footprint.model import DEFAULT_DEPTH, PlannedModel, RunConfig
from offload.placement.assessment import Assessment, FitLevel, assess, choose, supports_lazy_tables
from offload.placement.load_parameters import ON_HOST, LoadParameters, load_parameters
from offload.placement.shares import Share, overfull
from offload.speed.cost_model import Rates
from quantizer.gguf.tensor_types import FILE_TYPES

# A larger table stays in the file though there is memory for it: to load it takes longer than to read its rows
# (`auto_min_size` in src/llama-model-loader.cpp, as vendored in llama-cpp-python 0.3.36).
_LAZY_BYTES = 4 << 30
_DEPTH_SHARE = 4  # speeds are predicted for a quarter of the context: a long one will not stay empty


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementPlan:
    """The best plan: the placement with its `assessment`, warnings, remedies ranked by speed, and what draft models
    would do beside it. Speeds may be off by `uncertainty`, a share of them."""

    run_config: RunConfig
    assessment: Assessment
    uncertainty: float
    warnings: tuple[str, ...]
    remedies: tuple[Remedy, ...]
    drafts: tuple[DraftOffer, ...] = ()


def plan(
    model: PlannedModel,
    requested: RunConfig,
    machine: Machine,
    rates: Rates,
    *,
    wants_remedies: bool = True,
    siblings: Siblings | None = None,
) -> PlacementPlan:
    """Plan `model` as `requested` for `machine`, whose speeds are `rates`; `siblings` finds smaller models that could
    draft for it, and without it no drafts are weighed. Raises UsageError for a cache that the model cannot have, and
    for layers on GPUs that do not exist."""
    found = best_assessment(model, requested, machine, rates)
    return _complete_plan(found, model, requested, rates, siblings, wants_remedies=wants_remedies)


def best_assessment(model: PlannedModel, requested: RunConfig, machine: Machine, rates: Rates) -> Assessment:
    """Return the best assessment of `model`, without warnings and remedies; copies of weights are left out where they
    would leave little memory. Raises as `plan` does."""
    found = choose(model, _resolved(model, requested, machine), machine, rates, requested.gpu_layers)
    if requested.layout.copies and found.verdict is not FitLevel.FITS:
        return best_assessment(model, replace(requested, layout=replace(requested.layout, copies=())), machine, rates)
    return found


def _complete_plan(
    found: Assessment,
    model: PlannedModel,
    requested: RunConfig,
    rates: Rates,
    siblings: Siblings | None,
    *,
    wants_remedies: bool = True,
) -> PlacementPlan:
    # remedies take the longest: interactive callers leave them out
    wanted = _resolved(model, requested, found.machine)
    return PlacementPlan(
        run_config=found.profile.run_config,
        assessment=found,
        uncertainty=rates.uncertainty,
        warnings=tuple(plan_warnings(found, rates, model.n_ctx_train)),
        remedies=find_remedies(model, wanted, rates, found) if wants_remedies else (),
        drafts=draft_offers(model, wanted, found, rates, siblings) if wants_remedies and siblings else (),
    )


def _resolved(model: PlannedModel, requested: RunConfig, machine: Machine) -> RunConfig:
    """Return `requested` with the sizes that the engine would choose with enough memory, for any placement. Beside GPUs
    logits are limited to what a step needs, for memory decides there how many layers fit."""
    n_ctx = requested.n_ctx or min(model.n_ctx_train or DEFAULT_N_CTX, DEFAULT_N_CTX)
    resolved = replace(
        requested,
        n_ctx=n_ctx,
        n_cells=requested.n_cells or max(n_ctx, min(n_ctx * requested.n_sequences, DEFAULT_N_CELLS)),
        depth=min(n_ctx, max(DEFAULT_DEPTH, n_ctx // _DEPTH_SHARE)),
        is_fused=requested.is_fused or requested.kv_types.needs_flash_attention,
        n_outputs=requested.n_outputs or (model.most_outputs(requested.n_sequences) if machine.gpus else 0),
        has_lazy_tables=model.lazy_bytes > _LAZY_BYTES and supports_lazy_tables(machine),
        gpu_layers=None,
    )
    return replace(resolved, n_ubatch=model.bounded_ubatch(resolved))


DryRun = Callable[[RunConfig, LoadParameters], Mapping[str, int]]
"""Returns the compute buffer of each device, by name, for a run configuration and a placement."""

_MAX_ROUNDS = 3
_SCORES_SHARE = 0.7  # of the formula, which is right within 15 %


def dry_plan(
    model: PlannedModel,
    requested: RunConfig,
    machine: Machine,
    rates: Rates,
    dry_run: DryRun,
    siblings: Siblings | None = None,
) -> PlacementPlan:
    """Plan as `plan` does, and compare each placement with a dry run of it; where that takes more, plan again.
    Raises UsageError for a cache that the model cannot have, and what `dry_run` raises."""
    found = best_assessment(model, requested, machine, rates)
    for _ in range(_MAX_ROUNDS):
        measured = dry_run(found.profile.run_config, parameters_of(found))
        if found.placement is not None:
            shares = _measured_shares(found, measured, model.compute_scale)
            is_well = not overfull(shares, machine)
            if is_well or requested.gpu_layers is not None:  # manual placements stay
                verdict = found.verdict if is_well else FitLevel.WONT_RUN
                found = replace(found, shares=shares, verdict=verdict)
                return _complete_plan(found, model, requested, rates, siblings)
        model = _scaled(model, found, measured)
        found = best_assessment(model, requested, machine, rates)
    return _complete_plan(found, model, requested, rates, siblings)


def _measured_shares(found: Assessment, measured: Mapping[str, int], compute_scale: float) -> tuple[Share, ...]:
    """Return the shares of `found` with compute buffers as `measured` by a dry run. Where the cache of GPUs lies with
    the processor, so does attention, but a dry run may leave it to the GPUs: llama.cpp forgets what a graph pins to a
    device (ggml_backend_sched_reserve_size@0.3.36). One without the scores on the processor says nothing; the formula
    counts then, without the `compute_scale` of earlier dry runs."""
    assert found.placement is not None
    taken = {share.device.name: measured.get(share.device.name, 0) for share in found.shares}
    if found.placement.has_cache_on_host:
        computed = {share.device.name: int(share.compute_bytes / compute_scale) for share in found.shares}
        host = found.machine.host.name
        if taken[host] < computed[host] * _SCORES_SHARE:
            taken = computed
    return tuple(replace(share, compute_bytes=taken[share.device.name]) for share in found.shares)


def parameters_of(found: Assessment) -> LoadParameters:
    """Return the parameters that make llama.cpp load as planned; a model that does not fit is left to the processor."""
    if found.placement is None:
        return ON_HOST
    return load_parameters(found.profile, found.machine, found.placement)


def _scaled(model: PlannedModel, found: Assessment, measured: Mapping[str, int]) -> PlannedModel:
    """Return `model` with compute buffers scaled to the device that the formula underestimates most."""
    if found.placement is None:
        return model.measured(found.profile.run_config, sum(measured.values()))
    taken = _measured_shares(found, measured, model.compute_scale)
    pairs = zip(taken, found.shares, strict=True)
    ratios = [after.compute_bytes / before.compute_bytes for after, before in pairs if before.compute_bytes]
    return replace(model, compute_scale=model.compute_scale * max(ratios))


_FILE_TYPES = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_M")  # from the best to the smallest
_WORTH_IT = 1.2  # times as fast


@dataclass(frozen=True, slots=True)
class Prediction:
    """Tokens a second of answers by tokens before them, and of prompts; without unknown speeds.
    A speed of an answer may be off by `uncertainty`, a share of it."""

    decode_tps: Mapping[int, float]
    prefill_tps: float | None
    uncertainty: float


def predict(
    model: PlannedModel, requested: RunConfig, machine: Machine, rates: Rates, depths: Iterable[int]
) -> Prediction:
    """Plan `model` and return how fast it will be behind each of `depths` tokens, with the requested layers on GPUs.
    Raises what `best_assessment` raises."""
    placed = partial(assess, machine=machine, rates=rates, gpu_layers=requested.gpu_layers)
    run_config = best_assessment(model, requested, machine, rates).profile.run_config
    found = {depth: placed(model.profile(replace(run_config, depth=depth))).speed for depth in depths}
    known = {depth: speed for depth, speed in found.items() if speed is not None}
    prefill_tps = next((speed.prefill_tps for speed in known.values()), None)
    return Prediction({depth: speed.decode_tps for depth, speed in known.items()}, prefill_tps, rates.uncertainty)


def faster_quantization(
    model: PlannedModel, requested: RunConfig, machine: Machine, rates: Rates
) -> tuple[str, float] | None:
    """Return the best file type that decodes much faster, and how many times; None where there is none.
    Raises what `best_assessment` raises."""
    placed = partial(assess, machine=machine, rates=rates, gpu_layers=requested.gpu_layers)
    run_config = best_assessment(model, requested, machine, rates).profile.run_config
    now = placed(model.profile(run_config)).decode_tps
    for name in _FILE_TYPES if now else ():
        tps = placed(model.quantized(FILE_TYPES[name]).profile(run_config)).decode_tps
        if now and tps and tps > _WORTH_IT * now:
            return name, tps / now
    return None
