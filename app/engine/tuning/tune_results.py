"""Which setting of the engine is fastest for a model on this machine, out of what was measured. Pure but for its file.

Owns the choice and `<cache>/tune.json`. Knows nothing of how a speed is measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from app.engine.load.machine_file import MachineFile
from offload.footprint.kv_cache import parse_kv_types

__all__ = [
    "DEFAULT_KV_TYPE",
    "DEFAULT_WORKLOAD",
    "RuntimeSettings",
    "SpeedMeasurement",
    "TuneFile",
    "TuneRequest",
    "Workload",
    "default_setting",
    "fastest",
    "measurement_from_json",
    "seconds",
    "with_kv_type",
]

DEFAULT_KV_TYPE = "f16"


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """What decides speed: threads, fused (flash) attention, repacked weights (extra buffer types), the tokens that are
    computed at once, and what the cache stores, which a person chooses and no measurement."""

    n_threads: int
    flash_attention: bool
    extra_buffers: bool
    n_ubatch: int = 512
    kv_type: str = DEFAULT_KV_TYPE


@dataclass(frozen=True, slots=True)
class SpeedMeasurement:
    """Speeds of one setting, in tokens a second. `decode` is by depth: (tokens in the cache, speed), ascending.

    `step_ratios` is the time of a step of n tokens over that of one: (n, ratio), ascending.
    """

    setting: RuntimeSettings
    prefill: float
    decode: tuple[tuple[int, float], ...]
    step_ratios: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """`path` is a model that the gate has let through; `n_threads` 0 takes the physical cores."""

    path: str
    n_threads: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Tokens that were computed as prompts and as answers, and the depth at which answers ran."""

    n_prefill: int
    n_decode: int
    depth: int


DEFAULT_WORKLOAD = Workload(n_prefill=512, n_decode=256, depth=768)


def default_setting(n_threads: int, *, has_gpu: bool, extra_buffers_are_safe: bool) -> RuntimeSettings:
    """Return what is good before anything is measured.

    On a CPU fused attention halves decode at depth (14.1 to 6.5 tok/s at 1,800 tokens, 1.24B Q4_K_M, 2 AVX-512 cores);
    on a GPU it is the faster way.
    """
    return RuntimeSettings(n_threads, flash_attention=has_gpu, extra_buffers=extra_buffers_are_safe)


def with_kv_type(setting: RuntimeSettings, kv_type: str) -> RuntimeSettings:
    """Return `setting` with another cache, and with fused attention where that cache needs it."""
    needs_flash = parse_kv_types(kv_type).needs_flash_attention
    return replace(setting, kv_type=kv_type, flash_attention=setting.flash_attention or needs_flash)


def seconds(measured: SpeedMeasurement, work: Workload) -> float:
    """Return how long `work` takes; decode speed is straight between measured depths and flat beyond them."""
    return work.n_prefill / measured.prefill + work.n_decode / _at_depth(measured.decode, work.depth)


def fastest(measured: Sequence[SpeedMeasurement], work: Workload) -> SpeedMeasurement:
    """Return the setting that does `work` in the least time. `measured` must not be empty."""
    return min(measured, key=lambda candidate: seconds(candidate, work))


def _at_depth(decode: Sequence[tuple[int, float]], depth: int) -> float:
    lower = max((point for point in decode if point[0] <= depth), default=decode[0])
    upper = min((point for point in decode if point[0] >= depth), default=decode[-1])
    if lower[0] >= upper[0]:
        return lower[1]
    share = (depth - lower[0]) / (upper[0] - lower[0])
    return lower[1] + share * (upper[1] - lower[1])


class TuneFile:
    """What was measured on one machine, by model fingerprint."""

    def __init__(self, path: Path, machine: str) -> None:
        self._file = MachineFile(path, machine)

    def measured(self, model: str) -> tuple[SpeedMeasurement, ...]:
        """Return what is known of `model` on this machine."""
        return tuple(measurement_from_json(entry) for entry in self._file.entry(model).get("measured", ()))

    def work(self, model: str) -> Workload:
        """Return what `model` was used for here so far, DEFAULT_WORKLOAD before it was used."""
        work = self._file.entry(model).get("work")
        return Workload(**work) if work else DEFAULT_WORKLOAD

    def keep(self, model: str, name: str, measured: Sequence[SpeedMeasurement]) -> None:
        """Replace what is known of `model`, whose file is called `name`."""
        self._file.update(model, {"name": name, "measured": [asdict(item) for item in measured]})

    def add(self, model: str, name: str, measured: SpeedMeasurement) -> None:
        """Keep one more setting of `model`, in place of what was known of that one."""
        others = [item for item in self.measured(model) if item.setting != measured.setting]
        self.keep(model, name, [*others, measured])

    def step_ratios(self, model: str) -> dict[int, float]:
        """Return what steps of `model` cost here when it was last used, empty before that."""
        return {int(n_tokens): ratio for n_tokens, ratio in self._file.entry(model).get("step_ratios", {}).items()}

    def record_use(self, model: str, work: Workload, step_ratios: Mapping[int, float]) -> None:
        """Replace what `model` was used for, and what its steps were seen to cost."""
        self._file.update(model, {"work": asdict(work), "step_ratios": dict(step_ratios)})

    def names(self) -> Mapping[str, str]:
        """Return model fingerprint → file name of all that was measured on this machine."""
        return {model: str(entry["name"]) for model, entry in self._file.entries().items() if "name" in entry}


def measurement_from_json(entry: Mapping[str, Any]) -> SpeedMeasurement:
    """Return what `dataclasses.asdict` made of a SpeedMeasurement, after it went through JSON."""
    return SpeedMeasurement(
        RuntimeSettings(**entry["setting"]),
        entry["prefill"],
        tuple((depth, speed) for depth, speed in entry["decode"]),
        tuple((n_tokens, ratio) for n_tokens, ratio in entry["step_ratios"]),
    )
