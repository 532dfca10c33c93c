"""LoRA adapter sets: the adapters, with scales, that a request runs under. Pure.

Owns the names that requests use. Computed tokens depend on their adapters, so every key of the cache contains the set.
Independent of files and native code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from quantizer.errors import RequestError

__all__ = ["NO_ADAPTERS", "Adapter", "AdapterSet", "adapter_set"]

MAX_SCALE = 100.0

# (key, scale) of each active adapter, sorted by key; a scale of 0 is the same as absence.
AdapterSet: TypeAlias = tuple[tuple[str, float], ...]

NO_ADAPTERS: AdapterSet = ()


@dataclass(frozen=True, slots=True)
class Adapter:
    """A loaded adapter: its name in requests, and a key that identifies its file."""

    name: str
    key: str


def adapter_set(known: Sequence[Adapter], wanted: Sequence[tuple[int | str, float]] | None) -> AdapterSet:
    """Return the adapter set for `wanted` (number or name, and scale); None means all of `known` at scale 1.

    Raises RequestError for an adapter that is not loaded or named twice, and for a scale out of range.
    """
    if wanted is None:
        return tuple(sorted((adapter.key, 1.0) for adapter in known))
    scales: dict[str, float] = {}
    for name, scale in wanted:
        key = _find(known, name).key
        if key in scales:
            raise RequestError(f"The adapter {name!r} occurs twice.", "Give each adapter one scale.")
        if not (math.isfinite(scale) and abs(scale) <= MAX_SCALE):
            raise RequestError(f"The scale of the adapter {name!r} is {scale}.", f"Give one up to {MAX_SCALE:g}.")
        scales[key] = float(scale)
    return tuple(sorted((key, scale) for key, scale in scales.items() if scale))


def _find(known: Sequence[Adapter], name: int | str) -> Adapter:
    for index, adapter in enumerate(known):
        if name in (index, adapter.name):
            return adapter
    names = ", ".join(f"{index} ({adapter.name})" for index, adapter in enumerate(known))
    remedy = f"Loaded are: {names}." if known else "Load one with `localllm serve --lora FILE`."
    raise RequestError(f"There is no adapter {str(name)[:64]!r}.", remedy)
