"""The source of a quantization: tensors that are read row by row, wherever they come from, and their model.

A GGUF, whose metadata is copied unchanged, and a converted checkpoint are both a SourceModel to
`quantizer.write.quantize_plan`. Weights are read, not mapped: a file that shrinks while mapped would kill the process.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from quantizer.gguf.gguf_reader import ByteSource, ModelFileError
from quantizer.gguf.header import Entry, Header, read_header
from quantizer.gguf.hyperparameters import hyperparameter, per_layer
from quantizer.gguf.tensor_types import TENSOR_TYPES, TensorType, tensor_type_named
from quantizer.gguf.validation import shard_paths, validate_gguf
from quantizer.mix.type_rules import ModelShape


class SourceTensor(Protocol):
    """A named tensor that yields its rows in order."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """In ggml order: row length first."""

    @property
    def stored(self) -> TensorType:
        """The type of the bytes that `slabs` yields."""

    def slabs(self, rows_per_slab: int) -> Iterator[bytes]:
        """Return the bytes of consecutive rows, `rows_per_slab` at a time, fewer at the end. Raises ModelFileError."""


@dataclass(frozen=True, slots=True)
class FileTensor:
    """A tensor that lies in a file as it is, from byte `start`."""

    name: str
    shape: tuple[int, ...]
    stored: TensorType
    source: ByteSource
    start: int

    def rows(self, start: int, stop: int) -> FileTensor:
        skipped = start * self.stored.row_bytes(self.shape[0])
        return replace(self, shape=(self.shape[0], stop - start), start=self.start + skipped)

    def slabs(self, rows_per_slab: int) -> Iterator[bytes]:
        end = self.start + self.stored.tensor_bytes(self.shape)
        step = self.stored.row_bytes(self.shape[0]) * rows_per_slab
        for start in range(self.start, end, step):
            stop = min(start + step, end)
            data = self.source.read(start, stop)
            if len(data) != stop - start:
                raise ModelFileError(f"The file ended in the middle of the tensor {self.name}.", "Download it again.")
            yield data


@dataclass(frozen=True, slots=True)
class RearrangedTensor:
    """Rows of a matrix in another order than in its origin, or some of them; read whole, then cut. Its own rows may be
    longer than those of the origin, and then hold several of them."""

    origin: SourceTensor
    name: str
    shape: tuple[int, ...]
    row_order: npt.NDArray[np.intp]

    @property
    def stored(self) -> TensorType:
        return self.origin.stored

    def slabs(self, rows_per_slab: int) -> Iterator[bytes]:
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
        del rows_per_slab
        yield np.asarray(self.values, "<f4").tobytes()


@dataclass(frozen=True, slots=True)
class SourceModel:
    """A model to quantize: its metadata, its tensors, and the hyperparameters that the type rules need.

    `unquantized` has the types of tensors that are never quantized. `inputs` are the files that no output may replace,
    `identities` identify the content of those that have not arrived yet; `shard_counts` are the numbers of tensors per
    file of a split model. Where it `keeps_quantized`, tensors that are quantized already stay so unless fewer bits are
    wanted; for the file type `kept_file_type` they all do. `warnings` are for the user.
    """

    name: str
    entries: tuple[Entry, ...]
    tensors: Sequence[SourceTensor]
    shape: ModelShape
    unquantized: dict[str, TensorType]
    inputs: tuple[Path, ...]
    shard_counts: tuple[int, ...] = ()
    keeps_quantized: bool = False
    kept_file_type: int | None = None
    warnings: tuple[str, ...] = ()
    identities: tuple[str, ...] = ()

    @property
    def n_parameters(self) -> int:
        return sum(math.prod(tensor.shape) for tensor in self.tensors)


# True of the file they stand in only; what is written is one file with the default alignment.
_DROPPED = {"general.alignment", "split.no", "split.count", "split.tensors.count"}


def open_gguf(path: Path) -> SourceModel:
    """Open a GGUF with all its shards. Raises ModelFileError when it does not pass the gate."""
    header = validate_gguf(path)
    shards = shard_paths(header)
    by_shard = [_tensors(read_header(shard)) for shard in shards]
    tensors = [tensor for shard in by_shard for tensor in shard]
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise ModelFileError(f"Two shards of {path.name} hold the same tensor.", "Download them again.")
    counts = tuple(map(len, by_shard))
    return SourceModel(path.stem, entries_of(header), tensors, model_shape(header), {}, tuple(shards), counts)


def model_shape(header: Header) -> ModelShape:
    """Return the hyperparameters that the type rules need; 0 where the file has none."""
    heads = per_layer(header, "attention.head_count")
    kv_heads = per_layer(header, "attention.head_count_kv") or heads
    return ModelShape(
        header.architecture,
        hyperparameter(header, "block_count"),
        int(heads[0]) if heads else 0,
        int(kv_heads[0]) if kv_heads else 0,
        hyperparameter(header, "expert_count"),
    )


def entries_of(header: Header) -> tuple[Entry, ...]:
    """Return the metadata of a file, but for what is true of that file only."""
    kept = ((key, field) for key, field in header.fields.items() if key not in _DROPPED)
    return tuple(Entry(key, field.type_id, header.source.read(field.start, field.stop)) for key, field in kept)


def _tensors(header: Header) -> list[FileTensor]:
    return [
        FileTensor(
            tensor.name,
            tensor.shape or (1,),
            TENSOR_TYPES[tensor.type_id],
            header.source,
            header.data_offset + tensor.offset,
        )
        for tensor in header.tensors
    ]
