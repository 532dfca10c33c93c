"""Fits and plans of models on a machine, the choice among quants, and the table of all types.

Owns the planning context (machine, rates, and what the settings request), whether compute buffers come from llama.cpp's
dry run or a formula, the rule that chooses among the quants of a model, and how a machine is written as text, such as
`--vram GPU0=8GiB@900GB/s --ram 16GiB@60GB/s`. The arithmetic is `offload`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from app.engine.load.auxiliary_models import read_auxiliary_models
from app.engine.load.machine import survey
from app.engine.load.planner import DryRunRequest, compute_by_device, requested_config
from app.engine.load.run_history import fitted_rates
from app.library.external import adapters_of
from app.library.local.model_files import ModelRef
from app.library.local.resolve import guide_source
from app.protocol.library import ModelFit, PlanDraft, Quant, TypeChoice
from app.protocol.plan import MeasuredRun, describe_draft, measured_speed
from app.settings.parsing import parse_byte_size, parse_rpc_endpoints
from app.settings.settings import GUIDE, Settings
from offload.advice.drafts import draft_offers
from offload.devices.gpus import known_bandwidth
from offload.devices.machine import HOST_NAME, Device, DeviceKind, Machine
from offload.footprint.auxiliary_models import PlannedDraft, PlannedProjector
from offload.footprint.model import PlannedModel, RunConfig
from offload.footprint.weights import weight_bytes_per_token
from offload.placement.assessment import Assessment
from offload.placement.load_parameters import ON_HOST, LoadParameters
from offload.plan import PlacementPlan, best_assessment, dry_plan, plan
from offload.speed.cost_model import Rates, expected_rates
from quantizer.figures import format_speed
from quantizer.gguf.tensor_types import FILE_TYPES
from quantizer.system.errors import UsageError, UserError
from quantizer.write.quantize_plan import header_of_plan, size_table

_MOST_DRY_CELLS = 1 << 22  # a dry run takes 50 bytes for each cell, whatever the planned machine has
COMFORTABLE_TPS = 12.0  # faster than most people read
_GOOD_BITS = 4.2  # IQ4_XS and MXFP4; below it the loss of quality outweighs the gain of speed
_MOST_BITS = 9.0  # above Q8_0 nothing noticeable is gained
NEARLY_AS_FAST = 0.85
_MUCH_FASTER, _AS_FAST_WRITING = 1.3, 0.9  # reading decides between files only where nobody would miss the other one
_SAME_LOSS = 0.03  # of a perplexity of 6.23: what Q6_K adds to Q8_0
_HOW = "Write it like --vram GPU0=8GiB@900GB/s, or --vram 'RTX 3060=12GiB'."
_PER_SECOND = "/s"


_SYSTEM_BYTES, _SYSTEM_SHARE = 4 << 30, 4  # what a desktop and its programs take: 4 GiB, a quarter of a small machine


@dataclass(frozen=True, slots=True)
class PlanningContext:
    machine: Machine
    rates: Rates
    requested: RunConfig

    def best_assessment(self, model: PlannedModel) -> Assessment:
        """Return the best placement of `model`. Raises UsageError for a cache type that it does not support."""
        return best_assessment(model, self.requested, self.machine, self.rates)

    def fit(self, model: PlannedModel, runs: Iterable[MeasuredRun] = ()) -> ModelFit:
        """Return the fit of `model`, whose `runs` were measured here. Raises as `best_assessment` does."""
        found = self.best_assessment(model)
        n_on_gpus = found.placement.n_on_gpus if found.placement is not None else 0
        in_use = {share.device.name for share in found.shares if share.n_layers}
        is_measured = in_use <= self.rates.tables.keys()
        return ModelFit(
            verdict=found.verdict.value,
            decode_tps=None if found.decode_tps is None else round(found.decode_tps, 3),
            total_bytes=found.profile.total_bytes,
            uncertainty=round(self.rates.uncertainty, 3),
            measured_tps=measured_speed(runs, n_on_gpus).decode_tps,
            prefill_tps=round(found.speed.prefill_tps, 3) if found.speed is not None and is_measured else None,
        )

    def plan(self, model: PlannedModel, *, wants_remedies: bool = True) -> PlacementPlan:
        """Return the plan of `model`: shares, warnings, remedies, and what drafts would do. Raises as `best_assessment`
        does."""
        siblings = _siblings_of(model)
        return plan(model, self.requested, self.machine, self.rates, wants_remedies=wants_remedies, siblings=siblings)

    def drafts(self, model: PlannedModel) -> tuple[PlanDraft, ...]:
        """Return what draft models would do beside `model`, the best first. Raises as `best_assessment` does."""
        found = self.best_assessment(model)
        offers = draft_offers(model, found.profile.run_config, found, self.rates, _siblings_of(model))
        return tuple(map(describe_draft, offers))


def _siblings_of(model: PlannedModel) -> Callable[[], tuple[PlannedDraft, ...]]:
    def found() -> tuple[PlannedDraft, ...]:
        from app.library.hub.catalogue import siblings_of

        return siblings_of(model)

    return found


def planning_context(settings: Settings, machine: Machine) -> PlanningContext:
    """Return the context for a `machine` other than this one. Raises UsageError for unknown types."""
    return PlanningContext(machine, expected_rates(machine), requested_config(settings, machine, is_here=False))


def local_planning_context(settings: Settings, machine: Machine | None = None) -> PlanningContext:
    """Return the context for this machine with measured speeds, without GPUs where the settings use none. Without
    `machine` a survey takes about a second. Raises EngineError if that fails."""
    machine = machine or survey(parse_rpc_endpoints(settings.rpc), settings.cache_dir).machine
    machine = machine if settings.gpu else Machine(machine.host)
    rates = fitted_rates(machine, settings.cache_dir, settings.threads)
    return PlanningContext(machine, rates, requested_config(settings, machine, is_here=True))


def with_own_files(model: PlannedModel, ref: ModelRef, choice: str) -> PlannedModel:
    """Return the model at `ref` with its projector, by a `choice` of the settings for all models, and with its adapters
    in Ollama. Raises ModelFileError for an adapter of another kind."""
    from app.library.local.projectors import choose_projector, general_choice

    found = choose_projector(model.header, general_choice(choice)).projector
    projector = None if found is None else PlannedProjector.of(found, model.header)
    adapters = read_auxiliary_models(model.header, adapters=adapters_of(ref)).adapters
    return replace(model, auxiliary=replace(model.auxiliary, projector=projector, adapters=adapters))


def plan_of(model: PlannedModel, settings: Settings, context: PlanningContext, *, is_here: bool) -> PlacementPlan:
    """Plan with compute buffers from llama.cpp's dry run; those of devices not present are estimated on the CPU."""

    def dry_run(setting: RunConfig, parameters: LoadParameters) -> dict[str, int]:
        rpc = parse_rpc_endpoints(settings.rpc)
        return compute_by_device(DryRunRequest(model.header.path, setting, parameters, rpc))

    run_config = context.best_assessment(model).profile.run_config
    if run_config.n_cells > _MOST_DRY_CELLS:
        return context.plan(model)
    if is_here:
        return dry_plan(model, context.requested, context.machine, context.rates, dry_run, _siblings_of(model))
    n_bytes = sum(dry_run(run_config, ON_HOST).values())
    return context.plan(model.measured(run_config, n_bytes))


