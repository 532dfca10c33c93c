"""What the service says of itself: its models, what their engines hold and what they have done.

Owns these values and how the service words them. Knows nothing of HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from app.client.connection import error_of
from quantizer.errors import UserError

__all__ = ["EngineCounters", "LatencySummary", "ModelStatus", "Occupancy", "PlanSummary", "ServiceStatus", "status_of"]


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """How long somebody waited, in seconds: how often, the median and the 95th percentile (None before the first), and
    all of it together."""

    n_samples: int
    p50: float | None
    p95: float | None
    total_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCounters:
    """What a model's engine has done since it started. Rates are tokens a second as each answer got them."""

    n_finished: int
    n_prompt_tokens: int
    n_output_tokens: int
    cached_share: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    n_drafted_tokens: int
    n_accepted_tokens: int
    first_token_s: LatencySummary
    inter_token_s: LatencySummary


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What an engine holds at this moment: answers that run and that wait, and cells of its KV cache in use."""

    n_running: int
    n_waiting: int
    n_cells_used: int
    n_cells: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSummary:
    """What loading followed, in short: the verdict, layers on GPUs of all (the output counts as one), the weightiest
    warning and the first way out, both empty where there is none."""

    verdict: Literal["fits", "tight", "partial", "wont_run"]
    n_on_gpus: int
    n_layers: int
    warning: str
    first_remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """One model of the service. `progress` runs from 0 to 1 while it is loading; `error` is set when it failed.

    `occupancy` and `counters` are None while its engine cannot tell, `plan` until loading has one. `n_bytes` is the
    memory of its worker, 0 where nobody can tell. `shares_with` are other names of its file that hold the same engine:
    its figures are theirs too.
    """

    id: str
    state: Literal["loading", "ready", "failed", "unloaded"]
    progress: float
    n_ctx: int
    notices: tuple[str, ...]
    error: UserError | None
    occupancy: Occupancy | None = None
    counters: EngineCounters | None = None
    plan: PlanSummary | None = None
    n_bytes: int = 0
    shares_with: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """What the service is and which models it holds. `default_model` answers requests that name none.

    `stays_until` is "jobs-end" where it outlives the face that started it until its last job has ended, else empty.
    """

    version: str
    default_model: str
    models: tuple[ModelStatus, ...]
    stays_until: str = ""

    def model(self, model_id: str) -> ModelStatus | None:
        return next((model for model in self.models if model.id == model_id), None)


def status_of(data: dict[str, Any]) -> ServiceStatus:
    """Return the status that the service described."""
    return ServiceStatus(
        version=data["version"],
        default_model=data["default_model"],
        models=tuple(_model_status(item) for item in data["models"]),
        stays_until=data.get("stays_until", ""),
    )


def _model_status(item: dict[str, Any]) -> ModelStatus:
    return ModelStatus(
        id=item["id"],
        state=item["state"],
        progress=item["progress"],
        n_ctx=item["n_ctx"],
        notices=tuple(item["notices"]),
        error=error_of(item["error"]) if item["error"] else None,
        occupancy=Occupancy(**item["occupancy"]) if item["occupancy"] else None,
        counters=_counters(item["counters"]) if item["counters"] else None,
        plan=_brief(plan) if (plan := item.get("plan")) else None,
        n_bytes=item.get("n_bytes", 0),
        shares_with=tuple(item.get("shares_with", ())),
    )


def _brief(plan: dict[str, Any]) -> PlanSummary:
    devices = plan["devices"]
    return PlanSummary(
        verdict=plan["verdict"],
        n_on_gpus=sum(device["layers"] for device in devices if device["kind"] != "cpu"),
        n_layers=plan["layers"],
        warning=next(iter(plan["warnings"]), ""),
        first_remedy=next((remedy["what"] for remedy in plan["remedies"]), ""),
    )


def _counters(data: dict[str, Any]) -> EngineCounters:
    waits = {name: _spread(data[name]) for name in ("first_token_s", "inter_token_s")}
    return EngineCounters(**{field.name: data[field.name] for field in fields(EngineCounters)} | waits)


def _spread(data: dict[str, Any]) -> LatencySummary:
    return LatencySummary(data["count"], data["p50"], data["p95"], data["sum"])
