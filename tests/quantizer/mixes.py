"""A model whose weights are all zero, and made-up sensitivities of its tensors: what a search for a mix needs."""

from __future__ import annotations

from pathlib import Path

from quantizer.convert.source_model import SourceModel, open_gguf
from quantizer.mix.search import Sensitivity, candidates
from tests.quantizer.gguf_files import Skeleton

__all__ = ["made_up", "small_model"]


def small_model(folder: Path) -> SourceModel:
    """Four layers, in F16."""
    return open_gguf(Skeleton(n_layers=4).write(folder / "zeros.gguf"))


def made_up(model: SourceModel, unmeasured: str = "blk.3.") -> dict[str, Sensitivity]:
    """Those of every matrix whose name does not begin so: later ones matter more, a bit quarters the squared error."""
    known: dict[str, Sensitivity] = {}
    for tensor in model.tensors:
        if len(tensor.shape) == 2 and not tensor.name.startswith(unmeasured):
            kinds = candidates(tensor.shape[0], tensor.stored, has_weights=False)
            errors = {kind.name: 4.0**-kind.bits_per_weight if kind.is_quantized else 0.0 for kind in kinds}
            known[tensor.name] = Sensitivity(tensor.name, "Q4_K", 0.001 * (1 + len(known)), errors)
    return known
