"""The assessment of a model on a machine: does it fit, how fast is it, and how fast would it be with enough memory.
Pure.

Owns the fit level, a placement that the user chose, and the choice between the requested run configuration and smaller
ones: what is reduced, in which order, and for what gain. Independent of words, and of remedies that cost the user
something.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from offload.devices.machine import Machine
from offload.footprint.model import DEFAULT_N_PROMPT, ModelProfile, PlannedModel, RunConfig
from offload.placement.saved_states import planned_state_bytes
from offload.placement.search import (
    Placement,
    Share,
    allocate,
    curve,
    decode_work,
    margin_bytes,
    overfull,
    place,
    prefill_work,
)
from offload.speed.cost_model import Rates, decode_s, prefill_s
from quantizer.system.errors import UsageError

_SAME_SPEED = 0.97  # a plan this near to the best is not called partial
_PLENTY_BYTES = 1 << 60


class FitLevel(StrEnum):
    """From best to worst: all where memory is fastest; the same with little to spare; partly elsewhere; does not
    fit."""

    FITS = "fits"
    TIGHT = "tight"
    PARTIAL = "partial"
    WONT_RUN = "wont_run"

    @property
    def rank(self) -> int:  # 0 for the best
        return list(FitLevel).index(self)


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second of an answer and of a prompt, and the seconds until the first token after 2,048 tokens of
    prompt."""

    decode_tps: float
    prefill_tps: float
    first_token_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """`speed` is None where a device in use has an unknown bandwidth, or where the model does not run. `placement` is
    None where none fits. A manual one may not fit either: the verdict is then WONT_RUN, and shares and speed are those
    with enough memory. `best` is the placement with enough memory, `best_tps` its speed; `curve` has the speeds with 0,
    1, 2 … layers on the fastest GPU. Speeds are missing where a usable GPU has no known bandwidth."""

    verdict: FitLevel
    profile: ModelProfile
    machine: Machine
    placement: Placement | None
    best: Placement | None = None
    shares: tuple[Share, ...] = ()
    speed: Speed | None = None
    best_tps: float | None = None
    curve: tuple[float, ...] = ()
    is_manual: bool = False

    @property
    def decode_tps(self) -> float | None:
        return self.speed.decode_tps if self.speed else None

    def state_bytes(self, max_bytes: int | None = None) -> int:
        """Return as `planned_state_bytes`; 0 where the model does not fit."""
        return planned_state_bytes(self.machine.host, self.shares, max_bytes) if self.placement is not None else 0

    @property
    def is_all_on_gpus(self) -> bool:
        return self.placement is not None and self.placement.n_on_gpus == len(self.profile.layers)


def assess(
    profile: ModelProfile,
    machine: Machine,
    rates: Rates,
    best: Placement | None = None,
    gpu_layers: Mapping[str, int] | None = None,
) -> Assessment:
    """Place the model of `profile` on `machine`, as well as possible or with `gpu_layers` on GPUs, and assess it.
    `best` is the placement with enough memory, where it is known: it depends on nothing that only takes memory. Raises
    UsageError for impossible layers."""
    is_manual = gpu_layers is not None
    placement = (
        place(profile, machine, rates) if gpu_layers is None else _place_manually(profile, machine, rates, gpu_layers)
    )
    if placement is None:
        return Assessment(verdict=FitLevel.WONT_RUN, profile=profile, machine=machine, placement=None)
    shares = allocate(profile, machine, placement)
    if best is None:
        gpus = tuple(replace(gpu, free_bytes=_PLENTY_BYTES) for gpu in machine.gpus)
        best = place(profile, Machine(replace(machine.host, free_bytes=_PLENTY_BYTES), gpus), rates)
    assert best is not None
    is_partial = best.token_s < _SAME_SPEED * placement.token_s
    verdict = FitLevel.PARTIAL if is_partial else _whole(shares, machine)
    found = Assessment(
        verdict=FitLevel.WONT_RUN if is_manual and overfull(shares, machine) else verdict,
        profile=profile,
        machine=machine,
        placement=placement,
        best=best,
        shares=shares,
        is_manual=is_manual,
    )
    in_use = {share.device.name for share in shares if share.read_bytes}
    if not in_use <= rates.known:
        return found
    found = replace(found, speed=_speed(profile, machine, rates, placement, shares))
    if not {name for name, count in zip(best.gpus, best.gpu_layers, strict=True) if count} <= rates.known:
        return found
    steps_s = curve(profile, machine, rates)
    return replace(found, best_tps=1 / best.token_s, curve=tuple(1 / step_s for step_s in steps_s))


