"""The plan of a quantization: what will be written, to the byte, from headers alone.

Owns which tensor goes into which file, the warnings about it, and the plans for all file types. Independent of how a
plan is carried out.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from quantizer.checkpoint.config import CheckpointError
from quantizer.checkpoint.pending_shards import NO_PENDING, PendingFile
from quantizer.checkpoint.safetensors import PICKLES
from quantizer.convert.layer_removal import matrix_without_layers, without_layers
from quantizer.convert.peft_source import is_adapter, open_adapter
from quantizer.convert.source_model import SourceModel, SourceTensor
from quantizer.gguf.file_names import (
    NO_PROJECTOR,
    PROJECTOR_TYPES,
    projector_name,
    shard_entries,
    shard_path,
    split_by_bytes,
)
from quantizer.gguf.header import Entry, Header, OutputTensor, encode_entry, encode_header, padding, planned_header
from quantizer.gguf.tensor_types import FILE_TYPES, FileType, file_type_named, tensor_type_named
from quantizer.gguf.validation import header_faults
from quantizer.mix.imatrix import ColumnWeights, imatrix_entries, read_imatrix
from quantizer.mix.type_rules import Assignment, MixTensor, Overrides, assign, with_unweighted
from quantizer.system.errors import UsageError
from quantizer.write.partial_output import OutputFile
from quantizer.write.plan_options import PlanOptions

_QUANTIZATION_VERSION = 2  # GGML_QNT_VERSION


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """One tensor: its source, its output, and the weights of its columns."""

    source: SourceTensor
    output: OutputTensor
    weights: ColumnWeights | None = None


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """One output file: `header`, then `tensors`."""

    path: Path
    header: bytes
    tensors: tuple[PlannedTensor, ...]

    @property
    def file(self) -> OutputFile:
        """The file as a row of blocks: each tensor with its padding, the first after the header."""
        first, *others = (tensor.output.n_bytes + padding(tensor.output.n_bytes) for tensor in self.tensors)
        return OutputFile(self.path, (len(self.header) + first, *others))


@dataclass(frozen=True, slots=True)
class QuantizePlan:
    """The plan of an output: one file called `output`, or several that are named after it.
    The last is the `projector`, where there is one; `existing` are files that need not be written again."""

    output: Path
    file_type: FileType
    shards: tuple[PlannedShard, ...]
    warnings: tuple[str, ...]
    missing_imatrix: tuple[str, ...]
    n_parameters: int
    inputs: tuple[Path, ...]
    identities: tuple[str, ...] = ()
    projector: Path | None = None
    existing: tuple[PlannedShard, ...] = ()

    @property
    def tensors(self) -> tuple[PlannedTensor, ...]:
        return tuple(tensor for shard in self.shards for tensor in shard.tensors)

    @property
    def n_bytes(self) -> int:
        """Size of the output in bytes, which is also all the disk space that is taken meanwhile."""
        return sum(shard.file.n_bytes for shard in self.shards)

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.n_bytes / self.n_parameters


_NO_OPTIONS = PlanOptions()


def plan(
    source: Path,
    file_type: FileType,
    output: Path,
    options: PlanOptions = _NO_OPTIONS,
    pending: Mapping[str, PendingFile] = NO_PENDING,
) -> QuantizePlan:
    """Read the headers of `source` (a folder of a checkpoint or an adapter, or a GGUF) and decide what is written.
    `pending` are files of a checkpoint, by name, that may still be missing. Raises UserError naming what cannot be
    read, converted or quantized."""
    options.overrides()  # wrong options are refused before anything is read
    base = Path(options.base) if options.base else None
    if is_adapter(source):
        if options.projector:
            raise UsageError(f"{source.name} is an adapter, which has no projector.", "Omit --projector.")
        if options.removed_layers:
            raise UsageError(f"{source.name} is an adapter, which has no layers of its own.", "Omit --prune-layers.")
        return plan_model(open_adapter(source, base, file_type), file_type, output, options)
    planned = plan_model(open_source(source, pending, base), file_type, output, options)
    if source.is_dir():  # a GGUF was checked when it was read
        # what is written, or the first of several files, must pass validation too
        shard = planned.shards[0]
        for fault in header_faults(planned_header(shard.header, shard.file.n_bytes, shard.path)):
            raise CheckpointError(f"{source.name} cannot be converted: {fault}.", "Download the checkpoint again.")
    beside = plan_projector(source, output, options.projector, pending)
    if beside is None:
        return planned
    return replace(
        planned,
        shards=(*planned.shards, *beside.shards),
        warnings=(*planned.warnings, *beside.warnings),
        n_parameters=planned.n_parameters + beside.n_parameters,
        projector=beside.output,
    )


def plan_projector(
    source: Path, output: Path, wanted: str = "", pending: Mapping[str, PendingFile] = NO_PENDING
) -> QuantizePlan | None:
    """Return the plan of the projector beside `output`, None where `source` has none or none is wanted.
    Raises UsageError where one is requested that `source` lacks, CheckpointError for one that cannot be converted."""
    if wanted == NO_PROJECTOR:
        return None
    found = None
    if source.is_dir() and not is_adapter(source):
        from quantizer.convert.projector_source import open_projector

        try:
            found = open_projector(source, pending)
        except CheckpointError as error:
            remedy = f"{error.remedy} Use --projector {NO_PROJECTOR} to convert the text model alone."
            raise CheckpointError(f"The projector cannot be converted. {error.cause}", remedy) from error
    if found is None:
        if wanted:
            raise UsageError(f"{source.name} has no projector that can be converted.", "Omit --projector.")
        return None
    kind = file_type_named(wanted or PROJECTOR_TYPES[0])
    path = output.with_name(projector_name(output.name, kind.name))
    kept = found.unquantized if kind.base.is_quantized else {}
    return plan_model(found, kind, path, PlanOptions(mix={name: stored.name for name, stored in kept.items()}))


def plan_model(
    model: SourceModel, file_type: FileType, output: Path, options: PlanOptions = _NO_OPTIONS
) -> QuantizePlan:
    """Decide what `output` will hold of an open model. Raises UsageError for too many files and for layers that must
    stay, ModelFileError for what is no importance matrix."""
    imatrix = Path(options.imatrix) if options.imatrix else None
    matrix, overrides = read_imatrix(imatrix) if imatrix else None, options.overrides()
    if options.removed_layers:
        model = without_layers(model, options.removed_layers)
        matrix = matrix and matrix_without_layers(matrix, options.removed_layers)
    mix = []
    for tensor in model.tensors:
        stored = model.unquantized.get(tensor.name, tensor.stored)
        mix.append(MixTensor(tensor.name, tensor.shape, stored, model.keeps_quantized and stored.is_quantized))
    verdicts = assign(mix, file_type, model.shape, matrix is not None, overrides)
    if matrix is not None:
        verdicts = with_unweighted(verdicts, mix, matrix.entries.keys(), overrides)
    if model.kept_file_type == file_type.ftype_id:
        verdicts |= _kept(model, overrides)
    planned = []
    for tensor in model.tensors:
        target = verdicts[tensor.name].target
        weights = matrix.weights(tensor.name, tensor.shape) if matrix and target.is_quantized else None
        planned.append(PlannedTensor(tensor, OutputTensor(tensor.name, tensor.shape, target), weights))
    tensors = tuple(planned)
    notes = imatrix_entries(imatrix, matrix) if imatrix and matrix else []
    notes += [encode_entry(key, text, "str") for key, text in options.metadata.items()]
    entries = _entries(model, file_type, notes)
    if options.max_shard_bytes:
        counts = split_by_bytes(entries, [tensor.output for tensor in tensors], options.max_shard_bytes)
    else:
        counts = list(model.shard_counts if options.keep_split else ()) or [len(tensors)]
    shards = []
    for index, (stop, count) in enumerate(zip(accumulate(counts), counts, strict=True)):
        part = tensors[stop - count : stop]
        marks = shard_entries(index, len(counts), len(tensors))
        # the first has all the metadata, as llama.cpp wants it
        header = encode_header([*(entries if index == 0 else ()), *marks], [tensor.output for tensor in part])
        shards.append(PlannedShard(shard_path(output, index, len(counts)), header, part))
    return QuantizePlan(
        output,
        file_type,
        tuple(shards),
        (*model.warnings, *_warnings(tensors, verdicts, shards, options)),
        tuple(
            item.output.name for item in tensors if item.weights is None and verdicts[item.output.name].needs_imatrix
        ),
        model.n_parameters,
        (*model.inputs, *([imatrix] if imatrix else [])),
        model.identities,
    )


def open_source(source: Path, pending: Mapping[str, PendingFile] = NO_PENDING, base: Path | None = None) -> SourceModel:
    """Open a checkpoint folder, some of whose files may be `pending`, or a GGUF file as a model.
    `base` is the model that a draft head is for. Raises UserError."""
    if is_adapter(source):
        raise UsageError(f"{source.name} is an adapter, not a model.", "Name the model it is for.")
    if source.is_dir():
        from quantizer.convert.checkpoint_source import open_checkpoint  # tokenizers, architectures: slow to import

        return open_checkpoint(source, pending, base)
    if source.suffix.lower() in PICKLES:
        raise CheckpointError(
            f"{source.name} is a PyTorch pickle; loading one runs whatever code it contains.",
            "Get the safetensors version of this model and name its folder.",
        )
    if source.suffix.lower() == ".safetensors":
        raise CheckpointError(f"{source.name} is one file of a checkpoint.", "Name its folder.")
    if base:
        raise UsageError(f"{source.name} is a GGUF: --base is for adapters and draft heads.", "Omit --base.")
    from quantizer.convert.old_gguf import upgraded
    from quantizer.convert.source_model import open_gguf

    return upgraded(open_gguf(source))


def _kept(model: SourceModel, overrides: Overrides) -> dict[str, Assignment]:
    # the present types of quantized tensors, but for those that are set by hand
    is_tied = all(tensor.name != "output.weight" for tensor in model.tensors)
    return {
        tensor.name: Assignment(tensor.stored, tensor.stored)
        for tensor in model.tensors
        if tensor.stored.is_quantized and overrides.type_of(tensor.name, is_tied) is None
    }


def _entries(model: SourceModel, file_type: FileType, notes: Sequence[Entry]) -> list[Entry]:
    """Return the source's metadata with the two entries that quantizing changes, and `notes` of how it was made."""
    ours = (
        encode_entry("general.file_type", file_type.ftype_id, "u32"),
        encode_entry("general.quantization_version", _QUANTIZATION_VERSION, "u32"),
        *notes,
    )
    changed = {entry.key for entry in ours}
    return [*(entry for entry in model.entries if entry.key not in changed), *ours]


