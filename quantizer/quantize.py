"""Quantize: plan from headers alone what will be written, to the byte; then write it, one tensor at a time.

The plan is a value that a dry run prints. The executor owns the output: it appears under its name only when whole and
synced, the input is never touched, and memory holds a few slabs of rows.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from quantizer.errors import CheckpointError, UsageError
from quantizer.file_types import FileType
from quantizer.layout import Entry, OutputTensor, encode_entry, encode_header, file_bytes, padding
from quantizer.mix import MixTensor, assign
from quantizer.output import PartialFile, check_output
from quantizer.sources import SourceModel, SourceTensor
from quantizer.tensor_types import TensorType

__all__ = ["PlannedTensor", "QuantizePlan", "TensorDone", "execute", "open_source", "plan"]

_QUANTIZATION_VERSION = 2  # GGML_QNT_VERSION
_SLAB_ELEMENTS = 1 << 21  # 8 MiB of float32 for each slab in flight
_PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl"}


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """One tensor: where it comes from and what it becomes."""

    source: SourceTensor
    output: OutputTensor
    is_fallback: bool


@dataclass(frozen=True, slots=True)
class QuantizePlan:
    """What will be written: `header` and then `tensors`; `n_bytes` is the size of the file."""

    source: Path
    output: Path
    file_type: FileType
    header: bytes
    tensors: tuple[PlannedTensor, ...]
    warnings: tuple[str, ...]
    missing_imatrix: tuple[str, ...]
    n_parameters: int
    inputs: tuple[Path, ...]

    @property
    def n_bytes(self) -> int:
        """Size of the output in bytes, which is also the disk space that it takes meanwhile."""
        return file_bytes(self.header, (tensor.output for tensor in self.tensors))

    @property
    def bits_per_weight(self) -> float:
        """Bits of the whole file for each weight."""
        return 8 * self.n_bytes / self.n_parameters


@dataclass(frozen=True, slots=True)
class TensorDone:
    """Progress: `n_written` bytes of the output stand after the tensor at `index` was written."""

    index: int
    name: str
    stored: str
    target: str
    n_written: int


def plan(source: Path, file_type: FileType, output: Path) -> QuantizePlan:
    """Read the headers of `source` (a checkpoint folder or a GGUF) and decide what `output` will hold.

    Raises UserError naming what cannot be read, converted or quantized.
    """
    model = open_source(source)
    mix = [MixTensor(tensor.name, tensor.shape, _unquantized(model, tensor)) for tensor in model.tensors]
    verdicts = assign(mix, file_type, model.shape)
    tensors = tuple(
        PlannedTensor(
            tensor,
            OutputTensor(tensor.name, tensor.shape, verdicts[tensor.name].target),
            verdicts[tensor.name].is_fallback,
        )
        for tensor in model.tensors
    )
    return QuantizePlan(
        source,
        output,
        file_type,
        encode_header(_entries(model, file_type), [tensor.output for tensor in tensors]),
        tensors,
        tuple(_warnings(tensors)),
        tuple(name for name, verdict in verdicts.items() if verdict.needs_imatrix),
        model.n_parameters,
        model.inputs,
    )


def open_source(source: Path) -> SourceModel:
    """A checkpoint folder or a GGUF file as a model. Raises UserError."""
    if source.is_dir():
        from quantizer.convert import open_checkpoint  # brings in gguf, which a GGUF source does without

        return open_checkpoint(source)
    if source.suffix.lower() in _PICKLES:
        raise CheckpointError(
            f"{source.name} is a PyTorch pickle; loading one runs whatever code it contains.",
            "Get the safetensors version of this model and name its folder.",
        )
    if source.suffix.lower() == ".safetensors":
        raise CheckpointError(f"{source.name} is one file of a checkpoint.", "Name the folder it lies in.")
    from quantizer.gguf_source import open_gguf

    return open_gguf(source)


def execute(plan: QuantizePlan, n_threads: int, is_overwriting: bool, report: Callable[[TensorDone], None]) -> None:
    """Write the planned file; `report` is called after each tensor.

    Raises UsageError when an importance matrix is missing, StorageError when the disk stands in the way.
    """
    if plan.missing_imatrix:
        raise UsageError(
            f"{plan.file_type.name} needs an importance matrix ({len(plan.missing_imatrix)} tensors would be garbage).",
            "Choose a type of three bits or more, such as Q3_K_M.",
        )
    check_output(plan.output, plan.inputs, plan.n_bytes, is_overwriting)
    with PartialFile(plan.output, is_overwriting) as partial, ThreadPoolExecutor(n_threads) as pool:
        partial.write(plan.header)
        for done in _written(plan, partial, pool, n_threads + 1):
            report(done)


def _written(plan: QuantizePlan, partial: PartialFile, pool: ThreadPoolExecutor, n_ahead: int) -> Iterator[TensorDone]:
    """Write slabs in order while the pool works up to `n_ahead` of them in advance."""
    pending: deque[tuple[int, bool, Future[bytes]]] = deque()
    jobs = _slabs(plan)
    is_reading = True
    while is_reading or pending:
        while is_reading and len(pending) < n_ahead:
            job = next(jobs, None)
            is_reading = job is not None
            if job is not None:
                pending.append((job.index, job.is_last, pool.submit(_converted, plan.tensors[job.index], job.data)))
        if pending:
            index, is_last, future = pending.popleft()
            partial.write(future.result())
            if is_last:
                yield _finished(plan.tensors[index], index, partial)


@dataclass(frozen=True, slots=True)
class _Slab:
    index: int
    is_last: bool
    data: bytes


def _slabs(plan: QuantizePlan) -> Iterator[_Slab]:
    for index, tensor in enumerate(plan.tensors):
        n_columns, n_rows = tensor.output.shape[0], math.prod(tensor.output.shape[1:])
        rows_per_slab = max(1, _SLAB_ELEMENTS // n_columns)
        n_slabs = -(-n_rows // rows_per_slab)
        for i, data in enumerate(tensor.source.slabs(rows_per_slab)):
            yield _Slab(index, i == n_slabs - 1, data)


def _converted(tensor: PlannedTensor, data: bytes) -> bytes:
    from quantizer.numbers import convert  # numpy and the native library, in the job's process only

    output = tensor.output
    return convert(data, tensor.source.stored, output.kind, output.shape[0], output.name)


def _finished(tensor: PlannedTensor, index: int, partial: PartialFile) -> TensorDone:
    partial.write(bytes(padding(tensor.output.n_bytes)))
    return TensorDone(index, tensor.output.name, tensor.source.stored.name, tensor.output.kind.name, partial.n_written)


def _unquantized(model: SourceModel, tensor: SourceTensor) -> TensorType:
    return model.unquantized.get(tensor.name, tensor.stored)


def _entries(model: SourceModel, file_type: FileType) -> list[Entry]:
    """The source's metadata with the two entries that quantizing changes."""
    ours = (
        encode_entry("general.file_type", file_type.ftype_id, "u32"),
        encode_entry("general.quantization_version", _QUANTIZATION_VERSION, "u32"),
    )
    changed = {entry.key for entry in ours}
    return [*(entry for entry in model.entries if entry.key not in changed), *ours]


def _warnings(tensors: tuple[PlannedTensor, ...]) -> Iterator[str]:
    n_again = sum(_is_requantized(tensor) for tensor in tensors)
    if n_again:
        yield f"{n_again} tensors are quantized already; quantizing them again loses more than from the original."
    n_fallbacks = sum(tensor.is_fallback for tensor in tensors)
    if n_fallbacks:
        yield f"{n_fallbacks} of {len(tensors)} tensors have rows that do not fit the type and take a larger one."


def _is_requantized(tensor: PlannedTensor) -> bool:
    return tensor.source.stored.is_quantized and tensor.source.stored != tensor.output.kind