def plan_of_absent(model: PlannedModel, notice: str, context: PlanningContext) -> PlacementPlan:
    """Plan a model of which only the header was fetched, as `notice` says; compute buffers come from a formula."""
    found = context.plan(model)
    formula = "Its compute buffers are estimated by a formula, within 15 %."
    return replace(found, warnings=(*found.warnings, f"{notice} {formula}"))


@dataclass(frozen=True, slots=True)
class ChosenQuant:
    """The quant to take, and the one that it replaces because it reads so much faster here."""

    quant: Quant
    instead_of: Quant | None = None

    @property
    def reason(self) -> str:
        """A sentence about the replacement, "" without one."""
        if self.instead_of is None or not (self.quant.fit.prefill_tps and self.instead_of.fit.prefill_tps):
            return ""
        fast, slow = (format_speed(each.fit.prefill_tps or 0.0) for each in (self.quant, self.instead_of))
        return (
            f"{self.quant.name} instead of {self.instead_of.name}: reads {fast} instead of {slow} tokens a second here."
        )


def choose_quant(quants: Sequence[Quant], n_parameters: int, pace_tps: float = COMFORTABLE_TPS) -> ChosenQuant | None:
    """Return the best quant of a model with `n_parameters`, None if none runs. Where the types of weights were measured
    here, another takes its place that loses no more, writes as fast and reads much faster."""
    best = _best_quant(quants, n_parameters, pace_tps)
    if best is None:
        return None
    faster = [quant for quant in quants if _reads_much_faster(quant, best, pace_tps)]
    if not faster:
        return ChosenQuant(best)
    enough_tps = NEARLY_AS_FAST * max(quant.fit.prefill_tps or 0.0 for quant in faster)
    fastest = [quant for quant in faster if (quant.fit.prefill_tps or 0.0) >= enough_tps]
    return ChosenQuant(min(fastest, key=lambda quant: FILE_TYPES[quant.name].perplexity_loss or 0.0), best)


