"""The objects of our own routes: the service and its models as they stand, and plans. Fields and what these may be."""

from __future__ import annotations

from typing import Literal, NotRequired, TypeAlias

from pydantic import NonNegativeFloat, NonNegativeInt
from typing_extensions import TypedDict

from app.engine.loop.counters import Occupancy
from app.protocol.job import Job
from app.service.api.fields import Ratio
from app.service.http.errors import OpenAiErrorFields

__all__ = [
    "Counters",
    "Device",
    "Fit",
    "JobList",
    "LatencySummary",
    "Log",
    "ModelId",
    "PlanFor",
    "ServiceStatus",
    "StaysUntil",
    "VerdictName",
]

VerdictName: TypeAlias = Literal["fits", "tight", "partial", "wont_run"]
DeviceKindName: TypeAlias = Literal["cpu", "gpu", "integrated"]
StayReason: TypeAlias = Literal["", "jobs-end"]


class ModelId(TypedDict):
    """A model that is being loaded."""

    id: str


class StaysUntil(TypedDict):
    """For what the service outlives the face that started it, empty for nothing."""

    stays_until: StayReason


class JobList(TypedDict):
    """Every job, oldest first."""

    jobs: list[Job]


class Log(TypedDict):
    """What a job has said."""

    log: str


class LatencySummary(TypedDict):
    """How waits were spread (seconds). A bucket is (upper bound, count); the bound of the last one may be null."""

    count: NonNegativeInt
    sum: NonNegativeFloat
    p50: NonNegativeFloat | None
    p95: NonNegativeFloat | None
    buckets: list[tuple[NonNegativeFloat | None, NonNegativeInt]]


class Counters(TypedDict):
    """Sums since an engine started; rates are tokens a second as each answer got them."""

    n_steps: NonNegativeInt
    busy_s: NonNegativeFloat
    n_finished: NonNegativeInt
    n_prompt_tokens: NonNegativeInt
    n_cached_tokens: NonNegativeInt
    cached_share: Ratio
    prefill_tokens_per_s: NonNegativeFloat
    n_output_tokens: NonNegativeInt
    decode_tokens_per_s: NonNegativeFloat
    n_drafted_tokens: NonNegativeInt
    n_accepted_tokens: NonNegativeInt
    first_token_s: LatencySummary
    inter_token_s: LatencySummary


class Setting(TypedDict):
    """How a model is to run; `depth` is how many tokens a speed is told for."""

    ctx: NonNegativeInt
    cells: NonNegativeInt
    kv_type: str
    sequences: NonNegativeInt
    ubatch: NonNegativeInt
    depth: NonNegativeInt
    flash_attention: bool


class Device(TypedDict):
    """What of a model would lie on a device; `extras_bytes` come where the model has extras."""

    name: str
    weights_bytes: NonNegativeInt
    kv_bytes: NonNegativeInt
    compute_bytes: NonNegativeInt
    free_bytes: NonNegativeInt
    total_bytes: NonNegativeInt
    bytes_per_s: NonNegativeFloat | None
    kind: DeviceKindName
    description: str
    layers: NonNegativeInt
    extras_bytes: NotRequired[NonNegativeInt]


class CurvePoint(TypedDict):
    """The speed with so many layers on GPUs."""

    gpu_layers: NonNegativeInt
    decode_tps: NonNegativeFloat | None


class Change(TypedDict, total=False):
    """What a program can set to follow a remedy."""

    n_ctx: NonNegativeInt
    kv_type: str
    file_type: str


class Remedy(TypedDict):
    """What would help, what the answer then comes at, and what it costs."""

    what: str
    decode_tps: NonNegativeFloat | None
    cost: str
    change: Change


class Extra(TypedDict):
    """What lies beside a model's layers: an adapter, a draft's model."""

    what: str
    weights_bytes: NonNegativeInt
    kv_bytes: NonNegativeInt
    compute_bytes: NonNegativeInt


class Plan(TypedDict):
    """The object of `localllm plan --json`. Numbers that nobody can know are null."""

    verdict: VerdictName
    setting: Setting
    layers: NonNegativeInt
    devices: list[Device]
    decode_tps: NonNegativeFloat | None
    best_tps: NonNegativeFloat | None
    prefill_tps: NonNegativeFloat | None
    first_token_s: NonNegativeFloat | None
    uncertainty: NonNegativeFloat
    curve: list[CurvePoint]
    warnings: list[str]
    remedies: list[Remedy]
    extras: NotRequired[list[Extra]]


class MeasuredSpeed(TypedDict):
    """How fast an answer or a prompt was here (tokens a second)."""

    kind: str
    depth: NonNegativeInt
    tps: NonNegativeFloat
    gpu_layers: NonNegativeInt | None
    at_s: NonNegativeFloat


class PlanFor(Plan):
    """A plan with what was asked, and what was measured of the model here."""

    model: str
    is_full: bool
    gpu_layers: dict[str, int] | None
    n_ctx_train: NonNegativeInt
    kv_types: list[str]
    measured: list[MeasuredSpeed]


class EngineEntry(TypedDict):
    """A model of the service. `occupancy` and `counters` are null while its engine cannot tell.

    `shares_with` are the other names that hold the same engine: its figures are theirs too.
    """

    id: str
    state: Literal["loading", "ready", "failed", "unloaded"]
    progress: Ratio
    n_ctx: NonNegativeInt
    notices: list[str]
    warnings: list[str]
    plan: Plan | None
    error: OpenAiErrorFields | None
    n_running: NonNegativeInt
    worker_pid: NonNegativeInt | None
    n_bytes: NonNegativeInt
    shares_with: list[str]
    occupancy: Occupancy | None
    counters: Counters | None


class ServiceStatus(TypedDict):
    """What the service is and which models it holds."""

    version: str
    default_model: str
    stays_until: StayReason
    models: list[EngineEntry]


class Fit(TypedDict):
    """What a model comes to on this machine."""

    verdict: VerdictName
    decode_tps: NonNegativeFloat | None
    total_bytes: NonNegativeInt
