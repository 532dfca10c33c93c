"""A plan as it crosses processes: the placement of a model on a machine, its speed, warnings and remedies.

Owns the request and the report, which the service, `localllm plan --json` and the client share. Independent of how a
plan is made: `offload` makes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

from app.protocol.library import DeviceKindName, PlanDraft, VerdictName

if TYPE_CHECKING:
    from offload.advice.drafts import DraftOffer
    from offload.footprint.auxiliary_models import AuxiliaryUsage
    from offload.placement.assessment import Assessment
    from offload.plan import PlacementPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What to plan. `model` is a name or a path, empty for the service's default; 0, "" and None take the service's
    settings, or for a model that is reloaded, those it is loaded with. `context_shift` changes no plan.

    `gpu_layers` are layers by names of GPUs, the output counted as one; None leaves them to the planner. `vram`
    (NAME=SIZE[@SPEED] each) and `ram` (SIZE[@SPEED]) describe another machine than the service's. With `is_full`
    llama.cpp computes its buffer sizes and remedies are planned too, which takes seconds instead of milliseconds; with
    `is_fresh` free memory is measured again.
    """

    model: str = ""
    n_ctx: int = 0
    kv_type: str = ""
    n_sequences: int = 0
    n_threads: int = 0
    context_shift: bool | None = None
    gpu_layers: Mapping[str, int] | None = None
    vram: tuple[str, ...] = ()
    ram: str = ""
    is_full: bool = False
    is_fresh: bool = False

    @property
    def is_here(self) -> bool:
        """Whether the plan is for the machine of the service."""
        return not self.vram and not self.ram


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSetting:
    """The planned setting: tokens of context, cells that all sequences share, cache type, concurrent answers."""

    ctx: int
    cells: int
    kv_type: str
    sequences: int
    ubatch: int
    depth: int
    flash_attention: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlan:
    """One device's part, in bytes; `layers` counts the output as one. `extras_bytes` are not in the other figures, but
    for those among its layers. `bytes_per_s` is None where it is unknown."""

    name: str
    kind: DeviceKindName
    layers: int
    weights_bytes: int
    kv_bytes: int
    compute_bytes: int
    free_bytes: int
    total_bytes: int
    extras_bytes: int = 0
    bytes_per_s: float | None = None
    description: str = ""

    @property
    def is_gpu(self) -> bool:
        """Whether layers can be moved there or away."""
        return self.kind != "cpu"

    @property
    def n_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes + self.compute_bytes + self.extras_bytes

    @property
    def left_bytes(self) -> int:
        """What stays free, below 0 where it holds too much."""
        return self.free_bytes - self.n_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraPlan:
    """A file that is loaded beside the model's layers: an adapter, a draft model, a projector. A projector says how
    many tokens a picture of 1024 × 1024 pixels takes, the most that any takes, and those of 30 seconds of sound; 0 of
    what it does not see or hear."""

    what: str
    weights_bytes: int
    kv_bytes: int
    compute_bytes: int
    picture_tokens: int = 0
    max_picture_tokens: int = 0
    sound_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChange:
    """The settings that follow a remedy; empty where it is not a setting."""

    n_ctx: int = 0
    kv_type: str = ""
    file_type: str = ""


