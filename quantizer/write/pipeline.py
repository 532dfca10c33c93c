"""Tensors in conversion: read in slabs, converted by a pool of threads some slabs ahead, returned in order.

Reading, converting and the caller's work overlap. Owns the order and how much is in memory at once; independent of
where the bytes go.
"""

from __future__ import annotations

import math
import zlib
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from quantizer.convert.source_model import SourceTensor
from quantizer.gguf.header_encoder import OutputTensor
from quantizer.mix.imatrix import ColumnWeights

_SLAB_ELEMENTS = 1 << 18  # 1 MiB of float32 for each slab in flight: more does not stay in caches


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """One tensor: its source, its output, and the weights of its columns."""

    source: SourceTensor
    output: OutputTensor
    weights: ColumnWeights | None = None


@dataclass(frozen=True, slots=True)
class ConvertedSlab:
    """Consecutive rows of `tensor` in their new type; `n_bad` of its weights were not finite.

    `checksum` is the CRC-32 of `data`.
    """

    tensor: PlannedTensor
    data: bytes
    checksum: int
    n_bad: int
    is_first: bool
    is_last: bool


def convert_tensors(tensors: Sequence[PlannedTensor], n_threads: int) -> Generator[ConvertedSlab, None, None]:
    """Yield the slabs of `tensors` in order, while `n_threads` convert up to two slabs each in advance.

    Raises what reading and converting raise.
    """
    pending: deque[Future[ConvertedSlab]] = deque()
    slabs = _slabs(tensors)
    with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(n_threads) as pool:
        for _ in range(sum(map(_n_slabs, tensors))):
            pending.append(pool.submit(_convert, reader.submit(next, slabs)))
            if len(pending) > 2 * n_threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


@dataclass(frozen=True, slots=True)
class _Slab:
    tensor: PlannedTensor
    data: bytes
    first_row: int
    is_last: bool


def _slabs(tensors: Sequence[PlannedTensor]) -> Iterator[_Slab]:
    for tensor in tensors:
        n_rows, n_slabs = _rows_per_slab(tensor), _n_slabs(tensor)
        for i, data in enumerate(tensor.source.slabs(n_rows)):
            yield _Slab(tensor, data, i * n_rows, i == n_slabs - 1)


def _n_slabs(tensor: PlannedTensor) -> int:
    return -(-math.prod(tensor.output.shape[1:]) // _rows_per_slab(tensor))


def _rows_per_slab(tensor: PlannedTensor) -> int:
    return max(1, _SLAB_ELEMENTS // tensor.output.shape[0])


def _convert(read: Future[_Slab]) -> ConvertedSlab:
    from quantizer.write.dtype_conversion import convert  # numpy and the native library, in the job's process only

    slab = read.result()
    output, stored, weights = slab.tensor.output, slab.tensor.source.stored, slab.tensor.weights
    n_rows = len(slab.data) // stored.row_bytes(output.shape[0])
    parts = None if weights is None else weights.parts(slab.first_row, slab.first_row + n_rows)
    data, n_bad = convert(slab.data, stored, output.kind, output.shape[0], output.name, parts)
    return ConvertedSlab(slab.tensor, data, zlib.crc32(data), n_bad, slab.first_row == 0, slab.is_last)
