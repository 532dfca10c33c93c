"""Experts as checkpoints store them: numbered matrices, or all experts of a layer in one tensor.

transformers 5 holds the second form in memory, and saves it unless the original names are requested.
"""

from __future__ import annotations

from collections.abc import Iterator

from quantizer.architectures.architecture import Stack
from quantizer.architectures.shapes import DIMENSIONS
from quantizer.checkpoint.config import Config
from quantizer.convert.derived_tensors import Cut, StackedTensor, whole_tensor
from quantizer.convert.source_model import FileTensor
from quantizer.errors import CheckpointError

__all__ = ["FUSED_EXPERTS", "NUMBERED_EXPERTS", "matrices"]


def matrices(tensor: FileTensor) -> Iterator[FileTensor]:
    """Yield the matrix of each expert. Raises CheckpointError unless the tensor has three dimensions."""
    if len(tensor.shape) != 3:
        raise CheckpointError(f"{tensor.name} does not hold a matrix for each expert.", "Check the checkpoint.")
    n_rows, n_experts = tensor.shape[1:]
    for start in range(0, n_rows * n_experts, n_rows):
        yield tensor.rows(start, start + n_rows)


def _gates(tensor: FileTensor, name: str, _config: Config) -> StackedTensor:
    return StackedTensor(name, tuple(matrix.rows(0, matrix.shape[1] // 2) for matrix in matrices(tensor)))


def _ups(tensor: FileTensor, name: str, _config: Config) -> StackedTensor:
    return StackedTensor(name, tuple(matrix.rows(matrix.shape[1] // 2, matrix.shape[1]) for matrix in matrices(tensor)))


NUMBERED_EXPERTS = (Stack(".experts.", ".experts.", DIMENSIONS["n_expert"]),)
FUSED_EXPERTS: dict[str, dict[str, Cut]] = {
    ".experts.gate_up_proj": {".experts.gate_proj.weight": _gates, ".experts.up_proj.weight": _ups},
    ".experts.down_proj": {".experts.down_proj.weight": whole_tensor},
}