@dataclass(frozen=True, slots=True)
class PlanRemedy:
    """One remedy, the tokens a second of answers and prompts that it leads to and the seconds of a typical turn (None
    where unknown), and its cost."""

    what: str
    decode_tps: float | None
    cost: str
    change: PlanChange
    prefill_tps: float | None = None
    turn_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTurn:
    """The turn by which placements are ranked: tokens of prompt that are read anew and tokens of answer, and the
    seconds that it takes (None where unknown)."""

    prompt_tokens: int
    answer_tokens: int
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOption:
    """The next best of what was weighed: `layers` by GPU, the micro-batch, the GPU that computes prompts with the
    processor's weights ("" for none), and the predicted speeds, None where unknown."""

    what: str
    layers: Mapping[str, int]
    ubatch: int
    prompt_gpu: str
    decode_tps: float | None
    prefill_tps: float | None
    turn_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A measured rate of an answer ("decode") or a prompt ("prefill") behind `depth` tokens, in tokens a second. `at_s`
    counts from 1970, 0 where unknown; `gpu_layers` is None where unknown. One that `is_quiet` was slowed by no other
    program."""

    kind: Literal["decode", "prefill"]
    depth: int
    tps: float
    gpu_layers: int | None
    at_s: float
    is_quiet: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSpeed:
    """How fast one model was on this machine, in tokens a second: medians of its answers and prompts while other
    programs left the machine alone, or of all where they never did; then the answers are no `is_quiet` measurement.
    None where nothing was measured."""

    decode_tps: float | None
    prefill_tps: float | None
    n_answers: int
    n_prompts: int
    is_quiet: bool = True

    @property
    def where(self) -> str:
        """What the answers were measured on, in words: "measured here", or also beside what."""
        return "measured here" if self.is_quiet else "measured here beside other programs"


def measured_speed(runs: Iterable[MeasuredRun], n_on_gpus: int) -> MeasuredSpeed:
    """Return the speed that `runs` had with so many layers on GPUs."""
    from statistics import median  # 12 ms of the app's start, which needs no plan

    decode: list[MeasuredRun] = []
    prefill: list[MeasuredRun] = []
    for run in runs:
        if run.gpu_layers in (None, n_on_gpus):
            (decode if run.kind == "decode" else prefill).append(run)
    quiet = [run for run in decode if run.is_quiet]
    is_quiet, decode = bool(quiet) or not decode, quiet or decode
    prefill = [run for run in prefill if run.is_quiet] or prefill
    return MeasuredSpeed(
        decode_tps=median(run.tps for run in decode) if decode else None,
        prefill_tps=median(run.tps for run in prefill) if prefill else None,
        n_answers=len(decode),
        n_prompts=len(prefill),
        is_quiet=is_quiet,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A plan. Rates are tokens a second, None where unknown; `uncertainty` is a share of them. `curve` is the rate with
    0, 1, 2 … of `n_layers` on the fastest GPU, as if it had room; `best_tps` the rate with enough memory. Chats that
    left the cache take at most `saved_chats_bytes`, in no device's part, and give them back where memory is short.
    `prompt_gpu` computes prompts with the processor's weights, of which it fetches `fetched_bytes` for each
    micro-batch; it is "" where the processor does, or has none. `runner_up` is the next best by the `turn`."""

    verdict: VerdictName
    setting: PlanSetting
    n_layers: int
    devices: tuple[DevicePlan, ...]
    decode_tps: float | None
    best_tps: float | None
    prefill_tps: float | None
    first_token_s: float | None
    uncertainty: float
    curve: tuple[float, ...]
    warnings: tuple[str, ...]
    remedies: tuple[PlanRemedy, ...]
    extras: tuple[ExtraPlan, ...] = ()
    saved_chats_bytes: int = 0
    turn: PlanTurn | None = None
    prompt_gpu: str = ""
    fetched_bytes: int = 0
    runner_up: PlanOption | None = None
    drafts: tuple[PlanDraft, ...] = ()

    @property
    def is_unfit(self) -> bool:
        """Whether some of the model is read over a slower way at every token, or cannot be loaded."""
        return self.verdict in ("partial", "wont_run")

    @property
    def n_on_gpus(self) -> int:
        return sum(device.layers for device in self.devices if device.is_gpu)

    @property
    def warning(self) -> str:
        """The most important warning, empty where there is none."""
        return next(iter(self.warnings), "")

    @property
    def first_remedy(self) -> str:
        """The remedy that leads to the highest rate, empty where there is none."""
        return next((remedy.what for remedy in self.remedies), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport(Plan):
    """A plan that answers a `PlanRequest`, with what was measured of the model on this machine. `gpu_layers` are those
    of the request, None where the planner chose. Only an `is_full` plan has remedies, and buffers as llama.cpp computes
    them."""

    model: str
    gpu_layers: Mapping[str, int] | None
    n_ctx_train: int
    kv_types: tuple[str, ...]
    measured: tuple[MeasuredRun, ...]
    is_full: bool

    @classmethod
    def of(
        cls,
        plan: Plan,
        request: PlanRequest,
        *,
        n_ctx_train: int,
        kv_types: tuple[str, ...],
        measured: tuple[MeasuredRun, ...],
    ) -> PlanReport:
        return cls(
            **{item.name: getattr(plan, item.name) for item in fields(plan)},
            model=request.model,
            gpu_layers=request.gpu_layers,
            n_ctx_train=n_ctx_train,
            kv_types=kv_types,
            measured=measured,
            is_full=request.is_full,
        )


def describe_plan(plan: PlacementPlan, max_bytes: int = 0) -> Plan:
    """Return the planner's `plan` as it crosses processes. Models may take `max_bytes` together; 0 is no limit."""
    found, setting, speed = plan.assessment, plan.run_config, plan.assessment.speed
    return Plan(
        verdict=found.verdict.value,
        setting=PlanSetting(
            ctx=setting.n_ctx,
            cells=setting.n_cells,
            kv_type=str(setting.kv_types),
            sequences=setting.n_sequences,
            ubatch=setting.n_ubatch,
            depth=setting.depth,
            flash_attention=setting.is_fused,
        ),
        n_layers=len(found.profile.layers),
        devices=tuple(
            DevicePlan(
                name=share.device.name,
                kind=share.device.kind.value,
                layers=share.n_layers,
                weights_bytes=share.weight_bytes,
                kv_bytes=share.cache_bytes,
                compute_bytes=share.compute_bytes + share.host_bytes,
                free_bytes=share.device.free_bytes,
                total_bytes=share.device.total_bytes,
                extras_bytes=share.beside_bytes,
                bytes_per_s=share.device.bytes_per_s,
                description=share.device.description,
            )
            for share in found.shares
        ),
        decode_tps=_rounded(found.decode_tps),
        best_tps=_rounded(found.best_tps),
        prefill_tps=_rounded(speed.prefill_tps if speed else None),
        first_token_s=_rounded(speed.first_token_s if speed else None),
        uncertainty=round(plan.uncertainty, 3),
        curve=tuple(round(tps, 3) for tps in found.curve),
        warnings=plan.warnings,
        remedies=tuple(
            PlanRemedy(
                remedy.what,
                _rounded(remedy.decode_tps),
                remedy.cost,
                PlanChange(n_ctx=remedy.change.n_ctx, kv_type=remedy.change.kv_type, file_type=remedy.change.file_type),
                _rounded(remedy.prefill_tps),
                _rounded(remedy.turn_s),
            )
            for remedy in plan.remedies
        ),
        extras=tuple(map(_extra, found.profile.extras)),
        saved_chats_bytes=found.state_bytes(max_bytes or None),
        turn=_turn(found),
        prompt_gpu=found.placement.prompt_gpu if found.placement is not None else "",
        fetched_bytes=found.fetched_bytes,
        runner_up=_option(found.runner_up),
        drafts=tuple(map(describe_draft, plan.drafts)),
    )


def describe_draft(offer: DraftOffer) -> PlanDraft:
    """Return a draft of the planner as it crosses processes."""
    return PlanDraft(
        what=offer.what,
        bytes=offer.n_bytes,
        layers=offer.n_on_gpus,
        draft_tokens=offer.n_tokens,
        acceptance=round(offer.acceptance, 3),
        decode_tps=round(offer.decode_tps, 3),
        gain=round(offer.gain, 3),
        least_acceptance=_rounded(offer.least_acceptance),
        file_type=offer.file_type,
    )


def _turn(found: Assessment) -> PlanTurn:
    from offload.placement.shares import turn_of

    turn = turn_of(found.profile)
    return PlanTurn(prompt_tokens=turn.n_prompt, answer_tokens=turn.n_answer, seconds=_rounded(found.turn_s))


def _option(other: Assessment | None) -> PlanOption | None:
    from offload.advice.remedies import choice_summary

    if other is None or other.placement is None:
        return None
    at = other.placement
    return PlanOption(
        what=choice_summary(other),
        layers=at.layers_by_gpu,
        ubatch=other.profile.run_config.n_ubatch,
        prompt_gpu=at.prompt_gpu,
        decode_tps=_rounded(other.decode_tps),
        prefill_tps=_rounded(other.speed.prefill_tps if other.speed else None),
        turn_s=_rounded(other.turn_s),
    )


def _extra(usage: AuxiliaryUsage) -> ExtraPlan:
    picture = usage.projector.picture if usage.projector else None
    return ExtraPlan(
        what=usage.what,
        weights_bytes=usage.weight_bytes,
        kv_bytes=usage.cache_bytes,
        compute_bytes=usage.compute_bytes + usage.host_bytes,
        picture_tokens=picture.typical if picture else 0,
        max_picture_tokens=picture.most if picture else 0,
        sound_tokens=usage.projector.n_sound_tokens if usage.projector else 0,
    )


def _rounded(tps: float | None) -> float | None:
    return None if tps is None else round(tps, 3)