def _reads_much_faster(other: Quant, best: Quant, pace_tps: float) -> bool:
    ours, theirs = FILE_TYPES.get(best.name), FILE_TYPES.get(other.name)
    losses = [known.perplexity_loss for known in (ours, theirs) if known and known.perplexity_loss is not None]
    if len(losses) < 2 or losses[1] > losses[0] + _SAME_LOSS or not (best.fit.prefill_tps and other.fit.prefill_tps):
        return False
    keeps = other.fit.runs_well >= best.fit.runs_well and keeps_pace(other, pace_tps) >= keeps_pace(best, pace_tps)
    writes = speed_of(other) >= _AS_FAST_WRITING * speed_of(best)
    return keeps and writes and other.fit.prefill_tps >= _MUCH_FASTER * best.fit.prefill_tps


def _best_quant(quants: Sequence[Quant], n_parameters: int, pace_tps: float) -> Quant | None:
    """Return the quant of the best quality that serves: the one with the most bits that fits and reaches `pace_tps`;
    else the best good one that fits and is nearly as fast as the fastest of these; else the best small one that fits;
    else the fastest that runs at all."""

    def bits(quant: Quant) -> float:
        known = FILE_TYPES.get(quant.name)  # the type of most weights; of an unknown quant, the average
        return known.base.bits_per_weight if known else 8 * quant.n_bytes / max(1, n_parameters)

    def quality(quant: Quant) -> tuple[float, int]:
        return bits(quant), quant.n_bytes

    running = [quant for quant in quants if quant.fit.verdict != "wont_run"]
    sensible = [quant for quant in running if bits(quant) <= _MOST_BITS] or running
    fitting = [quant for quant in sensible if quant.fit.runs_well]
    good = [quant for quant in fitting if bits(quant) >= _GOOD_BITS]
    if quick := [quant for quant in good if keeps_pace(quant, pace_tps)]:
        return max(quick, key=quality)
    if good:
        enough_tps = NEARLY_AS_FAST * max(map(speed_of, good))
        return max((quant for quant in good if speed_of(quant) >= enough_tps), key=quality)
    if fitting:
        return max(fitting, key=quality)
    return max(sensible, key=speed_of, default=None)


def speed_of(quant: Quant) -> float:
    return quant.fit.decode_tps or 0.0


def keeps_pace(quant: Quant, pace_tps: float) -> bool:
    """Return whether `quant` fits and reaches `pace_tps`, or its speed is unknown."""
    return quant.fit.runs_well and (quant.fit.decode_tps is None or quant.fit.decode_tps >= pace_tps)


