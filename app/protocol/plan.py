"""What a plan is asked for: a model, how it is wanted, and where.

Owns the value, as the service and its client share it. Knows nothing of how a plan is made.

A plan as the service tells it: where a model goes, how fast it is, what to be warned of and what would help.

Owns these values and how the service words them. Knows nothing of HTTP, and nothing of how a plan is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeAlias

__all__ = [
    "DevicePlan",
    "MeasuredRun",
    "PlanChange",
    "PlanRemedy",
    "PlanReport",
    "PlanRequest",
    "PlanSetting",
    "VerdictName",
    "report_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """`model` is a name or a path, empty for the service's default. 0, "" and None are what the service's settings say,
    or for a model that is loaded again, what it is loaded with. `context_shift` changes no plan.

    `gpu_layers` are layers by names of GPUs, the output counted as one; None leaves them to the planner. `vram`
    (NAME=SIZE[@SPEED] each) and `ram` (SIZE[@SPEED]) describe another machine than the service's. With `is_full`
    llama.cpp is asked what it would compute in and ways out are planned too, which takes seconds and not milliseconds;
    with `is_fresh` memory is looked at anew.
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
        """Whether it is asked for the machine of the service."""
        return not self.vram and not self.ram

    def as_json(self) -> dict[str, Any]:
        """Return the wish as JSON takes it."""
        return asdict(self)


VerdictName: TypeAlias = Literal["fits", "tight", "partial", "wont_run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSetting:
    """What the plan is for: tokens of context, cells that all sequences share, type of the cache, answers at once."""

    ctx: int
    cells: int
    kv_type: str
    sequences: int
    ubatch: int
    depth: int
    flash_attention: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlan:
    """What one device gets, in bytes; `layers` counts the output as one. `bytes_per_s` is None where nobody knows."""

    name: str
    kind: Literal["cpu", "gpu", "integrated"]
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
        """Whether layers can be put there or taken away."""
        return self.kind != "cpu"

    @property
    def n_bytes(self) -> int:
        """All that it is to hold."""
        return self.weights_bytes + self.kv_bytes + self.compute_bytes + self.extras_bytes

    @property
    def left_bytes(self) -> int:
        """What is free beside that, below 0 where it holds too much."""
        return self.free_bytes - self.n_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChange:
    """What would have to be set to follow a remedy; empty where that is no setting."""

    n_ctx: int = 0
    kv_type: str = ""
    file_type: str = ""


@dataclass(frozen=True, slots=True)
class PlanRemedy:
    """A way out, the tokens a second that it leads to (None where nobody can tell), and what it costs."""

    what: str
    decode_tps: float | None
    cost: str
    change: PlanChange


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """How fast an answer ("decode") or a prompt ("prefill") behind `depth` tokens really was, in tokens a second.

    `at_s` counts from 1970, 0 where it is not known; so too `gpu_layers` None.
    """

    kind: Literal["decode", "prefill"]
    depth: int
    tps: float
    gpu_layers: int | None
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """A plan. Rates are tokens a second, None where nobody can tell; `uncertainty` is a share of them.

    `curve` is the rate with 0, 1, 2 … of `n_layers` on the fastest GPU, as if it had room; `best_tps` the rate with
    memory enough. `gpu_layers` are those that were asked for, None where the planner chose. Only an `is_full` plan has
    remedies, and buffers as llama.cpp itself works them out.
    """

    model: str
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
    gpu_layers: Mapping[str, int] | None
    n_ctx_train: int
    kv_types: tuple[str, ...]
    measured: tuple[MeasuredRun, ...]
    is_full: bool

    @property
    def n_on_gpus(self) -> int:
        """Layers on GPUs, the output counted."""
        return sum(device.layers for device in self.devices if device.is_gpu)


def report_of(data: Mapping[str, Any]) -> PlanReport:
    """Return the plan that the service described; what a later version adds is ignored."""
    return PlanReport(
        model=data["model"],
        verdict=data["verdict"],
        setting=PlanSetting(**_known(PlanSetting, data["setting"])),
        n_layers=data["layers"],
        devices=tuple(DevicePlan(**_known(DevicePlan, item)) for item in data["devices"]),
        decode_tps=data["decode_tps"],
        best_tps=data["best_tps"],
        prefill_tps=data["prefill_tps"],
        first_token_s=data["first_token_s"],
        uncertainty=data["uncertainty"],
        curve=tuple(point["decode_tps"] for point in data["curve"]),
        warnings=tuple(data["warnings"]),
        remedies=tuple(_remedy(item) for item in data["remedies"]),
        gpu_layers=data["gpu_layers"],
        n_ctx_train=data["n_ctx_train"],
        kv_types=tuple(data["kv_types"]),
        measured=tuple(MeasuredRun(**_known(MeasuredRun, item)) for item in data["measured"]),
        is_full=data["is_full"],
    )


def _remedy(item: Mapping[str, Any]) -> PlanRemedy:
    return PlanRemedy(item["what"], item["decode_tps"], item["cost"], PlanChange(**_known(PlanChange, item["change"])))


def _known(kind: type, data: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: data[field.name] for field in fields(kind) if field.name in data}