def _place_manually(profile: ModelProfile, machine: Machine, rates: Rates, gpu_layers: Mapping[str, int]) -> Placement:
    """Return the placement with `gpu_layers` by GPU name, the output counted as one and the fastest GPU last.
    Raises UsageError where the machine has no such GPU, or the model not so many layers."""
    names, n_layers = [gpu.name for gpu in machine.gpus], len(profile.layers)
    for name, count in gpu_layers.items():
        if name not in names:
            remedy = f"Its GPUs are {', '.join(names)}." if names else "It has no GPU that can be used."
            raise UsageError(f"This machine has no GPU called {name}.", remedy)
        if count < 0:
            raise UsageError(f"{name} cannot have {count} layers.", "Give 0 or more.")
    if sum(gpu_layers.values()) > n_layers:
        raise UsageError(f"{sum(gpu_layers.values())} layers were assigned to GPUs.", f"This model has {n_layers}.")
    wanted = [gpu for gpu in machine.gpus if gpu_layers.get(gpu.name)]
    used = sorted(wanted, key=lambda gpu: (rates.seconds_per_byte[gpu.name], -gpu.free_bytes))
    counts = tuple(gpu_layers[gpu.name] for gpu in used)
    n_devices = len(used) + (sum(counts) < n_layers)
    placement = Placement(
        gpus=tuple(gpu.name for gpu in used), gpu_layers=counts, n_split=0, n_crossings=n_devices - 1, token_s=0.0
    )
    return replace(placement, token_s=decode_s(decode_work(allocate(profile, machine, placement), placement), rates))


def _whole(shares: tuple[Share, ...], machine: Machine) -> FitLevel:
    """Return FITS or TIGHT: FITS leaves twice the margin free on every memory in use."""
    taken_from_host = sum(share.n_bytes for share in shares if share.device.shares_host)
    for share in shares:
        is_shared = share.device.shares_host
        left = machine.host.free_bytes - taken_from_host if is_shared else share.device.free_bytes - share.n_bytes
        if share.n_layers and left < 2 * margin_bytes(share.device):
            return FitLevel.TIGHT
    return FitLevel.FITS


def _speed(
    profile: ModelProfile, machine: Machine, rates: Rates, placement: Placement, shares: tuple[Share, ...]
) -> Speed:
    n_ubatch, n_prompt = profile.run_config.n_ubatch, DEFAULT_N_PROMPT
    token_s = decode_s(decode_work(shares, placement), rates)
    prompt_s = prefill_s(prefill_work(profile, shares, placement), rates, machine.host.name, n_ubatch)
    return Speed(1 / token_s, 1 / prompt_s, n_prompt * prompt_s + token_s)


_SMALLER_UBATCHES = (256, 128)
_EQUAL = 1 + 1e-9


def choose(
    model: PlannedModel, wanted: RunConfig, machine: Machine, rates: Rates, gpu_layers: Mapping[str, int] | None = None
) -> Assessment:
    """Return the assessment of `model` under the `wanted` configuration, or under the first that helps more.

    Cells beyond one context, which only save computing prefixes again, are dropped first, for any gain. Attention is
    not fused where that is faster, as on processors. Smaller micro-batches, which slow prompts down, and fused
    attention where it was not wanted, only count where the model then lies in the fastest memory, or runs at all: with
    more memory a plan is never slower.

    With `gpu_layers` on GPUs the first that fits is taken; the smallest where none does. Raises UsageError for
    impossible layers.
    """
    found = assess(model.profile(wanted), machine, rates, gpu_layers=gpu_layers)
    for run_config in _smaller(wanted, model.min_ubatch):
        if found.is_manual and found.verdict is not FitLevel.WONT_RUN:
            break
        if not found.is_manual and found.verdict is FitLevel.FITS and _is_fastest(found):
            break
        other = assess(model.profile(run_config), machine, rates, found.best, gpu_layers)
        if _is_better(other, found, wanted):
            found = other
    return found


def _smaller(wanted: RunConfig, min_ubatch: int) -> Iterator[RunConfig]:
    smaller = replace(wanted, n_cells=wanted.n_ctx)
    if smaller != wanted:
        yield smaller
    if wanted.is_fused and not wanted.kv_types.needs_flash_attention:
        yield replace(smaller, is_fused=False)
    for n_ubatch in _SMALLER_UBATCHES:
        if min_ubatch <= n_ubatch < wanted.n_ubatch:
            yield replace(smaller, n_ubatch=n_ubatch)
    if not wanted.is_fused:
        yield replace(smaller, is_fused=True)


def _is_better(other: Assessment, found: Assessment, wanted: RunConfig) -> bool:
    run_config = other.profile.run_config
    if found.is_manual:
        return other.verdict is not FitLevel.WONT_RUN or other.profile.total_bytes < found.profile.total_bytes
    is_fused = wanted.is_fused and run_config.is_fused
    is_free = run_config == replace(wanted, n_cells=run_config.n_cells, is_fused=is_fused)
    return (is_free or found.placement is None or _is_fastest(other)) and _rank(other) < _rank(found)


def _is_fastest(found: Assessment) -> bool:
    # more memory would not make it faster
    if found.placement is None or found.best is None:
        return False
    return found.placement.token_s <= found.best.token_s * _EQUAL


def _rank(found: Assessment) -> tuple[bool, float, int]:
    # best first: it runs, it is fast, it has memory to spare; of what does not run, the smallest
    if found.placement is None:
        return True, found.profile.total_bytes, 0
    return False, found.placement.token_s, found.verdict.rank
