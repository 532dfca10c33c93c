"""What is loaded beside a model (draft model or head, adapters, projector), and what of it gives way to the model.

Validates those files and plans; loads nothing: `auxiliary_loading` does. Their bytes are computed in `offload`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from app.engine.load.head_file import find_head, is_head, mtp_layer_bytes, read_head
from app.engine.load.planner import LoadAttempt, LoadPlanner
from app.engine.load.projector_file import validate_projector
from app.engine.protocol.messages import EngineConfig
from app.engine.tuning.tune_results import RuntimeSettings
from offload.footprint.auxiliary_models import AuxiliaryModels, PlannedAdapter, PlannedDraft, PlannedProjector
from offload.placement.assessment import Assessment
from offload.plan import PlacementPlan
from quantizer.gguf.adapters import validate_adapter
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.header import Header
from quantizer.gguf.layer_caches import layer_caches_of
from quantizer.gguf.validation import tensors_of, validate_gguf


def read_auxiliary_models(
    header: Header, *, draft_path: str = "", adapters: Sequence[Path] = (), projector: Path | None = None
) -> AuxiliaryModels:
    """Return what is loaded beside the model of `header`, including its own MTP layer if that can draft.

    Raises ModelFileError for a file of another kind, and for one that does not match the model.
    """
    return AuxiliaryModels(
        draft=_draft(Path(draft_path), header) if draft_path else None,
        adapters=tuple(PlannedAdapter(path.name, validate_adapter(path, header.path).tensors) for path in adapters),
        projector=_projector(projector, header) if projector else None,
        has_mtp_layer=not layer_caches_of(header).n_window and mtp_layer_bytes(header) is not None,
    )


def with_found_head(config: EngineConfig, header: Header) -> tuple[EngineConfig, tuple[str, ...]]:
    """Return `config` with the head beside the model of `header` if it is to be found, and why others do not draft."""
    if config.draft_path or not config.finds_head:
        return config, ()
    path, passed_over = find_head(header)
    return replace(config, draft_path=str(path or "")), passed_over


def with_sound_projector(config: EngineConfig, header: Header) -> tuple[EngineConfig, str]:
    """Return `config` without a projector that was found, not chosen, and cannot be loaded; and why, or ""."""
    if not config.projector_path or config.has_chosen_projector:
        return config, ""
    try:
        _projector(Path(config.projector_path), header)
    except ModelFileError as error:
        return replace(config, projector_path=""), f"The model takes no pictures or sounds: {error.cause}"
    return config, ""


def left_out_notice(head: Path, with_head: PlacementPlan, without: PlacementPlan) -> str:
    """Return why a head that was found is not loaded: only the model fits better. Empty where both fit as well."""
    if not _fits_better(without, with_head):
        return ""
    return f"{head.name} does not draft: without it more of the model fits. Pass it as --draft to load it all the same."


def left_out_projector_notice(projector: Path, with_it: PlacementPlan, without: PlacementPlan) -> str:
    """Return why a projector that was found is not loaded, as `left_out_notice` does of a head."""
    if not _fits_better(without, with_it):
        return ""
    return (
        f"The model takes no pictures or sounds: without {projector.name} more of it fits. Pass that as --projector to "
        "load it all the same."
    )


def _fits_better(one: PlacementPlan, other: PlacementPlan) -> bool:
    return one.assessment.verdict.rank < other.assessment.verdict.rank


def _draft(path: Path, model: Header) -> PlannedDraft:
    header = validate_gguf(path)
    if is_head(header):
        read_head(header, model)
    return PlannedDraft(path.name, header, tensors_of(header))


def _projector(path: Path, model: Header) -> PlannedProjector:
    return PlannedProjector.of(validate_projector(path, model), model)


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
