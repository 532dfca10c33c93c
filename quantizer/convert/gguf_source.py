"""A GGUF as the source of a quantization: its metadata copied unchanged, its tensors read in place."""

from __future__ import annotations

from pathlib import Path

from quantizer.convert.source_model import FileTensor, SourceModel
from quantizer.errors import ModelFileError
from quantizer.gguf.header import Header, read_header
from quantizer.gguf.header_encoder import Entry
from quantizer.gguf.hyperparameters import hyperparameter, per_layer
from quantizer.gguf.tensor_types import TENSOR_TYPES
from quantizer.gguf.validation import shard_paths, validate_gguf
from quantizer.mix.type_rules import ModelShape

__all__ = ["model_shape", "open_gguf"]

# True of the file they stand in only; what is written is one file with the default alignment.
_DROPPED = {"general.alignment", "split.no", "split.count", "split.tensors.count"}


def open_gguf(path: Path) -> SourceModel:
    """Open a GGUF, all its shards included, as a source.

    Raises ModelFileError when it does not pass the gate or holds no tensors.
    """
    header = validate_gguf(path)
    shards = shard_paths(header)
    by_shard = [_tensors(read_header(shard)) for shard in shards]
    tensors = [tensor for shard in by_shard for tensor in shard]
    if not tensors:
        raise ModelFileError(f"{path.name} holds a vocabulary only, no weights.", "Name a model file.")
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise ModelFileError(f"Two shards of {path.name} hold the same tensor.", "Download them again.")
    counts = tuple(map(len, by_shard))
    return SourceModel(path.stem, _entries(header), tensors, model_shape(header), {}, tuple(shards), counts)


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


def _entries(header: Header) -> tuple[Entry, ...]:
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
