"""The plan of a load: sizes of the context, runtime settings, where layers go, and whether to load at all.

`offload` decides; here are the numbers that it gets: settings, header, the devices of this process, and compute buffers
from a dry run in a child (`python -m app.engine.load.planner`, with a DryRunRequest on stdin), since llama.cpp may
crash on a strange file. Native code is imported when called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from app.engine.backend import MemoryShortError
from app.engine.load.machine import check_reachable, detect_machine, known_speeds
from app.engine.load.machine_file import MachineFile, model_key, this_build
from app.engine.load.run_history import fitted_rates
from app.engine.load.type_tables import copies_here
from app.engine.messages import EngineConfig, UnfitPolicy
from app.engine.model_task import TaskProgress, run_task, serve_task
from app.engine.tuning.tune_results import RuntimeSettings, default_setting, usual_plain_from
from app.protocol.codec import decode_checked, encode
from app.protocol.errors import UnfitError
from app.settings.settings import Settings
from offload.advice.remedies import fit_summary
from offload.devices.gpus import ListedGpu
from offload.devices.host import host_memory
from offload.devices.machine import Machine
from offload.footprint.auxiliary_models import NO_AUXILIARY_MODELS, AuxiliaryModels, AuxiliaryUsage, PlannedProjector
from offload.footprint.kv_cache import (
    MIN_N_CTX,
    ContextRequest,
    bytes_per_cell,
    check_kv_types,
    n_cached_sequences,
    n_window_cells,
    parse_kv_types,
    plan_context,
)
from offload.footprint.model import PlannedModel, RunConfig
from offload.format import format_memory
from offload.placement.assessment import Assessment, FitLevel
from offload.placement.load_parameters import (
    ON_HOST,
    DeviceUsage,
    ExcessUsage,
    LoadParameters,
    excess_usage,
    missing_gpus,
    partial_gpus,
    with_reserved,
)
from offload.placement.shares import Share
from offload.plan import DryRun, PlacementPlan, dry_plan, parameters_of, plan
from offload.speed.cost_model import Rates, expected_rates
from quantizer.figures import format_speed
from quantizer.gguf.header import Header, read_header
from quantizer.gguf.layer_caches import kv_shape_of, layer_caches_of
from quantizer.gguf.validation import shard_paths, tensors_of
from quantizer.system.errors import EngineError

_MAX_REMEDIES = 3
_STEP_DOWN = 0.85  # share of the GPUs' free memory to plan with after a load that failed
Loaded = TypeVar("Loaded")


def size_context(config: EngineConfig, header: Header, *, is_on_host: bool) -> tuple[EngineConfig, str]:
    """Return `config` with context and cells chosen, and a notice for the user or "". The memory for the cache is only
    known when it `is_on_host`. Raises UsageError for cache types that this model cannot have, EngineError for a context
    that does not fit."""
    types, shape, caches = parse_kv_types(config.kv_type), kv_shape_of(header), layer_caches_of(header)
    check_kv_types(types, shape)
    windowed = [layer for layer in caches.layers if layer.is_windowed]
    plan = plan_context(
        ContextRequest(
            n_ctx=config.n_ctx,
            n_ctx_train=header.integer(f"{header.architecture}.context_length") or 0,
            n_sequences=config.n_sequences,
            bytes_per_cell=bytes_per_cell(types, shape),
            weight_bytes=sum(path.stat().st_size for path in shard_paths(header)),
            free_bytes=host_memory().free_bytes if is_on_host else None,
            windowed_bytes_per_cell=types.n_bytes(
                sum(layer.k_elements for layer in windowed), sum(layer.v_elements for layer in windowed)
            ),
            n_windowed_cells=n_window_cells(caches, n_cached_sequences(caches, config.n_sequences)),
        )
    )
    return replace(config, n_ctx=plan.n_ctx, n_cells=plan.n_cells, kv_type=str(types)), plan.notice


def check_fit(plan: PlacementPlan, when_unfit: UnfitPolicy) -> str:
    """Return the warning to give before `plan` is loaded, "" when the whole model fits. Raises UnfitError when the user
    has to agree first, EngineError when nobody can be asked and it is too large."""
    level, machine = plan.assessment.verdict, plan.assessment.machine
    is_too_large = level is FitLevel.WONT_RUN and (bool(machine.gpus) or _exceeds_memory(plan.assessment))
    if level is not FitLevel.PARTIAL and not is_too_large:
        return ""
    texts = [
        remedy.what + (f" ({format_speed(remedy.decode_tps)} tok/s)" if remedy.decode_tps is not None else "")
        for remedy in plan.remedies[:_MAX_REMEDIES]
    ]
    cause, remedy = plan.warnings[0], f"What would help: {'; '.join(texts)}." if texts else ""
    if when_unfit is UnfitPolicy.ASK:
        raise UnfitError(cause, remedy)
    if is_too_large and when_unfit is not UnfitPolicy.LOAD:
        raise EngineError(cause, f"{remedy} Or load it anyway with --yes.".lstrip())
    return cause


def _exceeds_memory(found: Assessment) -> bool:
    """Return whether the model is larger than free memory, so that its file is read from disk again and again."""
    n_bytes = found.profile.total_bytes - found.profile.host_bytes  # with what is beside the model
    return n_bytes > found.machine.host.free_bytes


def requested_config(settings: Settings, machine: Machine, *, is_here: bool) -> RunConfig:
    """Return the run configuration that `settings` request on `machine`, this one if it `is_here`, with fused attention
    on GPUs. Raises UsageError."""
    config = EngineConfig(n_ctx=settings.ctx, kv_type=settings.kv_type, n_sequences=settings.parallel)
    has_gpu, plain_from = bool(machine.gpus), usual_plain_from()
    has_copies = is_here and settings.weight_copies
    copies = copies_here(settings.cache_dir, settings.threads, is_repacked=True) if has_copies else {}
    setting = default_setting(
        1, has_gpu=has_gpu, extra_buffers_are_safe=True, plain_from=plain_from, copies=tuple(sorted(copies.items()))
    )
    return replace(requested_run(config, is_fused=setting.flash_attention), layout=setting.layout)


def requested_run(config: EngineConfig, *, is_fused: bool) -> RunConfig:
    """Return the run configuration that `config` requests of the planner. Raises UsageError."""
    return RunConfig(
        n_ctx=config.n_ctx,
        n_cells=config.n_cells,
        kv_types=parse_kv_types(config.kv_type),
        n_sequences=config.n_sequences,
        is_fused=is_fused,
        n_outputs=config.n_batch,  # of who scores texts; 0 leaves it to the plan
        gpu_layers=config.gpu_layers,
    )


@dataclass(frozen=True, slots=True)
class LoadAttempt:
    config: EngineConfig
    setting: RuntimeSettings
    plan: PlacementPlan

    @property
    def parameters(self) -> LoadParameters:
        return parameters_of(self.plan.assessment)

    @property
    def is_all_on_gpus(self) -> bool:
        return self.plan.assessment.is_all_on_gpus

    @property
    def reads_from_disk(self) -> bool:
        """Whether the processor has all layers, in the pages of a file that is larger than its memory."""
        return not self.parameters.devices and _exceeds_memory(self.plan.assessment)

    @property
    def projector_device(self) -> str:
        """The GPU that the projector is planned for, the first with layers; empty for the processor, or without one."""
        usage, placement = self._projector_usage, self.plan.assessment.placement
        if usage is None or not usage.beside_bytes or placement is None or not placement.n_on_gpus:
            return ""
        counts = zip(placement.gpus, placement.gpu_layers, strict=True)
        return next(name for name, count in counts if count)

    @property
    def shares(self) -> tuple[Share, ...]:
        """What each device gets; empty when that is unknown."""
        return self.plan.assessment.shares

    @property
    def shares_without_projector(self) -> tuple[Share, ...]:
        device, usage = self.projector_device, self._projector_usage
        n_bytes = usage.beside_bytes if usage else 0
        return tuple(
            replace(share, beside_bytes=share.beside_bytes - n_bytes) if share.device.name == device else share
            for share in self.shares
        )

    @property
    def _projector_usage(self) -> AuxiliaryUsage | None:
        return next((extra for extra in self.plan.assessment.profile.extras if extra.projector), None)


@dataclass(frozen=True, slots=True)
class LoadPlanner:
    """Plans loads of `model` on `machine`; `excess` is what the last load took beyond its plan."""

    model: PlannedModel
    machine: Machine
    dry_run: DryRun
    excess: ExcessUsage
    rates_of: Callable[[Machine], Rates] = expected_rates

    def attempt(self, config: EngineConfig, setting: RuntimeSettings) -> LoadAttempt:
        """Return how to load with `config`, whose context is chosen, and `setting`. Where layers go to a GPU the plan
        decides the cells and how they are computed; without, everything stays as measured, but for a micro-batch whose
        attention scores would take too much memory. Raises UsageError for a KV cache that the model cannot have."""
        machine = with_reserved(self.machine, self.excess)
        requested = replace(requested_run(config, is_fused=setting.flash_attention), layout=setting.layout)
        of_setting = replace(requested, n_ubatch=setting.n_ubatch)
        rates = self.rates_of(machine)
        found = dry_plan(self.model, requested, machine, rates, self.dry_run) if machine.gpus else None
        parameters = parameters_of(found.assessment) if found else ON_HOST
        if found is None or not parameters.devices:
            chosen = plan(self.model, of_setting, machine, rates)
            if parameters_of(chosen.assessment).devices:  # the formula's placement, which the dry run refused
                full = tuple(replace(gpu, free_bytes=0) for gpu in machine.gpus)
                chosen = plan(self.model, of_setting, Machine(machine.host, full), rates)
            copies = chosen.run_config.layout.copies
            setting = replace(setting, n_ubatch=self.model.bounded_ubatch(of_setting), copies=copies)
            if _exceeds_memory(chosen.assessment):  # repacked weights are no pages of the file, which can be dropped
                setting = replace(setting, extra_buffers=False, plain_from=0)
            return LoadAttempt(config, setting, chosen)
        setting = replace(
            setting,
            copies=(),
            flash_attention=found.run_config.is_fused,
            n_ubatch=found.run_config.n_ubatch,
            n_threads=config.n_threads or parameters.n_threads or setting.n_threads,
        )
        return LoadAttempt(replace(config, n_cells=found.run_config.n_cells), setting, found)

    def smaller(self, attempt: LoadAttempt, *, may_shorten: bool) -> LoadAttempt | None:
        """Return how to load with less memory after `attempt` failed, None when nothing is left to reduce. GPUs get
        less, even of what the user chose, and the processor the rest. Without GPUs the context is halved, if it
        `may_shorten` and is long enough; else answers get the cells of one context together."""
        if attempt.parameters.devices:
            gpus = tuple(replace(gpu, free_bytes=int(_STEP_DOWN * gpu.free_bytes)) for gpu in self.machine.gpus)
            tighter = replace(self, machine=Machine(self.machine.host, gpus))
            return tighter.attempt(replace(attempt.config, gpu_layers=None), attempt.setting)
        n_ctx = attempt.config.n_ctx // 2
        if not may_shorten or n_ctx < MIN_N_CTX:
            n_ctx = attempt.config.n_ctx
            if attempt.config.n_cells <= n_ctx:
                return None
        return self.attempt(replace(attempt.config, n_ctx=n_ctx, n_cells=n_ctx), attempt.setting)


def load_within_memory(
    planner: LoadPlanner,
    attempt: LoadAttempt,
    load: Callable[[LoadAttempt], Loaded],
    on_notice: Callable[[str], None],
    *,
    may_shorten: bool,
) -> tuple[Loaded, LoadAttempt]:
    """Load `attempt`; when memory is too small, load a smaller one and say so. Return what was loaded, and how. Raises
    EngineError with the numbers when that fails too."""
    try:
        return load(attempt), attempt
    except MemoryShortError as error:
        smaller = planner.smaller(attempt, may_shorten=may_shorten)
        if smaller is None:
            raise _too_large(attempt) from error
        summary = f"a context of {smaller.config.n_ctx:,} tokens"
        if smaller.parameters.devices:
            summary = f"{fit_summary(smaller.plan.assessment)}, {summary}"
        on_notice(f"Memory was too small for the plan, so the model is loaded with less: {summary}.")
    try:
        return load(smaller), smaller
    except MemoryShortError as error:
        raise _too_large(smaller) from error


def _too_large(attempt: LoadAttempt) -> EngineError:
    """Return the error with what is needed and what is free; llama.cpp's own message names a single buffer."""
    host, profile = attempt.plan.assessment.machine.host, attempt.plan.assessment.profile
    planned = [(share.device, share.n_bytes) for share in attempt.shares if share.n_bytes]
    needs = planned or [(host, profile.total_bytes)]
    texts = [
        f"the model needs {format_memory(n_bytes)} on {device.name} and may use {format_memory(device.free_bytes)}"
        for device, n_bytes in needs
    ]
    beyond = ""
    if all(n_bytes <= device.free_bytes for device, n_bytes in needs):
        beyond = ", but llama.cpp takes more than was planned"
    return EngineError(
        f"Not enough memory: {', '.join(texts)}{beyond}.",
        "Close programs that take memory, raise a limit such as `ulimit -v`, use a smaller --ctx, or a smaller "
        "quantization.",
    )


