"""GPUs that are listed more than once, by several backends of one build: each counts once. Pure.

Owns which entries are the same GPU. Knows nothing of memory or of speed.
Source: `llama_prepare_model_devices` in src/llama.cpp as vendored in llama-cpp-python 0.3.36, which does so too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["distinct", "has_unified_memory"]

_NUMBER = re.compile(r"\d+$")
_APPLE = re.compile(r"Apple M\d")


def distinct(listed: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Return the first of all entries with the same PCI address, and integrated GPUs of one backend only.

    Each entry has `name`, `description`, `address` (empty where it has none) and `is_integrated`; ggml lists the
    backend made for a maker's GPUs before the general ones. An integrated GPU often has no address.
    """
    return tuple(_distinct(listed))


def has_unified_memory(entry: Mapping[str, Any]) -> bool:
    """Whether a GPU takes from the processor's memory: Metal does not say so of Apple's own, which all do."""
    return bool(entry["is_integrated"]) or _APPLE.match(entry["description"]) is not None


def _distinct(listed: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    addresses: set[str] = set()
    unified_backend: str | None = None
    for entry in listed:
        address, backend = entry["address"].lower(), _NUMBER.sub("", entry["name"])
        if address and address in addresses:
            continue
        if has_unified_memory(entry):
            unified_backend = unified_backend or backend
            if backend != unified_backend:
                continue
        addresses.add(address)
        yield entry
