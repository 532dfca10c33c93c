"""A model to plan for: its header and the tensors of all its files.

Owns what is asked of it: a profile under a setting, the same model in another quantization. Knows nothing of machines.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from offload.companions import ALONE, Companions
from offload.extras import extras_of
from offload.profile import ModelProfile, Setting, profile_of
from offload.quants import quantized, resized
from offload.weights import WeightTable, weights_of
from quantizer.file_types import FileType
from quantizer.header import Header, TensorInfo
from quantizer.hyperparameters import hyperparameter
from quantizer.kv_shape import KvShape, kv_shape_of

__all__ = ["PlannedModel"]


@dataclass(frozen=True)
class PlannedModel:
    """`header` is that of the first file, `tensors` are those of all.

    `compute_scale` is what a dry run found the formula of compute buffers to be off by.
    """

    header: Header
    tensors: tuple[TensorInfo, ...]
    compute_scale: float = 1.0
    companions: Companions = ALONE

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.n_bytes for tensor in self.tensors)

    @property
    def n_ctx_train(self) -> int:
        """Tokens of context that it was trained on, 0 where the file does not say."""
        return hyperparameter(self.header, "context_length")

    @property
    def kv_shape(self) -> KvShape:
        """What a token leaves in its cache."""
        return kv_shape_of(self.header)

    @cached_property
    def _weights(self) -> WeightTable:
        """Its weights with those of adapters, whatever the setting."""
        tensors = (*self.tensors, *self.companions.adapter_tensors)
        return weights_of(self.header, tensors, has_head=self.companions.has_head)

    def profile(self, setting: Setting) -> ModelProfile:
        """What it takes under `setting`. Raises UsageError for a cache it cannot have."""
        profile = profile_of(self.header, self._weights, setting, has_head=self.companions.has_head)
        profile = replace(
            profile,
            compute_bytes=int(profile.compute_bytes * self.compute_scale),
            inner_compute_bytes=int(profile.inner_compute_bytes * self.compute_scale),
        )
        extras = extras_of(self.companions, profile)
        tied_bytes = profile.tied_bytes + sum(extra.tied_bytes for extra in extras)
        return replace(profile, extras=extras, tied_bytes=tied_bytes)

    def quantized(self, file_type: FileType) -> PlannedModel:
        """The same model as `localllm quantize` would make it."""
        return replace(self, tensors=quantized(self.header, self.tensors, file_type))

    def resized(self, n_bytes: int) -> PlannedModel:
        """The same model where its tensors take `n_bytes`, in types that are not known."""
        return replace(self, tensors=resized(self.tensors, n_bytes))

    def measured(self, setting: Setting, compute_bytes: int) -> PlannedModel:
        """The same model when a dry run under `setting` took `compute_bytes`."""
        predicted = profile_of(self.header, self._weights, setting).compute_bytes
        return replace(self, compute_scale=compute_bytes / predicted if predicted else 1.0)
