"""Importance matrices: how strongly each column of each weight is excited by a text. Pure but for the file.

Owns llama.cpp's GGUF format of them, collecting, merging, and the column weights for quantization. Independent of how a
model runs. Source: tools/imatrix/imatrix.cpp, common/imatrix-loader.cpp and tools/quantize/quantize.cpp of llama.cpp as
vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantizer.gguf.gguf_reader import ModelFileError, open_local
from quantizer.gguf.header import (
    Entry,
    Header,
    OutputTensor,
    TensorInfo,
    encode_entry,
    encode_header,
    padding,
    read_header,
)
from quantizer.gguf.tensor_types import tensor_type_named
from quantizer.system.errors import EngineError, UsageError
from quantizer.system.files import PRIVATE_FILE, explained, write_atomically

Floats = NDArray[np.float64]
_F32 = tensor_type_named("F32")
_SUMS, _COUNTS = ".in_sum2", ".counts"
_LEGACY = (
    "Compute one with `localllm imatrix`. Convert an old .dat file with"
    " `llama-imatrix --in-file OLD.dat --output-format gguf -o NEW.gguf`."
)


@dataclass(frozen=True, slots=True)
class ActivationStats:
    """The inputs of one weight: `sums` of squares by column, shape (n_matrices, n_columns), and how many rows they are
    sums of: `counts`, shape (n_matrices,). Only experts are several matrices."""

    sums: Floats
    counts: NDArray[np.int64]

    def means(self) -> NDArray[np.float32]:
        """Return mean squares, shape (n_matrices, n_columns); 1 where nothing was seen of an expert."""
        counts = self.counts[:, None]
        return np.where(counts > 0, self.sums / np.maximum(counts, 1), 1.0).astype(np.float32)


@dataclass(frozen=True, slots=True)
class ColumnWeights:
    """The weight of errors in each column of a tensor: `values`, shape (n_matrices, n_columns), of which each row
    goes with `n_rows` rows of the tensor."""

    values: NDArray[np.float32]
    n_rows: int

    def parts(self, start: int, stop: int) -> Iterator[tuple[slice, NDArray[np.float32]]]:
        """Cut the tensor's rows [start, stop) where another matrix begins: (rows counted from `start`, weights)."""
        for matrix in range(start // self.n_rows, -(-stop // self.n_rows)):
            first, last = max(start, matrix * self.n_rows), min(stop, (matrix + 1) * self.n_rows)
            yield slice(first - start, last - start), self.values[matrix]


@dataclass(frozen=True, slots=True)
class ImportanceMatrix:
    """Excitations by the name of the weight, gathered on `datasets` in chunks of `chunk_size` tokens."""

    entries: Mapping[str, ActivationStats]
    datasets: tuple[str, ...]
    chunk_size: int

    @property
    def n_chunks(self) -> int:
        """Whole chunks of text, by the most excited weight."""
        most = max((int(entry.counts.max()) for entry in self.entries.values()), default=0)
        return most // self.chunk_size if self.chunk_size else 0

    def weights(self, name: str, shape: Sequence[int]) -> ColumnWeights | None:
        """Return the weights of the columns of a tensor of `shape` (ggml order).
        None where the matrix does not have the tensor. Raises UsageError where it has one of another shape."""
        entry = self.entries.get(name)
        if entry is None:
            return None
        n_columns, n_matrices = shape[0], shape[2] if len(shape) > 2 else 1
        if entry.sums.size != n_columns * n_matrices:
            raise UsageError(
                f"The importance matrix has {entry.sums.size} columns for {name}, which has {n_columns * n_matrices}.",
                "Compute one for this model.",
            )
        return ColumnWeights(entry.means().reshape(n_matrices, n_columns), shape[1])


class ImatrixCollector:
    """Sums up the inputs of weights while a model runs."""

    def __init__(self) -> None:
        self._sums: dict[str, Floats] = {}
        self._counts: dict[str, NDArray[np.int64]] = {}

    def add(self, name: str, rows: NDArray[np.float32]) -> None:
        """Count the inputs of a weight, shape (n_matrices, n_rows, n_columns)."""
        sums, counts = self._entry(name, rows.shape[0], rows.shape[2], n_counts=1)
        sums += np.einsum("mrc,mrc->mc", rows, rows, dtype=np.float64)
        counts += rows.shape[1]

    def add_experts(self, name: str, rows: NDArray[np.float32], experts: NDArray[np.int32], n_experts: int) -> None:
        """Count the inputs of the selected experts: `experts`, shape (n_tokens, n_selected).
        `rows` has shape (n_tokens, n_asked, n_columns), or (n_tokens, 1, n_columns) where all get the same."""
        sums, counts = self._entry(name, n_experts, rows.shape[2], n_experts)
        squares = np.square(rows, dtype=np.float64)
        shared = np.broadcast_to(squares, (*experts.shape, squares.shape[2]))
        for expert in np.unique(experts):
            is_asked = experts == expert
            sums[expert] += shared[is_asked].sum(axis=0)
            counts[expert] += is_asked.sum()

    def matrix(self, dataset: str, chunk_size: int) -> ImportanceMatrix:
        """Return the collected matrix. Raises EngineError where the model computed NaN."""
        for name, sums in self._sums.items():
            if not np.isfinite(sums).all():
                raise EngineError(f"The inputs of {name} are not finite.", "Get an undamaged copy of the model.")
        entries = {
            name: ActivationStats(self._sums[name].reshape(len(counts), -1), counts)
            for name, counts in self._counts.items()
        }
        return ImportanceMatrix(entries, (dataset,), chunk_size)

    def _entry(self, name: str, n_matrices: int, n_columns: int, n_counts: int) -> tuple[Floats, NDArray[np.int64]]:
        sums = self._sums.setdefault(name, np.zeros((n_matrices, n_columns)))
        return sums, self._counts.setdefault(name, np.zeros(n_counts, np.int64))


def merge_imatrices(matrices: Sequence[ImportanceMatrix]) -> ImportanceMatrix:
    """Add up matrices of one model, gathered on several texts. Raises UsageError where they are not of one model."""
    entries: dict[str, ActivationStats] = {}
    for matrix in matrices:
        for name, entry in matrix.entries.items():
            entries[name] = _sum(name, entries[name], entry) if name in entries else entry
    datasets = tuple(dataset for matrix in matrices for dataset in matrix.datasets)
    return ImportanceMatrix(entries, datasets, matrices[0].chunk_size)


def encode_imatrix(matrix: ImportanceMatrix) -> bytes:
    metadata = [
        encode_entry("general.type", "imatrix", "str"),
        encode_entry("imatrix.datasets", matrix.datasets, "str[]"),
        encode_entry("imatrix.chunk_count", matrix.n_chunks, "u32"),
        encode_entry("imatrix.chunk_size", matrix.chunk_size, "u32"),
    ]
    pairs = [
        (OutputTensor(f"{name}{suffix}", (values.shape[1], values.shape[0]), _F32), values.astype("<f4").tobytes())
        for name, entry in sorted(matrix.entries.items())
        for suffix, values in ((_SUMS, entry.sums), (_COUNTS, entry.counts[:, None]))
    ]
    header = encode_header(metadata, [tensor for tensor, _ in pairs])
    return header + b"".join(data + bytes(padding(len(data))) for _, data in pairs)


def save_imatrix(matrix: ImportanceMatrix, path: Path) -> None:
    """Write `matrix` to `path`, whole or not at all, for its owner only: the text is theirs. Raises StorageError."""
    with explained(f"{path} could not be written", "Name another file with -o."):
        write_atomically(path, encode_imatrix(matrix), sync=True, mode=PRIVATE_FILE)


def read_imatrix(path: Path) -> ImportanceMatrix:
    """Read the matrix at `path`, ours or llama-imatrix's. Raises ModelFileError for anything else."""
    if open_local(path).read(0, 4) != b"GGUF":
        raise ModelFileError(f"{path.name} is not an importance matrix: it is not a GGUF file.", _LEGACY)
    header = read_header(path)
    if header.text("general.type") != "imatrix":
        cause = f"{path.name} is a model, not an importance matrix."
        raise ModelFileError(cause, "Compute one with `localllm imatrix`.")
    tensors = {tensor.name: tensor for tensor in header.tensors}
    names = [name.removesuffix(_SUMS) for name in tensors if name.endswith(_SUMS)]
    if not names or len(tensors) != 2 * len(names):
        raise _unsound(path, "it lacks sums or counts")
    entries = {name: _read(header, name, tensors) for name in names}
    has_datasets = "imatrix.datasets" in header.fields
    datasets = tuple(str(name) for name in header.array("imatrix.datasets")) if has_datasets else ()
    return ImportanceMatrix(entries, datasets, header.integer("imatrix.chunk_size") or 0)


def imatrix_entries(path: Path, matrix: ImportanceMatrix) -> list[Entry]:
    """Return the entries that llama-quantize adds to a model about the matrix that it was quantized with."""
    return [
        encode_entry("quantize.imatrix.file", path.name, "str"),
        encode_entry("quantize.imatrix.dataset", ", ".join(matrix.datasets), "str"),
        encode_entry("quantize.imatrix.entries_count", len(matrix.entries), "u32"),
        encode_entry("quantize.imatrix.chunks_count", matrix.n_chunks, "u32"),
    ]


def _read(header: Header, name: str, tensors: Mapping[str, TensorInfo]) -> ActivationStats:
    if name + _COUNTS not in tensors:
        raise _unsound(header.path, f"it lacks the counts of {name}")
    sums, counts = (_values(header, tensors[name + suffix]) for suffix in (_SUMS, _COUNTS))
    if sums.size % counts.size:
        raise _unsound(header.path, f"its counts do not go with the sums of {name}")
    return ActivationStats(sums.reshape(counts.size, -1), np.rint(counts).astype(np.int64))


def _values(header: Header, tensor: TensorInfo) -> Floats:
    if tensor.type_id != _F32.type_id:
        raise _unsound(header.path, f"{tensor.name} is not stored in F32")
    values = np.frombuffer(header.tensor_bytes(tensor), "<f4").astype(np.float64)
    if not (np.isfinite(values) & (values >= 0)).all():
        raise _unsound(header.path, f"{tensor.name} holds invalid sums or counts")
    return values


def _sum(name: str, first: ActivationStats, second: ActivationStats) -> ActivationStats:
    if first.sums.size != second.sums.size:
        raise UsageError(f"The matrices have different shapes for {name}.", "Merge matrices of one model only.")
    several = max(first, second, key=lambda entry: len(entry.counts))  # old files count all experts together
    return ActivationStats(
        first.sums.reshape(several.sums.shape) + second.sums.reshape(several.sums.shape),
        np.broadcast_to(first.counts, several.counts.shape) + np.broadcast_to(second.counts, several.counts.shape),
    )


def _unsound(path: Path, what: str) -> ModelFileError:
    return ModelFileError(f"{path.name} is not a valid importance matrix: {what}.", "Compute it again.")
