"""The assessment of a model on a machine: does it fit, how fast is it, and how fast would it be with enough memory.
Pure.

Owns the fit level, a placement that the user chose, and the choice between the requested run configuration and others:
smaller caches, larger and smaller micro-batches, attention fused or not, each with the placement of the fastest typical
turn. Independent of words, and of remedies that cost the user something.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from offload.devices.machine import Machine
from offload.footprint.model import DEFAULT_N_PROMPT, ModelProfile, PlannedModel, RunConfig
from offload.placement.saved_states import planned_state_bytes
from offload.placement.search import curve, place, with_prompts
from offload.placement.shares import (
    Placement,
    Share,
    allocate,
    fetched_weight_bytes,
    margin_bytes,
    overfull,
    seconds_of,
    turn_of,
)
from offload.speed.cost_model import Rates
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
    1, 2 … layers on the fastest GPU. Speeds are missing where a usable GPU has no known bandwidth. `runner_up` is the
    next best of the choice, with other layers on GPUs, micro-batches or another device for prompts; None where nothing
    was weighed."""

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
    runner_up: Assessment | None = None

    @property
    def turn_s(self) -> float | None:
        """The seconds of a typical turn; None where the speed is unknown."""
        if self.placement is None or self.speed is None:
            return None
        return turn_of(self.profile).seconds(1 / self.speed.prefill_tps, 1 / self.speed.decode_tps)

    @property
    def fetched_bytes(self) -> int:
        """The weights that a GPU fetches for each micro-batch of a prompt; 0 where the processor computes with them."""
        if self.placement is None or not self.placement.prompt_gpu:
            return 0
        (host,) = (share for share in self.shares if share.device.name == self.machine.host.name)
        return fetched_weight_bytes(self.profile, host)

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
    is_partial = best.token_s < _SAME_SPEED * placement.token_s  # smaller micro-batches leave all where it was
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
    prompt_s, token_s = seconds_of(profile, machine, rates, shares, placement)
    found = replace(found, speed=Speed(1 / token_s, 1 / prompt_s, DEFAULT_N_PROMPT * prompt_s + token_s))
    if not best.layers_by_gpu.keys() <= rates.known:
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
    return with_prompts(profile, machine, rates, placement)


def _whole(shares: tuple[Share, ...], machine: Machine) -> FitLevel:
    """Return FITS or TIGHT: FITS leaves twice the margin free on every memory in use."""
    taken_from_host = sum(share.n_bytes for share in shares if share.device.shares_host)
    for share in shares:
        is_shared = share.device.shares_host
        left = machine.host.free_bytes - taken_from_host if is_shared else share.device.free_bytes - share.n_bytes
        if share.n_layers and left < 2 * margin_bytes(share.device):
            return FitLevel.TIGHT
    return FitLevel.FITS


_LARGER_UBATCHES, _SMALLER_UBATCHES = (2048, 1024), (256, 128)
_EQUAL = 1 + 1e-9


def choose(
    model: PlannedModel, wanted: RunConfig, machine: Machine, rates: Rates, gpu_layers: Mapping[str, int] | None = None
) -> Assessment:
    """Return the assessment of `model` under the `wanted` configuration, or under another with a faster typical turn.

    Layers, parts that stay with the processor, cells, the micro-batch and whether attention is fused are one choice.
    Each micro-batch fetches the processor's weights once, so larger ones make prompts faster and leave less memory for
    layers; they are tried where a GPU fetches, and elsewhere change little. Cells beyond one context, which only save
    computing prefixes again, are dropped for any gain. On a processor alone micro-batches are those that were measured,
    smaller ones only where the model runs at all by them. The type of the cache changes answers, and is never chosen.

    With `gpu_layers` on GPUs the first that fits is taken; the smallest where none does. Raises UsageError for
    impossible layers.
    """
    found = assess(model.profile(wanted), machine, rates, gpu_layers=gpu_layers)
    others: list[Assessment] = []
    for run_config in _others(model, wanted, machine):
        if found.is_manual and found.verdict is not FitLevel.WONT_RUN and not _fetches(found):
            break
        if not found.is_manual and found.verdict is FitLevel.FITS and _is_fastest(found):
            break
        other = assess(model.profile(run_config), machine, rates, found.best, gpu_layers)
        if run_config.n_ubatch > wanted.n_ubatch and not _fetches(other):
            continue
        if _is_better(other, found, wanted):
            found, other = other, found
        others.append(other)
    different = (other for other in others if other.placement is not None and _what(other) != _what(found))
    return replace(found, runner_up=min(different, key=_rank, default=None))


