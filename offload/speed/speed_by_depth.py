"""Predicted speeds at several depths, to compare with measurements, and in smaller files. Pure.

Independent of how anything is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from offload.devices.machine import Machine
from offload.footprint.model import PlannedModel
from offload.footprint.profile import ModelProfile, RunConfig
from offload.placement.assessment import Assessment, assess
from offload.plan import best_assessment
from offload.speed.cost_model import Rates
from quantizer.gguf.tensor_types import FILE_TYPES

_FILE_TYPES = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_M")  # from the best to the smallest
_WORTH_IT = 1.2  # times as fast


@dataclass(frozen=True, slots=True)
class Prediction:
    """Tokens a second of answers by tokens before them, and of prompts; without unknown speeds.

    A speed of an answer may be off by `uncertainty`, a share of it.
    """

    decode_tps: Mapping[int, float]
    prefill_tps: float | None
    uncertainty: float


def predict(
    model: PlannedModel, requested: RunConfig, machine: Machine, rates: Rates, depths: Iterable[int]
) -> Prediction:
    """Plan `model` and return how fast it will be behind each of `depths` tokens, with the requested layers on GPUs.

    Raises what `best_assessment` raises.
    """
    placed = _placed(requested, machine, rates)
    run_config = best_assessment(model, requested, machine, rates).profile.run_config
    found = {depth: placed(model.profile(replace(run_config, depth=depth))).speed for depth in depths}
    known = {depth: speed for depth, speed in found.items() if speed is not None}
    prefill_tps = next((speed.prefill_tps for speed in known.values()), None)
    return Prediction({depth: speed.decode_tps for depth, speed in known.items()}, prefill_tps, rates.uncertainty)


def faster_quantization(
    model: PlannedModel, requested: RunConfig, machine: Machine, rates: Rates
) -> tuple[str, float] | None:
    """Return the best file type that decodes much faster, and how many times; None where there is none.

    Raises what `best_assessment` raises.
    """
    placed = _placed(requested, machine, rates)
    run_config = best_assessment(model, requested, machine, rates).profile.run_config
    now = placed(model.profile(run_config)).decode_tps
    for name in _FILE_TYPES if now else ():
        tps = placed(model.quantized(FILE_TYPES[name]).profile(run_config)).decode_tps
        if now and tps and tps > _WORTH_IT * now:
            return name, tps / now
    return None


def _placed(requested: RunConfig, machine: Machine, rates: Rates) -> Callable[[ModelProfile], Assessment]:
    """Return the assessment of profiles in the placement that the user chose, or in the best one."""
    return lambda profile: assess(profile, machine, rates, gpu_layers=requested.gpu_layers)