def _warnings(
    tensors: Sequence[PlannedTensor],
    verdicts: Mapping[str, Assignment],
    shards: Sequence[PlannedShard],
    options: PlanOptions,
) -> Iterator[str]:
    kinds = [(tensor.source.stored, tensor.output.kind) for tensor in tensors]
    if n_again := sum(stored.is_quantized and stored != kind for stored, kind in kinds):
        yield f"{n_again} tensors are already quantized; doing it again loses more than starting from the original."
    # a sentence for each pair of wanted and given type; the same tensor of several layers is named once
    by_types: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, verdict in verdicts.items():
        if verdict.target != verdict.wanted:
            by_types[verdict.wanted.name, verdict.target.name].append(name)
    for (wanted, target), names in by_types.items():
        distinct = dict.fromkeys(re.sub(r"^((?:v\.)?blk)\.\d+\.", r"\1.*.", name) for name in names)
        yield (
            f"{len(names)} of {len(verdicts)} tensors use {target}: their row length is not a multiple of"
            f" {tensor_type_named(wanted).block_size} ({wanted}). They are {', '.join(distinct)}."
        )
    for option in options.overrides().unused(list(verdicts)):
        yield f"{option} matches no tensor of this model."
    for shard in shards:
        if 0 < options.max_shard_bytes < shard.file.n_bytes:
            yield f"{shard.path.name} takes {shard.file.n_bytes:,} bytes: one tensor alone is that large."


def size_table(source: Path, base: Path | None = None) -> Iterator[QuantizePlan]:
    """Yield the plan of `source` for every file type; headers are read once. Raises UserError as `open_source` does."""
    model = open_source(source, base=base)
    for file_type in FILE_TYPES.values():
        yield plan_model(model, file_type, Path(f"{file_type.name}.gguf"))


def header_of_plan(plan: QuantizePlan) -> Header:
    """Return the header of the file that a plan in one file would write."""
    (shard,) = plan.shards
    return planned_header(shard.header, plan.n_bytes, shard.path)
