"""Random tensors that are drawn while they are read, so that no model is ever held in memory.

Owns the draw: the same seed and name give the same numbers, however many rows are asked for at a time.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from quantizer.gguf.tensor_types import TensorType, tensor_type_named

__all__ = ["RandomTensor", "constant", "matrix"]

_QUIET_SCALE = 0.25


@dataclass(frozen=True, slots=True)
class RandomTensor:
    """Float32 normal numbers around `center`; `shape` in ggml order. A source tensor of
    `quantizer.convert.source_model`.

    The first `n_quiet_rows` are scaled down: as rows of an output matrix they are then never chosen.
    """

    name: str
    shape: tuple[int, ...]
    spread: float
    center: float = 0.0
    n_quiet_rows: int = 0
    seed: int = 0

    @property
    def stored(self) -> TensorType:
        return tensor_type_named("F32")

    def slabs(self, rows_per_slab: int) -> Iterator[bytes]:
        """Yield the bytes of consecutive rows, `rows_per_slab` at a time."""
        generator = np.random.default_rng([self.seed, zlib.crc32(self.name.encode())])
        n_columns, n_rows = self.shape[0], math.prod(self.shape[1:])
        for start in range(0, n_rows, rows_per_slab):
            size = (min(rows_per_slab, n_rows - start), n_columns)
            rows = generator.standard_normal(size, np.float32)
            rows *= np.float32(self.spread)
            rows += np.float32(self.center)
            rows[: max(0, self.n_quiet_rows - start)] *= np.float32(_QUIET_SCALE)
            yield rows.tobytes()


def matrix(name: str, n_in: int, n_out: int, gain: float = 1.0, n_experts: int = 0) -> RandomTensor:
    """Return a matrix that turns inputs of variance 1 into outputs of variance `gain` squared."""
    shape = (n_in, n_out, n_experts) if n_experts else (n_in, n_out)
    return RandomTensor(f"{name}.weight", shape, gain / math.sqrt(n_in))


def constant(name: str, n_elements: int, value: float = 1.0) -> RandomTensor:
    """Return a vector that holds `value` everywhere, as norms do."""
    return RandomTensor(f"{name}.weight", (n_elements,), 0.0, value)
