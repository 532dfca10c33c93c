"""How many bytes each companion of a model takes under a setting. Pure.

Owns the sums. Knows nothing of devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from offload.companions import Companions, Extra
from offload.profile import ENGINE_BYTES, ModelProfile, profile_of
from offload.weights import weights_of

__all__ = ["extras_of"]


def extras_of(companions: Companions, profile: ModelProfile) -> tuple[Extra, ...]:
    """Return what `companions` take beside the model of `profile`, which has their layers.

    Raises UsageError for a draft model that cannot have the model's kind of cache.
    """
    return tuple(extra for source in _SOURCES for extra in source(companions, profile))


def _draft(companions: Companions, profile: ModelProfile) -> Iterator[Extra]:
    """The engine makes it a context of the same size."""
    if companions.draft is not None:
        weights = weights_of(companions.draft.header, companions.draft.tensors)
        draft = profile_of(companions.draft.header, weights, profile.setting)
        yield Extra(
            what=f"draft model {companions.draft.name}",
            weight_bytes=draft.weight_bytes - draft.input_bytes,
            cache_bytes=draft.cache_bytes,
            compute_bytes=draft.compute_bytes,
            host_bytes=draft.input_bytes + draft.host_bytes - ENGINE_BYTES,
            tied_bytes=draft.tied_bytes,
        )


def _head(companions: Companions, profile: ModelProfile) -> Iterator[Extra]:
    """Its context has a layer of its own and buffers of its own."""
    if companions.has_head:
        layer = profile.layers[-2]
        yield Extra(
            what="prediction layer",
            weight_bytes=layer.weight_bytes,
            cache_bytes=layer.cache_bytes,
            compute_bytes=profile.compute_bytes,
            host_bytes=profile.host_bytes - ENGINE_BYTES,
            is_in_layers=True,
        )


def _adapters(companions: Companions, _profile: ModelProfile) -> Iterator[Extra]:
    for adapter in companions.adapters:
        yield Extra(what=f"adapter {adapter.name}", weight_bytes=adapter.n_bytes, is_in_layers=True)


def _projector(companions: Companions, _profile: ModelProfile) -> Iterator[Extra]:
    if companions.projector is not None:
        yield Extra(what=f"projector {companions.projector.name}", weight_bytes=companions.projector.n_bytes)


_SOURCES: tuple[Callable[[Companions, ModelProfile], Iterator[Extra]], ...] = (_draft, _head, _adapters, _projector)
