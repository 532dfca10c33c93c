"""What loading asks the planner, and what it does with the answer: sizes, setting and places of one load.

Owns going from how a model was asked for to how it is loaded, and to less where that failed. Pure but for the dry run
that it is given. Knows nothing of native code or of files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from app.engine.backend import MemoryShortError
from app.engine.protocol.messages import EngineConfig
from app.engine.tuning.tune_results import RuntimeSettings
from offload.advice.warnings import fit_summary
from offload.devices.machine import Machine
from offload.footprint.context import MIN_N_CTX
from offload.footprint.kv_cache import parse_kv_types
from offload.footprint.model import PlannedModel
from offload.format import memory, tokens
from offload.placement.actual_usage import ExcessUsage, with_reserved
from offload.placement.allocation import Share
from offload.placement.load_parameters import LoadParameters
from offload.plan import DryRun, Plan, PlanConstraints, dry_plan, parameters_of, plan
from offload.speed.cost_model import Rates, expected_rates
from quantizer.errors import EngineError

__all__ = ["LoadAttempt", "LoadPlanner", "load_within_memory"]

_STEP_DOWN = 0.85  # of what GPUs have free, after a load that failed
Loaded = TypeVar("Loaded")


@dataclass(frozen=True, slots=True)
class LoadAttempt:
    """A model about to be loaded: its sizes, what decides its speed, and the plan that it follows."""

    config: EngineConfig
    setting: RuntimeSettings
    plan: Plan

    @property
    def parameters(self) -> LoadParameters:
        """Where its layers go."""
        return parameters_of(self.plan.found)

    @property
    def shares(self) -> tuple[Share, ...]:
        """What each device gets; nothing where nobody could say."""
        return self.plan.found.shares


@dataclass(frozen=True, slots=True)
class LoadPlanner:
    """Plans loads of `model` on `machine`; `surplus` is what its last load took beyond the plan.

    `rates_of` tells how fast a machine is.
    """

    model: PlannedModel
    machine: Machine
    dry_run: DryRun
    surplus: ExcessUsage
    rates_of: Callable[[Machine], Rates] = expected_rates

    def case(self, config: EngineConfig, setting: RuntimeSettings) -> LoadAttempt:
        """Return how to load under `config`, whose context is chosen, and `setting`.

        With a GPU the plan decides on cells and on how layers are computed; without one all stays as it was measured.
        Raises UsageError for a cache that the model cannot have.
        """
        machine = with_reserved(self.machine, self.surplus)
        question = PlanConstraints(
            n_ctx=config.n_ctx,
            n_cells=config.n_cells,
            kv_types=parse_kv_types(config.kv_type),
            n_sequences=config.n_sequences,
            is_fused=setting.flash_attention,
            gpu_layers=None if config.gpu_layers is None else dict(config.gpu_layers),
        )
        rates = self.rates_of(machine)
        if not machine.gpus:
            return LoadAttempt(config, setting, plan(self.model, question, machine, rates))
        found = dry_plan(self.model, question, machine, rates, self.dry_run)
        parameters = parameters_of(found.found)
        setting = replace(
            setting,
            flash_attention=found.setting.is_fused,
            n_ubatch=found.setting.n_ubatch,
            n_threads=config.n_threads or parameters.n_threads or setting.n_threads,
        )
        return LoadAttempt(replace(config, n_cells=found.setting.n_cells), setting, found)

    def smaller(self, case: LoadAttempt, *, may_shorten: bool) -> LoadAttempt | None:
        """Return how to load with less memory after `case` had too little, None where nothing is left to give up.

        First GPUs get less, whoever chose what they have, and the processor the rest; without any the context is halved
        where it `may_shorten`.
        """
        if case.parameters.devices:
            gpus = tuple(replace(gpu, free_bytes=int(_STEP_DOWN * gpu.free_bytes)) for gpu in self.machine.gpus)
            tighter = replace(self, machine=Machine(self.machine.host, gpus))
            return tighter.case(replace(case.config, gpu_layers=None), case.setting)
        n_ctx = case.config.n_ctx // 2
        if not may_shorten or n_ctx < MIN_N_CTX:
            return None
        return self.case(replace(case.config, n_ctx=n_ctx, n_cells=n_ctx), case.setting)


def load_within_memory(
    planner: LoadPlanner,
    case: LoadAttempt,
    load: Callable[[LoadAttempt], Loaded],
    on_notice: Callable[[str], None],
    *,
    may_shorten: bool,
) -> tuple[Loaded, LoadAttempt]:
    """Load `case`; where memory does not suffice, step down once and say so. Return what was loaded, and as what.

    Raises EngineError with the numbers where that fails too.
    """
    try:
        return load(case), case
    except MemoryShortError as error:
        smaller = planner.smaller(case, may_shorten=may_shorten)
        if smaller is None:
            raise _too_large(case, error) from error
        on_notice(f"Memory did not suffice for what was planned, so it is loaded with less: {_told(smaller)}.")
    try:
        return load(smaller), smaller
    except MemoryShortError as error:
        raise _too_large(smaller, error) from error


def _told(case: LoadAttempt) -> str:
    """Say what came of giving up some: 30 of 33 layers fit, a context of 8,192 tokens."""
    context = f"a context of {tokens(case.config.n_ctx)} tokens"
    return f"{fit_summary(case.plan.found)}, {context}" if case.parameters.devices else context


def _too_large(case: LoadAttempt, error: MemoryShortError) -> EngineError:
    planned = ", ".join(
        f"{memory(share.n_bytes)} on {share.device.name} with {memory(share.device.free_bytes)} free"
        for share in case.shares
        if share.n_bytes
    )
    cause = f"{error.cause.rstrip('.')}. Planned were {planned}." if planned else error.cause
    return EngineError(cause, "Close programs that take memory, use a smaller --ctx, or a smaller quantization.")
