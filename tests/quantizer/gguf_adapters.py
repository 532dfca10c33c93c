"""Builds LoRA adapters and control vectors for tests, by default for the tiny Llama."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

from tests.quantizer.gguf_files import N_EMBD, N_LAYERS, Edit, write_gguf

__all__ = ["control_vector", "lora", "lora_weights"]

_KINDS = {"general.type": "adapter", "adapter.type": "lora"}


def lora_weights(
    n_embd: int = N_EMBD, n_layers: int = N_LAYERS, rank: int = 4, seed: int = 3, size: float = 0.5
) -> dict[str, np.ndarray]:
    """Random matrices that change the attention's output of every layer."""
    rng = np.random.default_rng(seed)
    weights = {}
    for layer in range(n_layers):
        name = f"blk.{layer}.attn_output.weight"
        weights[f"{name}.lora_a"] = (rng.standard_normal((rank, n_embd)) * size).astype(np.float32)
        weights[f"{name}.lora_b"] = (rng.standard_normal((n_embd, rank)) * size).astype(np.float32)
    return weights


def lora(path: Path, tensors: dict[str, np.ndarray] | None = None, edit: Edit | None = None, **kinds: str) -> Path:
    """Write an adapter of alpha 8; `kinds` replace its declared kind, `edit` may add metadata."""
    writer = gguf.GGUFWriter(path, kinds.pop("architecture", "llama"))
    for key, value in (_KINDS | {key.replace("_", "."): value for key, value in kinds.items()}).items():
        writer.add_string(key, value)
    if edit is None:
        writer.add_float32("adapter.lora.alpha", 8.0)
    else:
        edit(writer)
    return _write(writer, path, lora_weights() if tensors is None else tensors)


def control_vector(
    path: Path, n_embd: int = N_EMBD, layers: tuple[int, ...] = (1,), size: float = 1.0, kind: str = "controlvector"
) -> Path:
    """Write a random direction for each of `layers`."""
    rng = np.random.default_rng(5)
    directions = {f"direction.{layer}": (rng.standard_normal(n_embd) * size).astype(np.float32) for layer in layers}
    return _write(gguf.GGUFWriter(path, kind), path, directions)


def _write(writer: gguf.GGUFWriter, path: Path, tensors: dict[str, np.ndarray]) -> Path:
    write_gguf(writer, tensors)
    return path
