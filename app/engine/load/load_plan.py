"""What is loaded beside a model and where all of it goes: a head or a projector that was found gives way to the model.

Owns the order in which the plan of a load gives things up. Plans through the devices of a load; loads nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from app.engine.load.auxiliary_models import (
    left_out_notice,
    left_out_projector_notice,
    read_auxiliary_models,
)
from app.engine.load.planner import LoadAttempt, LoadPlanner
from app.engine.protocol.messages import EngineConfig
from app.engine.tuning.tune_results import RuntimeSettings
from offload.footprint.auxiliary_models import AuxiliaryModels
from offload.placement.assessment import Assessment
from quantizer.gguf.header import Header


class PlanningDevices(Protocol):
    """The devices of a load; see `LoadDevices`."""

    @property
    def has_gpu(self) -> bool: ...

    def planner(self, path: Path, header: Header, key: str, auxiliary: AuxiliaryModels) -> LoadPlanner: ...


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What is loaded beside a model, its planner and the first attempt."""

    auxiliary: AuxiliaryModels
    planner: LoadPlanner
    attempt: LoadAttempt

    @property
    def assessment(self) -> Assessment:
        """How all of it fits."""
        return self.attempt.plan.assessment

    @property
    def has_room(self) -> bool:
        """Whether nothing fits better with less."""
        return not self.assessment.verdict.rank


def is_all_on_gpus(found: Assessment) -> bool:
    """Return whether the whole model fits where it is fast, and that is on GPUs."""
    placement = found.placement
    return not found.verdict.rank and placement is not None and placement.n_on_gpus == len(found.profile.layers)


def assessment_order(found: Assessment) -> tuple[int, float]:
    """Return the sort key of assessments, the best first: how the model fits, then how fast it answers."""
    return found.verdict.rank, -(found.decode_tps or 0.0)


def plan_load(
    devices: PlanningDevices,
    header: Header,
    key: str,
    setting: RuntimeSettings,
    config: EngineConfig,
    on_notice: Callable[[str], None],
    *,
    has_found_head: bool,
) -> LoadPlan:
    """Return the plan of a load with `config`; `key` is the model's fingerprint.

    Where a projector makes the model fit worse, it goes to the processor; one that was found, not chosen, is left out
    then, and so is a found head, each with a notice. Raises ModelFileError for chosen files that do not belong to it.
    """

    def planned(config: EngineConfig, *, is_projector_on_host: bool = False) -> LoadPlan:
        auxiliary = _auxiliary(header, config, is_projector_on_host=is_projector_on_host)
        planner = devices.planner(header.path, header, key, auxiliary)
        return LoadPlan(planner.model.auxiliary, planner, planner.attempt(config, setting))

    found, is_on_host = planned(config), False
    if config.projector_path and devices.has_gpu and not is_all_on_gpus(found.assessment):
        other = planned(config, is_projector_on_host=True)
        is_on_host = assessment_order(other.assessment) < assessment_order(found.assessment)
        found = other if is_on_host else found
    if config.projector_path and not config.has_chosen_projector and not found.has_room:
        other = planned(replace(config, projector_path=""))
        path = Path(config.projector_path)
        if notice := left_out_projector_notice(path, found.attempt.plan, other.attempt.plan):
            on_notice(notice)
            found, config, is_on_host = other, replace(config, projector_path=""), False
    if has_found_head and not found.has_room:
        other = planned(replace(config, draft_path=""), is_projector_on_host=is_on_host)
        if notice := left_out_notice(Path(config.draft_path), found.attempt.plan, other.attempt.plan):
            on_notice(notice)
            return other
    return found


def _auxiliary(header: Header, config: EngineConfig, *, is_projector_on_host: bool) -> AuxiliaryModels:
    adapters = [Path(file) for file, _ in config.lora]
    projector = Path(config.projector_path) if config.projector_path else None
    found = read_auxiliary_models(header, draft_path=config.draft_path, adapters=adapters, projector=projector)
    if found.projector is None or not is_projector_on_host:
        return found
    return replace(found, projector=replace(found.projector, is_on_host=True))
