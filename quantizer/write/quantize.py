"""Quantizing: writing a plan, one tensor at a time, read in slabs that threads convert some slabs ahead.

Resumes what a killed run of the same plan left. The output appears under its name only when whole and synced, the input
is never changed, and memory holds a few slabs of rows.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib.metadata import version

from quantizer.checkpoint.config import CheckpointError
from quantizer.checkpoint.packed.parts import RowFile
from quantizer.checkpoint.pending_shards import PendingFile
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.header import padding
from quantizer.system.errors import UsageError
from quantizer.system.files import explained, open_regular
from quantizer.write.events import Event, JobResumed, JobWarning, ShardOrder, TensorWritten
from quantizer.write.partial_output import PartialOutput, check_output
from quantizer.write.quantize_plan import PlannedShard, PlannedTensor, QuantizePlan


def execute(
    plan: QuantizePlan, n_threads: int, is_overwriting: bool, report: Callable[[Event], None], allows_nan: bool = False
) -> None:
    """Write the planned files; `report` gets TensorWritten after each tensor, and before the first one JobResumed where
    a killed run got further, and ShardOrder where files are pending. Raises UsageError when an importance matrix is
    missing, CheckpointError for weights that are not finite (unless `allows_nan`, which reports them as JobWarning),
    StorageError when the disk stands in the way."""
    if plan.missing_imatrix:
        raise UsageError(
            f"{len(plan.missing_imatrix)} tensors would be garbage without an importance matrix,"
            f" {plan.missing_imatrix[0]} among them.",
            "Pass --imatrix auto, or choose a type of three bits or more, such as Q3_K_M.",
        )
    files = [shard.file for shard in plan.shards]
    check_output(plan.output, [file.path for file in files], plan.inputs)
    with PartialOutput(plan.output, files, fingerprint(plan), is_overwriting) as partial:
        _write(plan, partial, n_threads, report, allows_nan)


def without_existing(plan: QuantizePlan, n_threads: int) -> QuantizePlan:
    """Return the plan without its projector where that is there already, from another type of the same model.
    Its weights are read to know it. Raises as reading them does."""
    *others, last = plan.shards
    if last.path != plan.projector or not _holds(last, n_threads):
        return plan
    text = f"{last.path.name} already exists with the same content and is kept."
    return replace(plan, shards=tuple(others), existing=(last,), warnings=(*plan.warnings, text))


def _holds(shard: PlannedShard, n_threads: int) -> bool:
    with explained(f"{shard.path} cannot be read", "Move it away.", ModelFileError):
        if not shard.path.is_file() or shard.path.stat().st_size != shard.file.n_bytes:
            return False
        with open_regular(shard.path) as file, closing(convert_tensors(shard.tensors, n_threads)) as slabs:
            if file.read(len(shard.header)) != shard.header:
                return False
            for slab in slabs:
                n_after = padding(slab.tensor.output.n_bytes) if slab.is_last else 0
                if file.read(len(slab.data)) != slab.data or any(file.read(n_after)):
                    return False
    return True


def _write(
    plan: QuantizePlan, partial: PartialOutput, n_threads: int, report: Callable[[Event], None], allows_nan: bool
) -> None:
    index = partial.n_done
    if index:
        report(JobResumed(index, partial.n_written))
    if plan.identities:
        # the pending files that the missing tensors need, with the first and last tensor of each
        spans: dict[str, tuple[int, int]] = {}
        for number, tensor in enumerate(plan.tensors[index:], index):
            for file in _files_of(tensor.source):
                first, _ = spans.get(file.path.name, (number, number))
                spans[file.path.name] = (first, number)
        report(ShardOrder(tuple((name, *span) for name, span in spans.items())))
    headers = {shard.tensors[0].output.name: shard.header for shard in plan.shards}
    n_bad = 0
    with closing(convert_tensors(plan.tensors[index:], n_threads)) as slabs:
        for slab in slabs:
            tensor = slab.tensor
            if slab.is_first:
                n_bad = 0
                partial.write(headers.get(tensor.output.name, b""))
            partial.write(slab.data, slab.checksum)
            n_bad += slab.n_bad
            if slab.is_last:
                if n_bad:
                    text = f"The tensor {tensor.output.name} holds NaN or infinite weights, {n_bad:,} of them"
                    if not allows_nan:
                        raise CheckpointError(
                            f"{text}.", "Get an undamaged copy of the model, or pass --allow-nan to quantize it anyway."
                        )
                    end = "; they count as 0." if tensor.output.kind.is_quantized else ", and stay so."
                    report(JobWarning(text + end))
                partial.write(bytes(padding(tensor.output.n_bytes)))
                partial.end_block()
                stored, target = tensor.source.stored.name, tensor.output.kind.name
                report(TensorWritten(index, tensor.output.name, stored, target, partial.n_written))
                index += 1


def fingerprint(plan: QuantizePlan) -> str:
    # what distinguishes outputs: the bytes before the data, the files read, the code that quantizes
    inputs: list[object] = []
    for path in plan.inputs:
        # name, size and time: hashing a file would take as long as quantizing it
        with explained(f"{path} cannot be read", "Keep the model where it is.", ModelFileError):
            status = path.stat()
        inputs.append((str(path.resolve()), status.st_size, status.st_mtime_ns))
    shards = (*plan.shards, *plan.existing)
    headers = [(shard.path.name, hashlib.sha256(shard.header).hexdigest()) for shard in shards]
    parts = repr((1, version("localllm"), version("llama-cpp-python"), [*inputs, *plan.identities], headers))
    return hashlib.sha256(parts.encode("utf-8", "surrogateescape")).hexdigest()


def _files_of(tensor: object) -> Iterator[PendingFile]:
    """Yield the pending files that `tensor` needs: tensors made of others are frozen dataclasses all the way down."""
    if isinstance(tensor, PendingFile):
        yield tensor
    elif isinstance(tensor, RowFile):
        yield from _files_of(tensor.parts)
    elif isinstance(tensor, tuple):
        for part in tensor:
            yield from _files_of(part)
    elif is_dataclass(tensor):
        for field in fields(tensor):
            yield from _files_of(getattr(tensor, field.name))


_SLAB_ELEMENTS = 1 << 18  # 1 MiB of float32 for each slab in flight: more does not stay in caches


@dataclass(frozen=True, slots=True)
class ConvertedSlab:
    """Consecutive rows of `tensor` in their new type; `n_bad` of its weights were not finite.
    `checksum` is the CRC-32 of `data`."""

    tensor: PlannedTensor
    data: bytes
    checksum: int
    n_bad: int
    is_first: bool
    is_last: bool


def convert_tensors(tensors: Sequence[PlannedTensor], n_threads: int) -> Generator[ConvertedSlab, None, None]:
    """Yield the slabs of `tensors` in order, while `n_threads` convert up to two slabs each in advance.
    Raises what reading and converting raise."""
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
