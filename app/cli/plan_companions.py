"""What a plan counts beside the model: what flags name, and what the settings attach to the default model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.engine.load.auxiliary_models import find_projectors, read_auxiliary_models
from app.service.models.attachments import read_attachments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.settings.settings import Settings
    from offload.footprint.auxiliary_models import AuxiliaryModels
    from offload.plan import PlacementPlan
    from quantizer.gguf.header import Header

__all__ = ["attached_to", "told_of_projectors"]


def attached_to(
    header: Header, model: str, settings: Settings, *, draft: str | None, lora: Sequence[str], mmproj: str | None
) -> AuxiliaryModels:
    """Return what is loaded beside the model of `header`, which was named `model`.

    Flags replace what the settings say of the default model; of others those say nothing. Raises UserError for files
    that are not what they are named as.
    """
    is_default = model == settings.model
    settings = replace(
        settings,
        draft=draft if draft is not None else settings.draft if is_default else "",
        lora=tuple(lora) or (settings.lora if is_default else ()),
        control_vector=(),
    )
    attached = read_attachments(settings, header.path)
    return read_auxiliary_models(
        header,
        draft_path=attached.draft_path,
        adapters=[Path(path) for path, _ in attached.lora],
        projector=Path(mmproj) if mmproj else None,
    )


def told_of_projectors(found: PlacementPlan, model: Path, auxiliary: AuxiliaryModels) -> PlacementPlan:
    """Return `found` with a sentence for a projector that lies beside the model and is not counted."""
    beside = find_projectors(model)
    if auxiliary.projector is not None or not beside:
        return found
    sentence = (
        f"{beside[0].name} lies beside it and is not counted, for this engine does not load it; --mmproj does so."
    )
    return replace(found, warnings=(*found.warnings, sentence))
