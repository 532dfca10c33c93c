"""Models loaded beside a model: a draft model, adapters, a projector, a prediction layer. Pure.

Owns their sizes. Independent of files, and of which of these an engine can run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quantizer.gguf.header import Header, TensorInfo

__all__ = [
    *("DRAFT_HEADS", "HEAD_BATCH", "NO_AUXILIARY_MODELS", "AuxiliaryModels", "AuxiliaryUsage", "PlannedAdapter"),
    *("PlannedDraft", "PlannedProjector"),
]


DRAFT_HEADS = frozenset(["dflash", "eagle3"])  # architectures that draft from the hidden states of another model
HEAD_BATCH = 64  # tokens that a head computes at once: it makes logits of all, which take memory


@dataclass(frozen=True, slots=True)
class PlannedDraft:
    """A draft model or head: its name, the header of its first file and the tensors of all. Its context is as long as
    the model's.
    """

    name: str
    header: Header
    tensors: tuple[TensorInfo, ...]


@dataclass(frozen=True, slots=True)
class PlannedAdapter:
    """A LoRA adapter: each of its tensors lies beside the weight that it changes, whose name it begins with."""

    name: str
    tensors: tuple[TensorInfo, ...]

    @property
    def n_bytes(self) -> int:
        """Bytes of all its tensors."""
        return sum(tensor.n_bytes for tensor in self.tensors)


@dataclass(frozen=True, slots=True)
class PlannedProjector:
    """A projector of pictures or sounds into tokens. Its compute buffer is not in its header and is not counted."""

    name: str
    n_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuxiliaryModels:
    """All models loaded beside a model. Where it `has_mtp_layer`, the prediction layer is loaded and follows every
    token.
    """

    draft: PlannedDraft | None = None
    adapters: tuple[PlannedAdapter, ...] = ()
    projector: PlannedProjector | None = None
    has_mtp_layer: bool = False

    @property
    def adapter_tensors(self) -> Sequence[TensorInfo]:
        """The tensors of all adapters."""
        return [tensor for adapter in self.adapters for tensor in adapter.tensors]


NO_AUXILIARY_MODELS = AuxiliaryModels()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuxiliaryUsage:
    """Bytes of one auxiliary model, by purpose.

    All lie on the device of the output, but for `host_bytes`, which are the processor's, and for the weights and the
    cache of what `is_in_layers`: those lie among the layers of the model. A GPU holds `tied_bytes` of weights again.
    """

    what: str
    weight_bytes: int = 0
    cache_bytes: int = 0
    compute_bytes: int = 0
    host_bytes: int = 0
    tied_bytes: int = 0
    is_in_layers: bool = False

    @property
    def n_bytes(self) -> int:
        """All of them, once."""
        return self.weight_bytes + self.cache_bytes + self.compute_bytes + self.host_bytes

    @property
    def beside_bytes(self) -> int:
        """Bytes on the device of the output."""
        return self.compute_bytes + (0 if self.is_in_layers else self.weight_bytes + self.cache_bytes)
