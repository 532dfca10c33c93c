"""What is loaded beside a model (draft model or head, adapters, projector), and what of it gives way to the model.

Validates those files and plans; `auxiliary_loading` loads them. Their bytes are computed in `offload`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from app.engine.load.draft_copy import CopyRecords, find_copy, is_copy
from app.engine.load.head_file import find_head, is_head, read_head
from app.engine.load.planner import LoadAttempt, LoadDevices, LoadPlanner
from app.engine.load.prediction_layers import mtp_layer_bytes
from app.engine.load.projector_file import validate_projector
from app.engine.messages import EngineConfig
from app.engine.tuning.tune_results import RuntimeSettings
from app.protocol.plan import describe_draft
from offload.advice.drafts import COPY_ACCEPTANCES, DraftEvidence, DraftOffer, draft_offer, planned_copy
from offload.footprint.auxiliary_models import AuxiliaryModels, PlannedAdapter, PlannedDraft, PlannedProjector
from offload.plan import PlacementPlan
from quantizer.gguf.adapters import validate_adapter
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.header import Header, read_header
from quantizer.gguf.tensor_types import DRAFT_COPY_TYPE
from quantizer.gguf.validation import tensors_of, validate_gguf

Planned = TypeVar("Planned")
_NO_OFFER = "both do not fit, or the speed of a GPU is unknown"


def read_auxiliary_models(
    header: Header,
    *,
    draft_path: str = "",
    adapters: Sequence[Path] = (),
    projector: Path | None = None,
    is_projector_on_host: bool = False,
) -> AuxiliaryModels:
    """Return what is loaded beside the model of `header`, including its own MTP layer if that can draft. Raises
    ModelFileError for a file of another kind, and for one that does not match the model."""
    draft = None
    if draft_path:
        of_draft = validate_gguf(Path(draft_path))
        if is_head(of_draft):
            read_head(of_draft, header)
        draft = PlannedDraft(Path(draft_path).name, of_draft, tensors_of(of_draft))
    planned_projector = None
    if projector:
        planned_projector = PlannedProjector.of(validate_projector(projector, header), header)
        planned_projector = replace(planned_projector, is_on_host=is_projector_on_host)
    return AuxiliaryModels(
        draft=draft,
        adapters=tuple(PlannedAdapter(path.name, validate_adapter(path, header.path).tensors) for path in adapters),
        projector=planned_projector,
        has_mtp_layer=mtp_layer_bytes(header) is not None,
    )


def with_found_draft(config: EngineConfig, header: Header, cache_dir: Path) -> tuple[EngineConfig, tuple[str, ...]]:
    """Return `config` with the head beside the model of `header` if it is to be found, else with the low-bit copy of a
    model that uses one and has no layers that draft; and why others do not draft."""
    if config.draft_path or not config.finds_head:
        return config, ()
    path, passed_over = find_head(header)
    if path is None and may_use_copy(config, header):
        path, unusable = find_copy(header.path, cache_dir)
        passed_over += unusable
    return replace(config, draft_path=str(path or "")), passed_over


def may_use_copy(config: EngineConfig, header: Header) -> bool:
    return config.uses_copy and mtp_layer_bytes(header) is None


def with_sound_projector(config: EngineConfig, header: Header) -> tuple[EngineConfig, str]:
    """Return `config` without a projector that was found, not chosen, and cannot be loaded; and why, or ""."""
    if not config.projector_path or config.has_chosen_projector:
        return config, ""
    try:
        validate_projector(Path(config.projector_path), header)
    except ModelFileError as error:
        return replace(config, projector_path=""), f"The model takes no pictures or sounds: {error.cause}"
    return config, ""


def best_fit(
    planned: Callable[[str, str, bool], Planned],
    plan_of: Callable[[Planned], PlacementPlan],
    draft_path: str,
    projector_path: str,
    *,
    has_gpu: bool,
    is_draft_chosen: bool,
    is_projector_chosen: bool,
) -> tuple[Planned, tuple[str, ...]]:
    """Return the plan of a model with a draft and a projector, or with less where the model alone fits better. Where a
    projector makes the model fit worse, it goes to the processor; one that was found, not chosen, is left out then, and
    so is a found head, each with a notice. `planned` gets the paths of both, empty for none, and whether the projector
    is on the processor."""

    def rank(found: Planned) -> int:
        return plan_of(found).assessment.verdict.rank

    def order(found: Planned) -> tuple[int, float]:
        return rank(found), -(plan_of(found).assessment.decode_tps or 0.0)

    found, is_on_host, notices = planned(draft_path, projector_path, False), False, list[str]()
    if projector_path and has_gpu and (rank(found) or not plan_of(found).assessment.is_all_on_gpus):
        other = planned(draft_path, projector_path, True)
        if order(other) < order(found):
            found, is_on_host = other, True
    if projector_path and not is_projector_chosen and rank(found):
        other, name = planned(draft_path, "", False), Path(projector_path).name
        if rank(other) < rank(found):
            notices.append(
                f"The model takes no pictures or sounds: without {name} more of it fits. Pass that as --projector to "
                "load it anyway."
            )
            found, projector_path, is_on_host = other, "", False
    if draft_path and not is_draft_chosen and rank(found):
        other, name = planned("", projector_path, is_on_host), Path(draft_path).name
        if rank(other) < rank(found):
            reason = "without it more of the model fits. Pass it as --draft to load it anyway."
            notices.append(f"{name} is not used for drafts: {reason}")
            found = other
    return found, tuple(notices)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    auxiliary: AuxiliaryModels
    planner: LoadPlanner
    attempt: LoadAttempt


def plan_load(
    devices: LoadDevices,
    header: Header,
    key: str,
    setting: RuntimeSettings,
    config: EngineConfig,
    on_notice: Callable[[str], None],
    cache_dir: Path,
    *,
    has_found_draft: bool,
) -> LoadPlan:
    """Return the plan of a load with `config`, as `best_fit` does; `key` is the model's fingerprint. A low-bit copy is
    left out where it is not expected to pay; where there is none, the plan has what one would do. Raises ModelFileError
    for chosen files that do not belong to the model."""

    def planned(draft_path: str, projector_path: str, is_projector_on_host: bool) -> LoadPlan:
        auxiliary = read_auxiliary_models(
            header,
            draft_path=draft_path,
            adapters=[Path(file) for file, _ in config.lora],
            projector=Path(projector_path) if projector_path else None,
            is_projector_on_host=is_projector_on_host,
        )
        planner = devices.planner(header.path, header, key, auxiliary)
        attempted = replace(config, draft_path=draft_path, projector_path=projector_path)
        return LoadPlan(planner.model.auxiliary, planner, planner.attempt(attempted, setting))

    draft_path = config.draft_path
    if has_found_draft and is_copy(copy := read_header(Path(draft_path))):
        alone, records = planned("", config.projector_path, False), CopyRecords.of(cache_dir)
        draft = PlannedDraft(copy.path.name, copy, tensors_of(copy))
        offer = _offer_of(alone, draft, records.evidence(copy))
        if offer is None or not offer.pays or not records.has_paid(copy.path):
            expected = describe_draft(offer).gain_text if offer else _NO_OFFER
            if offer is not None and offer.pays:
                expected = "no draft of it paid when its steps were measured"
            on_notice(f"The low-bit copy of this model is not used: {expected}. Pass {copy.path} as --draft to use it.")
            draft_path = ""
    found, notices = best_fit(
        planned,
        lambda load: load.attempt.plan,
        draft_path,
        config.projector_path,
        has_gpu=devices.has_gpu,
        is_draft_chosen=not has_found_draft,
        is_projector_chosen=config.has_chosen_projector,
    )
    for notice in notices:
        on_notice(notice)
    if may_use_copy(config, header) and not config.draft_path:
        return _with_wanted_copy(found, on_notice)
    return found


def _with_wanted_copy(found: LoadPlan, on_notice: Callable[[str], None]) -> LoadPlan:
    """Return `found` with what a low-bit copy would do, if its speed can be predicted: the service makes one that
    pays."""
    copy, usual = planned_copy(found.planner.model), DraftEvidence(COPY_ACCEPTANCES[DRAFT_COPY_TYPE])
    offer = _offer_of(found, copy, usual) if copy is not None else None
    if offer is None:
        reason = "it would be hardly smaller" if copy is None else _NO_OFFER
        on_notice(f"No low-bit copy of this model is made to draft: {reason}.")
        return found
    expected = describe_draft(offer).gain_text
    if offer.pays:
        on_notice(
            f"A low-bit copy of this model is made in the background, to draft from the next load on: {expected}."
        )
    else:
        on_notice(f"No low-bit copy of this model is made to draft: {expected}.")
    plan = replace(found.attempt.plan, drafts=(replace(offer, file_type=DRAFT_COPY_TYPE),))
    return replace(found, attempt=replace(found.attempt, plan=plan))


def _offer_of(alone: LoadPlan, draft: PlannedDraft, known: DraftEvidence) -> DraftOffer | None:
    found = alone.attempt.plan.assessment
    rates = alone.planner.rates_of(found.machine)
    return draft_offer(alone.planner.model, found.profile.run_config, found, rates, draft, known)