def without_system(machine: Machine) -> Machine:
    """Return `machine` with what its system and the programs beside a model need left free: a machine that has just
    been started, or is only described, reports more free memory than it will have."""
    host = machine.host
    for_models = host.total_bytes - min(_SYSTEM_BYTES, host.total_bytes // _SYSTEM_SHARE)
    if not host.total_bytes or host.free_bytes <= for_models:
        return machine
    return replace(machine, host=replace(host, free_bytes=for_models))


def parse_machine(here: Callable[[], Machine], vram: Sequence[str], ram: str | None) -> Machine:
    """Return a machine with the given GPUs and memory, all of it free but for the system's part; the rest comes from
    `here`. `here` is called only if something is missing, because it takes a second. Memory without a speed gets this
    machine's, a GPU without one that of its name. Raises UsageError."""
    gpus: list[Device] = []
    for text in vram:
        name, found, memory = text.partition("=")
        if not name.strip() or not found:
            raise UsageError(f"{text!r} is not a GPU.", _HOW)
        n_bytes, bytes_per_s = _memory(memory)
        gpus.append(_device(name.strip(), DeviceKind.GPU, n_bytes, bytes_per_s or known_bandwidth(name)))
    if len({gpu.name for gpu in gpus}) != len(gpus):
        raise UsageError("Two GPUs have the same name.", _HOW)
    n_bytes, bytes_per_s = _memory(ram) if ram is not None else (0, None)
    if gpus and bytes_per_s:
        return without_system(Machine(_device(HOST_NAME, DeviceKind.CPU, n_bytes, bytes_per_s), tuple(gpus)))
    known = here()
    host, bytes_per_s = known.host, bytes_per_s or known.host.bytes_per_s
    if ram is not None:
        host = _device(HOST_NAME, DeviceKind.CPU, n_bytes, bytes_per_s)
    machine = Machine(host, tuple(gpus) or known.gpus)
    return machine if ram is None else without_system(machine)


def _device(name: str, kind: DeviceKind, n_bytes: int, bytes_per_s: float | None) -> Device:
    return Device(name=name, kind=kind, total_bytes=n_bytes, free_bytes=n_bytes, bytes_per_s=bytes_per_s)


def _memory(text: str) -> tuple[int, float | None]:
    """Parse SIZE or SIZE@SPEED/s."""
    size, found, speed = text.partition("@")
    if not found:
        return parse_byte_size(size), None
    if not speed.endswith(_PER_SECOND):
        raise UsageError(f"{speed!r} is not a speed.", _HOW)
    return parse_byte_size(size), float(parse_byte_size(speed.removesuffix(_PER_SECOND)))


@dataclass(frozen=True, slots=True)
class TypeRow:
    """One type for a model; `max_tokens_per_s` is the limit that reading its weights from memory sets here.
    `perplexity_loss` is what the type adds to the 6.23 of Llama-3-8B as llama.cpp measured, None if unknown. It reads
    and writes so many tokens a second here, None where that is unknown."""

    type: str
    bits_per_weight: float
    bytes: int
    perplexity_loss: float | None
    max_tokens_per_s: float
    needs_imatrix: bool
    description: str
    reads_tps: float | None = None
    writes_tps: float | None = None


def type_rows(
    source: Path, bytes_per_s: float, fit: Callable[[PlannedModel], ModelFit], base: Path | None = None
) -> Iterator[TypeRow]:
    """Yield a row for each type for the model at `source`, with a memory bandwidth of `bytes_per_s` and the speeds of
    its `fit`. `base` is the model that a draft head is for: neither that nor an adapter answers alone. Raises UserError
    as planning does."""
    answers_alone = True
    for row, model in _rows(source, bytes_per_s, base):
        if base is None and answers_alone:
            try:
                found = fit(model)
            except UserError:  # an adapter, or a cache type of the settings that this model cannot have
                answers_alone = False
            else:
                row = replace(row, reads_tps=found.prefill_tps, writes_tps=found.decode_tps)
        yield row


def type_choices(source: Path, bytes_per_s: float, fit: Callable[[PlannedModel], ModelFit]) -> list[TypeChoice]:
    """Return the rows, each with its fit as `fit` computes it. Raises as `type_rows` does."""
    return [
        TypeChoice(
            quant=Quant(row.type, row.bytes, fit(model)),
            bits_per_weight=row.bits_per_weight,
            perplexity_loss=row.perplexity_loss,
            max_tokens_per_s=row.max_tokens_per_s,
            needs_imatrix=row.needs_imatrix,
            description=row.description,
        )
        for row, model in _rows(source, bytes_per_s)
    ]


def quantize_source(ref: ModelRef) -> Path:
    """Return what `localllm quantize` reads for `ref`: the guide's checkpoint if it is there, else its file."""
    return guide_source(ref.path.parent) if ref.id == GUIDE else ref.path


def _rows(source: Path, bytes_per_s: float, base: Path | None = None) -> Iterator[tuple[TypeRow, PlannedModel]]:
    for planned in size_table(source, base):
        header = header_of_plan(planned)
        row = TypeRow(
            planned.file_type.name,
            round(planned.bits_per_weight, 3),
            planned.n_bytes,
            planned.file_type.perplexity_loss,
            round(bytes_per_s / weight_bytes_per_token(header, header.tensors), 1),
            bool(planned.missing_imatrix),
            planned.file_type.description,
        )
        yield row, PlannedModel(header, header.tensors)
