"""What llama.cpp logs of a model's memory, and the same figures as `offload` predicts them."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

from offload.footprint.kv_cache import cache_layers, cells_for, parse_kv_types
from offload.footprint.weights import compute_bytes, graph_shape_of, weights_of
from quantizer.gguf.header import Header
from quantizer.gguf.layer_caches import layer_caches_of

__all__ = ["Figures", "Run", "predicted"]

N_SEQUENCES = 8
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Run:
    """One context: what was asked for, then the MiB of its cache, its states and its compute buffer."""

    n_ctx: int
    kv_type: str
    is_fused: bool
    kv_mib: float
    state_mib: float
    compute_mib: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Bytes of all tensors, MiB of the mapped weights (0 where they were not mapped), and the contexts."""

    tensor_bytes: int
    mapped_mib: float
    runs: tuple[Run, ...]

    def to_json(self) -> list[Any]:
        return [self.tensor_bytes, self.mapped_mib, [astuple(run) for run in self.runs]]

    @classmethod
    def from_json(cls, fields: list[Any]) -> Figures:
        tensor_bytes, mapped_mib, runs = fields
        return cls(tensor_bytes, mapped_mib, tuple(Run(*run) for run in runs))


def predicted(header: Header, logged: Figures) -> Figures:
    """The figures of `logged` as they follow from `header`."""
    tensor_bytes = sum(tensor.n_bytes for tensor in header.tensors)
    weights = weights_of(header, header.tensors)
    mapped_bytes = sum(layer.weight_bytes for layer in (weights.input, *weights.layers, weights.output))
    mapped_mib = mapped_bytes / _MIB if logged.mapped_mib else 0.0
    return Figures(tensor_bytes, mapped_mib, tuple(_run(header, run) for run in logged.runs))


def _run(header: Header, run: Run) -> Run:
    caches = layer_caches_of(header)
    cells = cells_for(caches, run.n_ctx, n_sequences=N_SEQUENCES)
    n_bytes = sum(cache_layers(caches, parse_kv_types(run.kv_type), cells, is_fused=run.is_fused))
    state_bytes = sum(layer.state_elements for layer in caches.main_layers) * 4 * N_SEQUENCES
    compute = compute_bytes(graph_shape_of(header), cells.n_full, is_fused=run.is_fused)
    kv_mib, state_mib, compute_mib = ((n_bytes - state_bytes) / _MIB, state_bytes / _MIB, compute / _MIB)
    return Run(run.n_ctx, run.kv_type, run.is_fused, kv_mib, state_mib, compute_mib)