def _projector_key(planned: PlannedProjector) -> str:
    """Return the key of a projector among the records of loads: equal files exceed their plan by as much."""
    return f"projector {planned.name} {planned.n_bytes}"


class LoadDevices:
    """The devices that this process may load onto. `cache_dir` contains the records of earlier loads."""

    def __init__(self, config: EngineConfig, cache_dir: Path) -> None:
        """Add the RPC servers of `config`. Raises EngineError for one that does not answer or has no device."""
        from app.engine import llama

        check_reachable(config.rpc)
        llama.add_rpc_servers(config.rpc)
        self._uses_gpu = config.uses_gpu
        self._rates_of = partial(fitted_rates, cache_dir=cache_dir, n_threads=config.n_threads)
        self._cache_dir = cache_dir
        self._excess = MachineFile(cache_dir / "loads.json", this_build())

    @property
    def has_gpu(self) -> bool:
        return bool(self._gpus())

    def planner(
        self, path: Path, header: Header, key: str, auxiliary: AuxiliaryModels = NO_AUXILIARY_MODELS
    ) -> LoadPlanner:
        """Return a planner for the model at `path` in the memory that is free now; `key` is its fingerprint. It
        reserves memory for the `auxiliary` models, which are loaded later."""
        from app.engine import llama

        machine = detect_machine(self._gpus(is_measured=True), self._cache_dir)
        if auxiliary.projector is not None:
            kept = self._known_excess(_projector_key(auxiliary.projector))
            projector = replace(auxiliary.projector, excess_bytes=max(kept.gpu_bytes, kept.host_bytes))
            auxiliary = replace(auxiliary, projector=projector)
        model = PlannedModel(header, tensors_of(header), auxiliary=auxiliary)
        excess = self._known_excess(key)
        return LoadPlanner(model, machine, partial(llama.dry_compute_bytes, path), excess, self._rates_of)

    def _known_excess(self, key: str) -> ExcessUsage:
        try:
            return decode_checked(ExcessUsage, self._excess.entry(key))
        except ValueError:  # damaged, or written by another version: what the next load takes is stored again
            return ExcessUsage()

    def attempt(self, header: Header, config: EngineConfig, setting: RuntimeSettings) -> LoadAttempt:
        """Return how to load the model with `header` in the memory that is free now."""
        return self.planner(header.path, header, model_key(header.path)).attempt(config, setting)

    def parameters(self, path: Path, config: EngineConfig, setting: RuntimeSettings) -> LoadParameters:
        return self.attempt(read_header(path), config, setting).parameters if self.has_gpu else ON_HOST

    def check_load(self, attempt: LoadAttempt, usage: Mapping[str, DeviceUsage], key: str) -> tuple[str, ...]:
        """Store how far the `usage` of the model `key` exceeds its plan, both without a projector, for the next plan.
        Return a sentence for each GPU that could not hold a part of its weights. Raises EngineError when a planned GPU
        got nothing."""
        if missing := missing_gpus(attempt.shares, usage):
            cause = f"The plan puts layers on {', '.join(missing)}, but none were loaded there."
            raise EngineError(cause, "See `localllm doctor`; to use the processor alone, set gpu to false.")
        if attempt.shares:
            self._excess.update(key, encode(excess_usage(attempt.shares_without_projector, usage)))
        planned = {share.device.name: share.weight_bytes for share in attempt.shares}
        return tuple(
            f"{name} holds {format_memory(usage[name].weight_bytes)} of the {format_memory(planned[name])} of weights "
            "planned for it: its driver does not take tensors as large as some, and the processor computes with these."
            for name in partial_gpus(attempt.shares, usage)
        )

    def check_projector(self, planned: PlannedProjector, compute_bytes: int) -> None:
        """Compare the compute buffers of a loaded projector with its plan, and store the excess for the next plan."""
        excess = max(0, compute_bytes - planned.compute_bytes)
        self._excess.update(_projector_key(planned), encode(ExcessUsage(host_bytes=excess)))

    def _gpus(self, *, is_measured: bool = False) -> list[ListedGpu]:
        from app.engine import llama

        if not self._uses_gpu:
            return []
        speeds = known_speeds(self._cache_dir) if is_measured else None
        return list(llama.ggml_gpus(with_links=is_measured, known_speeds=speeds))


@dataclass(frozen=True, slots=True)
class DryRunRequest:
    """A context of the validated model at `path`, with its layers placed by `parameters`. The answers and the cached
    sequences beside them share its cells. `rpc` are the servers whose devices may be among those of `parameters`."""

    path: Path
    config: RunConfig
    parameters: LoadParameters = ON_HOST
    rpc: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _ComputeBuffers:
    n_bytes: Mapping[str, int]  # by device name


def compute_by_device(request: DryRunRequest) -> dict[str, int]:
    """Return the bytes of compute buffers by device name. Raises the UserError of the child, or EngineError."""
    (buffers,) = run_task("app.engine.load.planner", request, TaskProgress, _ComputeBuffers)
    return dict(buffers.n_bytes)


def _dry_run(request: DryRunRequest) -> Iterator[_ComputeBuffers]:
    from app.engine.llama.devices import add_rpc_servers
    from app.engine.llama.model import dry_compute_bytes

    add_rpc_servers(request.rpc)
    yield _ComputeBuffers(dry_compute_bytes(request.path, request.config, request.parameters))


if __name__ == "__main__":
    sys.exit(serve_task(DryRunRequest, _dry_run))
