"""The loss of a model when one of its tensors gets another type: one measurement, carried over to all types.

Owns that model of loss, its form in JSON, the squared error of a tensor in each type (native calls), and the types
worth considering. Independent of how the divergence was measured.

The divergence that errors in one tensor cause grows with their square as long as they are small, and those of several
tensors add up. On the guide the ratio of divergence to squared error was the same for Q2_K and for Q5_K within a
quarter, tensor by tensor, while it differed between tensors by a factor of 600.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantizer.convert.source_model import SourceTensor
from quantizer.gguf.tensor_types import TensorType, tensor_type_named
from quantizer.mix.imatrix import ColumnWeights
from quantizer.mix.type_rules import needs_imatrix
from quantizer.write.dtype_conversion import encode, to_float32

PROBES = ("Q4_K", "Q4_0")  # what a tensor is bent into to be measured: the first that its rows fit


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The sensitivity of one tensor: with only this tensor in type `probe`, the model diverges by `kld` nats per token.

    `distortions` has the squared error of each type that the tensor may become, and of the probe.
    """

    name: str
    probe: str
    kld: float
    distortions: Mapping[str, float]

    def loss(self, kind: str) -> float:
        """Return the divergence that `kind`, one of `distortions`, is expected to cause."""
        bent = self.distortions[self.probe]
        return self.kld * self.distortions[kind] / bent if bent else 0.0


_N_SAMPLED = 1 << 18  # elements; the sampled rows are evenly spread
# Types that a tensor may get: all but one-bit types and those for models that are trained for them.
_TYPES = tuple(
    tensor_type_named(name)
    for name in (
        *("IQ2_XXS", "IQ2_XS", "IQ2_S", "Q2_K", "IQ3_XXS", "IQ3_S", "Q3_K", "IQ4_XS", "IQ4_NL", "Q4_0"),
        *("Q4_K", "Q4_1", "Q5_K", "Q5_0", "Q5_1", "Q6_K", "Q8_0"),
    )
)
_LOSSLESS = {"F32": "F16"}  # a smaller type whose loss no measurement shows


def candidates(n_columns: int, stored: TensorType, *, has_weights: bool) -> list[TensorType]:
    """Return the types that a tensor may get: those smaller than its present one, and the one that loses nothing."""
    best = tensor_type_named(_LOSSLESS.get(stored.name, stored.name))
    smaller = [kind for kind in _TYPES if kind.fits(n_columns) and kind.bits_per_weight < best.bits_per_weight]
    return [kind for kind in smaller if has_weights or not needs_imatrix(kind)] + [best]


@dataclass(frozen=True, slots=True)
class _Sample:
    """Some rows of a tensor, shape (n_rows, n_columns), and what errors in their columns cost."""

    rows: NDArray[np.float32]
    weights: NDArray[np.float32] | None


def distortions(
    tensor: SourceTensor, kinds: Sequence[TensorType], weights: ColumnWeights | None, n_threads: int
) -> list[float]:
    """Return the sum of squared errors, times `weights`, of some rows of `tensor` in each of `kinds`.

    The rows are the same for all of them. Raises what reading and quantizing raise.
    """
    samples = list(_samples(tensor, weights))
    with ThreadPoolExecutor(n_threads) as pool:
        return list(pool.map(lambda kind: sum(_error(sample, kind, tensor.name) for sample in samples), kinds))


def _samples(tensor: SourceTensor, weights: ColumnWeights | None) -> Iterator[_Sample]:
    """Yield evenly spread rows, those of each matrix together."""
    n_columns, n_rows = tensor.shape[0], math.prod(tensor.shape[1:])
    step, row_bytes = max(1, n_rows * n_columns // _N_SAMPLED), tensor.stored.row_bytes(n_columns)
    by_matrix: dict[int, list[bytes]] = defaultdict(list)
    for index, data in enumerate(tensor.slabs(step)):
        by_matrix[index * step // weights.n_rows if weights else 0].append(data[:row_bytes])
    for matrix, rows in by_matrix.items():
        of_columns = None if weights is None else weights.values[matrix]
        yield _Sample(to_float32(b"".join(rows), tensor.stored, n_columns), of_columns)


def _error(sample: _Sample, kind: TensorType, name: str) -> float:
    weights = None if sample.weights is None else [(slice(None), sample.weights)]
    n_columns = sample.rows.shape[1]
    bent = to_float32(encode(sample.rows, kind, name, weights), kind, n_columns)
    squares = np.square(sample.rows - bent, dtype=np.float64)
    return float(squares.sum() if sample.weights is None else (squares * sample.weights).sum())
