"""The objects of our own routes: the service and its models as they stand, and plans. Fields and what these may be."""

from __future__ import annotations

from typing import Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from app.engine.loop.counters import Occupancy
from app.protocol.job import Job
from app.service.api.fields import Count, Share, Size
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

    count: Count
    sum: Size
    p50: Size | None
    p95: Size | None
    buckets: list[tuple[Size | None, Count]]


class Counters(TypedDict):
    """Sums since an engine started; rates are tokens a second as each answer got them."""

    n_steps: Count
    busy_s: Size
    n_finished: Count
    n_prompt_tokens: Count
    n_cached_tokens: Count
    cached_share: Share
    prefill_tokens_per_s: Size
    n_output_tokens: Count
    decode_tokens_per_s: Size
    n_drafted_tokens: Count
    n_accepted_tokens: Count
    first_token_s: LatencySummary
    inter_token_s: LatencySummary


class Setting(TypedDict):
    """How a model is to run; `depth` is how many tokens a speed is told for."""

    ctx: Count
    cells: Count
    kv_type: str
    sequences: Count
    ubatch: Count
    depth: Count
    flash_attention: bool


class Device(TypedDict):
    """What of a model would lie on a device; `extras_bytes` come where the model has extras."""

    name: str
    weights_bytes: Count
    kv_bytes: Count
    compute_bytes: Count
    free_bytes: Count
    total_bytes: Count
    bytes_per_s: Size | None
    kind: DeviceKindName
    description: str
    layers: Count
    extras_bytes: NotRequired[Count]


class CurvePoint(TypedDict):
    """The speed with so many layers on GPUs."""

    gpu_layers: Count
    decode_tps: Size | None


class Change(TypedDict, total=False):
    """What a program can set to follow a remedy."""

    n_ctx: Count
    kv_type: str
    file_type: str


class Remedy(TypedDict):
    """What would help, what the answer then comes at, and what it costs."""

    what: str
    decode_tps: Size | None
    cost: str
    change: Change


class Extra(TypedDict):
    """What lies beside a model's layers: an adapter, a draft's model."""

    what: str
    weights_bytes: Count
    kv_bytes: Count
    compute_bytes: Count


class Plan(TypedDict):
    """The object of `localllm plan --json`. Numbers that nobody can know are null."""

    verdict: VerdictName
    setting: Setting
    layers: Count
    devices: list[Device]
    decode_tps: Size | None
    best_tps: Size | None
    prefill_tps: Size | None
    first_token_s: Size | None
    uncertainty: Size
    curve: list[CurvePoint]
    warnings: list[str]
    remedies: list[Remedy]
    extras: NotRequired[list[Extra]]


class MeasuredSpeed(TypedDict):
    """How fast an answer or a prompt was here (tokens a second)."""

    kind: str
    depth: Count
    tps: Size
    gpu_layers: Count | None
    at_s: Size


class PlanFor(Plan):
    """A plan with what was asked, and what was measured of the model here."""

    model: str
    is_full: bool
    gpu_layers: dict[str, int] | None
    n_ctx_train: Count
    kv_types: list[str]
    measured: list[MeasuredSpeed]


class EngineEntry(TypedDict):
    """A model of the service. `occupancy` and `counters` are null while its engine cannot tell.

    `shares_with` are the other names that hold the same engine: its figures are theirs too.
    """

    id: str
    state: Literal["loading", "ready", "failed", "unloaded"]
    progress: Share
    n_ctx: Count
    notices: list[str]
    warnings: list[str]
    plan: Plan | None
    error: OpenAiErrorFields | None
    n_running: Count
    worker_pid: Count | None
    n_bytes: Count
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
    decode_tps: Size | None
    total_bytes: Count
