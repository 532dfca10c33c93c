"""What the engine loads beside a model, read from its files for a plan.

Owns which files those are and their way through the gate. How many bytes they take is `offload`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from app.engine.prediction_layer import prediction_layer
from offload.companions import Adapter, Companions, Draft, Projector
from offload.places import can_cut
from quantizer.adapter import admit_adapter
from quantizer.errors import ModelFileError
from quantizer.gate import admit, tensors_of
from quantizer.header import Header, read_header
from quantizer.layer_caches import layer_caches_of

__all__ = ["companions_of", "projectors_beside"]

_PROJECTOR = "mmproj"  # in the names of such files, and their general.type


def companions_of(
    header: Header, *, draft_path: str = "", adapters: Sequence[Path] = (), projector: Path | None = None
) -> Companions:
    """Return what is loaded beside the model of `header`, its own prediction layer too where it has one that can draft.

    Raises ModelFileError for a file that is not what it is given as, or that does not fit the model.
    """
    has_head = prediction_layer(header) is not None and can_cut(layer_caches_of(header))
    return Companions(
        draft=_draft(Path(draft_path)) if draft_path else None,
        adapters=tuple(Adapter(path.name, admit_adapter(path, header.path).tensors) for path in adapters),
        projector=_projector(projector) if projector else None,
        has_head=has_head,
    )


def projectors_beside(model: Path) -> tuple[Path, ...]:
    """Return the projectors that lie in the folder of a model; the engine loads none of them."""
    return tuple(sorted(path for path in model.parent.glob("*.gguf") if _PROJECTOR in path.name.lower()))


def _draft(path: Path) -> Draft:
    header = admit(path)
    return Draft(path.name, header, tensors_of(header))


def _projector(path: Path) -> Projector:
    header = read_header(path)
    if header.architecture != "clip" and header.text("general.type") != _PROJECTOR:
        raise ModelFileError(f"{path.name} is no projector.", "Name the mmproj GGUF that belongs to the model.")
    return Projector(path.name, sum(tensor.n_bytes for tensor in header.tensors))
