"""Models loaded beside a model: a draft model, adapters, a projector, a prediction layer. Pure.

Owns their sizes. Independent of files, and of which of these an engine can run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from offload.footprint.projector import (
    PIXEL_BYTES,
    PictureTokens,
    min_ubatch,
    picture_tokens,
    projector_compute_bytes,
    sound_tokens,
)
from quantizer.gguf.header import Header, TensorInfo
from quantizer.gguf.projector_header import ProjectorHeader, input_width

DRAFT_HEADS = frozenset(["dflash", "eagle3"])  # architectures that draft from the hidden states of another model
_FLOAT_BYTES = 4
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedProjector:
    """A projector of pictures or sounds into tokens: its weights, the compute buffers of its trial picture or sound,
    and `host_bytes` of pixels and embeddings, which are the processor's.

    `excess_bytes` are what its last load took beyond that. It lies on the device of the output, or `is_on_host`.
    A picture takes `picture` tokens (None: it sees nothing) and must fit a micro-batch of `min_ubatch`; 30 seconds of
    sound take `n_sound_tokens` (0: it hears nothing).
    """

    name: str
    n_bytes: int
    compute_bytes: int = 0
    host_bytes: int = 0
    excess_bytes: int = 0
    is_on_host: bool = False
    picture: PictureTokens | None = None
    n_sound_tokens: int = 0
    min_ubatch: int = 0

    @property
    def tokens_text(self) -> str:
        """What a picture and a sound take of the context, as a sentence."""
        parts = []
        if self.picture is not None:
            most = f" (at most {self.picture.most:,})" if self.picture.most != self.picture.typical else ""
            about = "about " if most else ""
            parts.append(f"a picture {about}{self.picture.typical:,} tokens{most}")
        if self.n_sound_tokens:
            parts.append(f"30 seconds of sound about {self.n_sound_tokens:,} tokens")
        return f"It makes {' and '.join(parts)}." if parts else ""

    @classmethod
    def of(cls, projector: ProjectorHeader, model: Header) -> PlannedProjector:
        """Return what `projector` takes beside `model`."""
        picture = picture_tokens(projector.vision) if projector.vision else None
        n_sound_tokens = sound_tokens(projector.audio) if projector.audio else 0
        width = input_width(model)
        return cls(
            name=projector.path.name,
            n_bytes=projector.n_bytes,
            compute_bytes=projector_compute_bytes(projector),
            host_bytes=PIXEL_BYTES + max(picture.most if picture else 0, n_sound_tokens) * width * _FLOAT_BYTES,
            picture=picture,
            n_sound_tokens=n_sound_tokens,
            min_ubatch=min_ubatch(projector, width),
        )


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
    projector: PlannedProjector | None = None  # if it is one

    @property
    def n_bytes(self) -> int:
        """All of them, once."""
        return self.weight_bytes + self.cache_bytes + self.compute_bytes + self.host_bytes

    @property
    def beside_bytes(self) -> int:
        """Bytes on the device of the output."""
        return self.compute_bytes + (0 if self.is_in_layers else self.weight_bytes + self.cache_bytes)
