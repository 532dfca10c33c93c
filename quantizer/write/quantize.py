"""Quantizing: writing a plan, one tensor at a time.

Resumes what a killed run of the same plan left. The output appears under its name only when whole and synced, the input
is never changed, and memory holds a few slabs of rows. Independent of how a plan is made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import fields, is_dataclass, replace
from importlib.metadata import version
from pathlib import Path

from quantizer.checkpoint.errors import CheckpointError
from quantizer.checkpoint.packed.parts import RowFile
from quantizer.checkpoint.pending_shards import PendingFile
from quantizer.gguf.errors import ModelFileError
from quantizer.gguf.header_encoder import OutputTensor, padding
from quantizer.system.errors import UsageError
from quantizer.system.files import explained
from quantizer.write.events import Event, JobResumed, JobWarning, ShardOrder, TensorWritten
from quantizer.write.partial_output import PartialOutput, check_output
from quantizer.write.pipeline import convert_tensors
from quantizer.write.quantize_plan import PlannedShard, QuantizePlan


def execute(
    plan: QuantizePlan,
    n_threads: int,
    is_overwriting: bool,
    report: Callable[[Event], None],
    allows_nan: bool = False,
) -> None:
    """Write the planned files; `report` gets TensorWritten after each tensor, and before the first one JobResumed where
    a killed run got further, and ShardOrder where files are pending.

    Raises UsageError when an importance matrix is missing, CheckpointError for weights that are not finite (unless
    `allows_nan`, which reports them as JobWarning), StorageError when the disk stands in the way.
    """
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

    Its weights are read to know it. Raises as reading them does.
    """
    *others, last = plan.shards
    if last.path != plan.projector or not _holds(last, n_threads):
        return plan
    text = f"{last.path.name} is there already and stays: it is what would be written."
    return replace(plan, shards=tuple(others), existing=(last,), warnings=(*plan.warnings, text))


def _holds(shard: PlannedShard, n_threads: int) -> bool:
    """Return whether the file of `shard` is what would be written."""
    with explained(f"{shard.path} cannot be read", "Move it away.", ModelFileError):
        if not shard.path.is_file() or shard.path.stat().st_size != shard.file.n_bytes:
            return False
        with shard.path.open("rb") as file, closing(convert_tensors(shard.tensors, n_threads)) as slabs:
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
    """Write the tensors that are missing."""
    index = partial.n_done
    if index:
        report(JobResumed(index, partial.n_written))
    if plan.identities:
        report(_shard_order([tensor.source for tensor in plan.tensors], index))
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
                    report(_not_finite(tensor.output, n_bad, allows_nan))
                partial.write(bytes(padding(tensor.output.n_bytes)))
                partial.end_block()
                stored, target = tensor.source.stored.name, tensor.output.kind.name
                report(TensorWritten(index, tensor.output.name, stored, target, partial.n_written))
                index += 1


def _not_finite(output: OutputTensor, n_bad: int, allows_nan: bool) -> JobWarning:
    text = f"The tensor {output.name} holds NaN or infinite weights, {n_bad:,} of them"
    if not allows_nan:
        raise CheckpointError(
            f"{text}.", "Get an undamaged copy of the model, or pass --allow-nan to quantize it anyway."
        )
    return JobWarning(f"{text}; they count as 0." if output.kind.is_quantized else f"{text}, and stay so.")


def fingerprint(plan: QuantizePlan) -> str:
    """Return what distinguishes outputs: the bytes before the data, the files read, the code that quantizes."""
    inputs = [*(_identity(path) for path in plan.inputs), *plan.identities]
    shards = (*plan.shards, *plan.existing)
    headers = [(shard.path.name, hashlib.sha256(shard.header).hexdigest()) for shard in shards]
    parts = repr((1, version("localllm"), version("llama-cpp-python"), inputs, headers))
    return hashlib.sha256(parts.encode("utf-8", "surrogateescape")).hexdigest()


def _identity(path: Path) -> tuple[str, int, int]:
    """Return the file's name, size and time; hashing it would take as long as quantizing. Raises ModelFileError."""
    with explained(f"{path} cannot be read", "Keep the model where it is.", ModelFileError):
        status = path.stat()
    return str(path.resolve()), status.st_size, status.st_mtime_ns


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


def _shard_order(tensors: Sequence[object], n_done: int) -> ShardOrder:
    """Return the pending files that the `tensors` from `n_done` on need, with the first and last tensor of each."""
    spans: dict[str, tuple[int, int]] = {}
    for index in range(n_done, len(tensors)):
        for file in _files_of(tensors[index]):
            first, _ = spans.get(file.path.name, (index, index))
            spans[file.path.name] = (first, index)
    return ShardOrder(tuple((name, *span) for name, span in spans.items()))
