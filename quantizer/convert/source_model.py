"""The source of a quantization: tensors that are read row by row, wherever they come from, and their model.

A GGUF and a converted checkpoint are both a SourceModel to `quantizer.write.quantize_plan`. Weights are read, not
mapped: a file that shrinks while mapped would kill the process.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from quantizer.errors import ModelFileError
from quantizer.gguf.byte_source import ByteSource
from quantizer.gguf.header_encoder import Entry
from quantizer.gguf.tensor_types import TensorType, tensor_type_named
from quantizer.mix.type_rules import ModelShape

__all__ = ["FileTensor", "GeneratedTensor", "RearrangedTensor", "RenamedTensor", "SourceModel", "SourceTensor"]


class SourceTensor(Protocol):
    """A named tensor that yields its rows in order."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """In ggml order: row length first."""
        ...

    @property
    def stored(self) -> TensorType:
        """The type of the bytes that `slabs` yields."""
        ...

    def slabs(self, rows_per_slab: int) -> Iterator[bytes]:
        """Return the stored bytes of consecutive rows, `rows_per_slab` at a time (fewer at the end).

        Raises ModelFileError when the bytes cannot be read.
        """
        ...


@dataclass(frozen=True, slots=True)
class FileTensor:
    """A tensor that lies in a file as it is, from byte `start`."""

    name: str
    shape: tuple[int, ...]
    stored: TensorType
    source: ByteSource
    start: int

    def rows(self, start: int, stop: int) -> FileTensor:
        """Return the rows [start, stop) of a matrix as a tensor of their own."""
        skipped = start * self.stored.row_bytes(self.shape[0])
        return replace(self, shape=(self.shape[0], stop - start), start=self.start + skipped)

    def slabs(self, rows_per_slab: int) -> Iterator[bytes]:
        """Read as many rows at a time as asked for."""
        end = self.start + self.stored.tensor_bytes(self.shape)
        step = self.stored.row_bytes(self.shape[0]) * rows_per_slab
        for start in range(self.start, end, step):
            yield _read_all(self.source, start, min(start + step, end), self.name)


@dataclass(frozen=True, slots=True)
class RearrangedTensor:
    """Rows of a matrix in another order than in its origin, or some of them; read whole, then cut.

    Its own rows may be longer than those of the origin, and then hold several of them.
    """

    origin: SourceTensor
    name: str
    shape: tuple[int, ...]
    row_order: npt.NDArray[np.intp]

    @property
    def stored(self) -> TensorType:
        return self.origin.stored

    def slabs(self, rows_per_slab: int) -> Iterator[bytes]:
        """Yield rows in their new order."""
        n_rows = math.prod(self.origin.shape[1:])
        whole = np.frombuffer(b"".join(self.origin.slabs(n_rows)), np.uint8).reshape(n_rows, -1)
        step = rows_per_slab * (len(self.row_order) // math.prod(self.shape[1:]))
        for start in range(0, len(self.row_order), step):
            yield whole[self.row_order[start : start + step]].tobytes()


@dataclass(frozen=True, slots=True)
class RenamedTensor:
    """A tensor as it is, under another name."""

    origin: SourceTensor
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.origin.shape

    @property
    def stored(self) -> TensorType:
        return self.origin.stored

    def slabs(self, rows_per_slab: int) -> Iterator[bytes]:
        """Yield the origin's slabs."""
        return self.origin.slabs(rows_per_slab)


@dataclass(frozen=True, slots=True)
class GeneratedTensor:
    """A small float32 tensor that was computed, not read."""

    name: str
    values: tuple[float, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.values),)

    @property
    def stored(self) -> TensorType:
        return tensor_type_named("F32")

    def slabs(self, rows_per_slab: int) -> Iterator[bytes]:
        """Yield its one row."""
        del rows_per_slab
        yield np.asarray(self.values, "<f4").tobytes()


@dataclass(frozen=True, slots=True)
class SourceModel:
    """A model to quantize: its metadata, its tensors, and the hyperparameters that the type rules need.

    `unquantized` has the types of tensors that are never quantized. `inputs` are the files that no output may replace,
    `identities` identify the content of those that have not arrived yet; `shard_counts` are the numbers of tensors per
    file of a split model. Where it `keeps_quantized`, tensors that are quantized already stay so unless fewer bits are
    wanted. `warnings` are for the user.
    """

    name: str
    entries: tuple[Entry, ...]
    tensors: Sequence[SourceTensor]
    shape: ModelShape
    unquantized: dict[str, TensorType]
    inputs: tuple[Path, ...]
    shard_counts: tuple[int, ...] = ()
    keeps_quantized: bool = False
    warnings: tuple[str, ...] = ()
    identities: tuple[str, ...] = ()

    @property
    def n_parameters(self) -> int:
        """Number of weights."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors)


def _read_all(source: ByteSource, start: int, stop: int, name: str) -> bytes:
    data = source.read(start, stop)
    if len(data) != stop - start:
        raise ModelFileError(f"The file ended in the middle of the tensor {name}.", "Download it again.")
    return data