def _what(found: Assessment) -> tuple[object, ...]:
    """Return what distinguishes a choice: sizes of the cache alone do not."""
    at = found.placement
    assert at is not None
    layers = tuple(at.layers_by_gpu.items())
    n_split = at.n_split if layers else 0
    return layers, n_split, at.has_cache_on_host, at.prompt_gpu, found.profile.run_config.n_ubatch


def _others(model: PlannedModel, wanted: RunConfig, machine: Machine) -> Iterator[RunConfig]:
    """Yield the configurations beside `wanted`, those first that cost less. Tables whose rows are read from the file
    cost a page fault for each new token, where memory is short in any case."""
    if not wanted.has_lazy_tables and model.lazy_bytes and supports_lazy_tables(machine):
        lazy = replace(wanted, has_lazy_tables=True)
        yield lazy
        yield from _other_sizes(model, wanted, machine)
        wanted = lazy
    yield from _other_sizes(model, wanted, machine)


def supports_lazy_tables(machine: Machine) -> bool:
    """Return whether llama.cpp may leave tables in the file: not beside a GPU that shares the processor's memory, of
    which some cannot use a mapped file. Source: `mmap_support` in ggml/src/ggml-cuda/ggml-cuda.cu and
    ggml-vulkan/ggml-vulkan.cpp, as vendored in llama-cpp-python 0.3.36."""
    return not any(gpu.shares_host for gpu in machine.gpus)


def _other_sizes(model: PlannedModel, wanted: RunConfig, machine: Machine) -> Iterator[RunConfig]:
    attention = [wanted.is_fused] if wanted.kv_types.needs_flash_attention else [wanted.is_fused, not wanted.is_fused]
    larger = [n for n in _LARGER_UBATCHES if machine.gpus and wanted.n_ubatch < n <= model.max_ubatch]
    smaller = [n for n in _SMALLER_UBATCHES if model.min_ubatch <= n < wanted.n_ubatch]
    for is_fused in attention:
        for n_cells in dict.fromkeys((wanted.n_cells, wanted.n_ctx)):
            for n_ubatch in (wanted.n_ubatch, *larger, *(smaller if n_cells == wanted.n_ctx else ())):
                run_config = replace(wanted, n_cells=n_cells, is_fused=is_fused, n_ubatch=n_ubatch)
                is_doubtful = not machine.gpus and is_fused is not wanted.is_fused  # one change at a time
                if is_doubtful and (n_cells != wanted.n_ctx or n_ubatch != wanted.n_ubatch):
                    continue
                if run_config == wanted or (n_ubatch in larger and model.bounded_ubatch(run_config) != n_ubatch):
                    continue
                yield run_config


def _fetches(found: Assessment) -> bool:
    return found.placement is not None and bool(found.placement.prompt_gpu)


def _is_better(other: Assessment, found: Assessment, wanted: RunConfig) -> bool:
    run_config = other.profile.run_config
    if found.is_manual:
        if found.verdict is FitLevel.WONT_RUN:
            return other.verdict is not FitLevel.WONT_RUN or other.profile.total_bytes < found.profile.total_bytes
        return other.verdict is not FitLevel.WONT_RUN and _rank(other) < _rank(found)
    is_kept = run_config.n_ubatch == wanted.n_ubatch and wanted.is_fused >= run_config.is_fused
    is_free = is_kept or bool(other.machine.gpus)
    return (is_free or found.placement is None) and _rank(other) < _rank(found)


def _is_fastest(found: Assessment) -> bool:
    # more memory would not make it faster
    if found.placement is None or found.best is None:
        return False
    return found.placement.turn_s <= found.best.turn_s * _EQUAL


def _rank(found: Assessment) -> tuple[bool, float, int]:
    # Best first: it runs, its turn is fast, it has memory to spare, for which it may be a little slower; of what does
    # not run, the smallest.
    if found.placement is None:
        return True, found.profile.total_bytes, 0
    turn_s = found.placement.turn_s
    return False, turn_s / _SAME_SPEED if found.verdict is FitLevel.TIGHT else turn_s, found.verdict.rank
